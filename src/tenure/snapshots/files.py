"""The bytes of a snapshot's file: plain, .xz, .gz or .zst, told apart by content, or stdin."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from tenure.errors import BadInputError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LARGEST_BYTES = 8 << 30  # of a decompressed or piped snapshot, unless the caller says otherwise
_BUFFER = 1 << 18  # bytes of compressed input at a time
_FREE_BYTES = 32 << 20  # output up to here is not held against the input
_RATIO = 300  # recorded snapshots compress 20 to 30 times; a bomb goes far beyond
_MAGIC = {b"\xfd7zXZ\x00": "xz", b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst"}
_HEAD = 6  # bytes, the longest magic


class SnapshotStream:
    """The bytes of a snapshot, decompressed as they are read, never all in memory.

    Every error of the file or of its compression is a BadInputError of one line, without the name
    of the file.
    """

    def __init__(self, file: BinaryIO, largest: int) -> None:
        self._largest = largest
        self._taken = 0
        with _one_line():
            head = file.read(_HEAD)
            self._input = _Rejoined(head, file)
            kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
            self._output = _decompressed(kind, self._input)
            self._compressed = kind is not None

    def read(self, size: int) -> bytes:
        """Returns up to `size` bytes; none at the end."""
        with _one_line():
            piece = self._output.read(size)
        self._taken += len(piece)
        if self._compressed:
            self._refuse_bombs()
        return piece

    def _refuse_bombs(self) -> None:
        if self._taken > self._largest:
            raise BadInputError(
                f"more than {self._largest:,} bytes when decompressed; decompress it "
                "yourself to read it all the same"
            )
        if self._taken > max(_FREE_BYTES, _RATIO * self._input.count):
            raise BadInputError(
                f"{self._input.count:,} bytes swell to {self._taken:,}, which no "
                "snapshot does; refused"
            )


@contextmanager
def opened(
    source: str | os.PathLike[str], largest: int = LARGEST_BYTES
) -> Iterator[SnapshotStream]:
    """Yields the bytes of a file.

    Args:
        source: A path, or "-" for standard input.
        largest: Bytes that a compressed file may come to.

    Raises:
        BadInputError: It cannot be opened.
    """
    if os.fspath(source) == "-":
        if sys.stdin is None:
            raise BadInputError("it is closed; give a path")
        yield SnapshotStream(sys.stdin.buffer, largest)
        return
    with _file(Path(source)) as file:
        yield SnapshotStream(file, largest)


def _file(path: Path) -> BinaryIO:
    with _one_line():
        return cast(BinaryIO, path.open("rb", buffering=0))


def source_name(source: str | os.PathLike[str]) -> str:
    """Returns what messages call a source, on one line."""
    path = os.fspath(source)
    if path == "-":
        return "standard input"
    return "".join(c if c.isprintable() else "?" for c in path)


@contextmanager
def _one_line() -> Iterator[None]:
    """Turns what a file can do wrong into a BadInputError."""
    try:
        yield
    except OSError as error:
        raise BadInputError(_advice(error)) from None
    except (EOFError, lzma.LZMAError, zlib.error, zstd.ZstdError) as error:
        raise BadInputError(f"broken compressed data ({error}); copy it again") from None
    except ValueError as error:  # a path with a null byte
        raise BadInputError(f"{error}; check the path") from None


def _advice(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file; check the path"
    if isinstance(error, IsADirectoryError):
        return "a directory; name a snapshot file in it"
    if isinstance(error, PermissionError):
        return "no permission to read it; change its mode or owner"
    if isinstance(error, gzip.BadGzipFile):
        return f"broken compressed data ({error}); copy it again"
    return f"cannot be read ({error.strerror or error}); check the file"


class _Rejoined(io.RawIOBase):
    """A stream put together again after its first bytes were looked at; counts what is read."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = head
        self._rest = rest
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        data = self._head[: len(view)] or self._rest.read(len(view))
        self._head = self._head[len(view) :]
        view[: len(data)] = data
        self.count += len(data)
        return len(data)


def _decompressed(kind: str | None, compressed: _Rejoined) -> IO[bytes]:
    if kind is None:
        return cast(IO[bytes], compressed)
    buffered = io.BufferedReader(compressed, _BUFFER)
    if kind == "xz":
        return lzma.LZMAFile(buffered)
    if kind == "gz":
        return cast(IO[bytes], gzip.GzipFile(fileobj=buffered))
    return cast(IO[bytes], zstd.ZstdFile(buffered))
