"""The bytes of a snapshot's file: plain, .xz, .gz or .zst, told apart by content, or stdin."""

from __future__ import annotations

import gzip
import io
import lzma
import mmap
import os
import stat
import sys
import zlib
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from tenure.errors import BadInputError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LARGEST_BYTES = 8 << 30  # of a decompressed or piped snapshot, unless the caller says otherwise
_CHUNK = 1 << 20  # bytes
_FREE_BYTES = 256 << 20  # output up to here is not held against the input
_RATIO = 1000  # recorded snapshots compress 20 to 60 times; a bomb goes far beyond
_MAGIC = {b"\xfd7zXZ\x00": "xz", b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst"}
_HEAD = 6  # bytes, the longest magic


def read_bytes(
    source: str | os.PathLike[str], largest: int = LARGEST_BYTES
) -> bytes | bytearray | mmap.mmap:
    """Returns the bytes of a file, decompressed; a plain file is mapped, not read.

    Args:
        source: A path, or "-" for standard input.
        largest: Bytes that a compressed or piped file may come to.

    Raises:
        BadInputError: It cannot be opened or decompressed, is no pickle, or is too large.
    """
    name = source_name(source)
    try:
        if os.fspath(source) == "-":
            return _inflate(sys.stdin.buffer, name, largest)
        with Path(source).open("rb") as file:
            return _read_file(file, name, largest)
    except OSError as error:
        raise BadInputError(f"{name}: {_advice(error)}") from None
    except (EOFError, lzma.LZMAError, zlib.error, zstd.ZstdError) as error:
        raise BadInputError(f"{name}: broken compressed data ({error}); copy it again") from None
    except MemoryError:
        raise BadInputError(f"{name}: too large for the memory that is free") from None
    except ValueError as error:  # a path with a null byte
        raise BadInputError(f"{name}: {error}; check the path") from None


def source_name(source: str | os.PathLike[str]) -> str:
    """Returns what messages call a source, on one line."""
    path = os.fspath(source)
    if path == "-":
        return "standard input"
    return "".join(c if c.isprintable() else "?" for c in path)


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


def _read_file(file: BinaryIO, name: str, largest: int) -> bytes | bytearray | mmap.mmap:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        return _inflate(file, name, largest)
    if status.st_size == 0:
        return b""
    head = file.read(_HEAD)
    file.seek(0)
    if _compression(head) is not None:
        return _inflate(file, name, largest)
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _compression(head: bytes) -> str | None:
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


class _Counted(io.RawIOBase):
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


def _inflate(file: BinaryIO, name: str, largest: int) -> bytearray:
    """Reads a stream to its end, never far beyond what a snapshot could be."""
    head = file.read(_HEAD)
    counted = _Counted(head, file)
    stream = _decompressed(_compression(head), counted)
    data = bytearray()
    while chunk := stream.read(_CHUNK):
        if not data and not _may_be_pickle(chunk):
            raise BadInputError(
                f"{name}: not a pickle; give a file from torch.cuda.memory._dump_snapshot"
            )
        data += chunk
        if len(data) > largest:
            raise BadInputError(
                f"{name}: more than {largest:,} bytes; record fewer events (max_entries)"
            )
        if len(data) > max(_FREE_BYTES, _RATIO * counted.count):
            raise BadInputError(
                f"{name}: {counted.count:,} bytes swell to more than {len(data):,}; no snapshot "
                "does, refused"
            )
    return data


def _decompressed(kind: str | None, counted: _Counted) -> IO[bytes]:
    buffered = io.BufferedReader(counted, _CHUNK)
    if kind == "xz":
        return lzma.LZMAFile(buffered)
    if kind == "gz":
        return cast(IO[bytes], gzip.GzipFile(fileobj=buffered))
    if kind == "zst":
        return cast(IO[bytes], zstd.ZstdFile(buffered))
    return buffered


def _may_be_pickle(start: bytes) -> bool:
    """Tells by the first bytes, as the engine does; spares inflating a file of something else."""
    if start[0] == 0x80:
        return len(start) < 2 or start[1] <= 5
    return start.startswith((b"}", b"]", b"(d", b"(l"))
