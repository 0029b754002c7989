"""Snapshots on growth: only what stays counts."""

from __future__ import annotations

from pathlib import Path

from fake_gpu import attempt, run
from tenure.live.growth import Floor

MIB = 1 << 20


def test_what_comes_and_goes_is_no_growth() -> None:
    floor = Floor(window=4)
    assert [floor.add(size * MIB) for size in (500, 900, 500, 2000, 500, 5000, 500)] == [0] * 7


def test_what_stays_is_noted_once_for_each_level() -> None:
    floor = Floor(window=3)
    figures = [500, 500, 500, 700, 700, 700, 700, 720, 720, 720, 900, 900, 900]
    found = [floor.add(size * MIB) // MIB for size in figures]
    assert found == [0, 0, 0, 0, 0, 200, 0, 0, 0, 0, 0, 0, 200]


def test_the_first_level_is_where_it_begins() -> None:
    floor = Floor(window=2)
    assert [floor.add(size * MIB) for size in (0, 0, 65, 65)] == [0, 0, 0, 65 * MIB]


def test_a_process_that_grows_leaves_a_snapshot(tmp_path: Path) -> None:
    done = attempt(
        f"""
        import time
        import torch, tenure
        from tenure.live import growth
        tenure.install(quiet=True)
        growth.watch({str(tmp_path)!r}, every=0.01, window=3)
        keep = [torch.empty(1 << 20)]
        time.sleep(0.5)
        keep.append(torch.empty(300 << 20))
        for _ in range(500):
            time.sleep(0.02)
            if __import__("os").listdir({str(tmp_path)!r}):
                break
        """
    )
    assert done.returncode == 0, done.stderr
    assert "holds 300.00 MiB more than before" in done.stderr
    (written,) = tmp_path.iterdir()
    assert written.suffix == ".pickle"


def test_a_folder_that_is_not_there_is_said() -> None:
    run(
        """
        import tenure
        from tenure.errors import UsageError
        try:
            tenure.install(on_growth="/nowhere/at/all")
        except UsageError as error:
            assert "is not a folder" in str(error)
        else:
            raise AssertionError
        """
    )
