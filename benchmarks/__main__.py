"""`python -m benchmarks [--repetitions N] [NAME...]`: one JSON line a case on standard output."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from benchmarks.command import command
from benchmarks.elastic import elastic
from benchmarks.long_recording import million
from benchmarks.native import hot_path, many_free_blocks
from benchmarks.replaying import linear, replay

if TYPE_CHECKING:
    from collections.abc import Callable

BENCHMARKS: dict[str, Callable[[int], None]] = {
    "replay": replay,
    "linear": linear,
    "command": command,
    "hot_path": hot_path,
    "many_free_blocks": many_free_blocks,
    "elastic": elastic,
    "million": million,
}


def main() -> None:
    """Runs the benchmarks named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--repetitions", type=int, default=15)
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(
            f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}"
        )
    for name in options.names or BENCHMARKS:
        BENCHMARKS[name](options.repetitions)


if __name__ == "__main__":
    main()
