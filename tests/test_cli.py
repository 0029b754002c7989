"""The command line from outside: output, exit codes, files, and how little it needs to start."""

from __future__ import annotations

import gzip
import json
import lzma
import subprocess
import sys
from pathlib import Path

import pytest
from backports import zstd
from click.testing import CliRunner

from shared_data import EXAMPLES
from tenure.cli import commands, main

LEAK = str(EXAMPLES / "leak_graph.pickle.xz")
OOM = str(EXAMPLES / "llama_lora.limit5.5.pickle.xz")


def run(*args: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "tenure", *args], capture_output=True, input=stdin, check=False
    )


def test_help_lists_every_command_and_loads_neither_numpy_nor_torch() -> None:
    code = (
        "import sys; sys.argv = ['tenure', '--help']\n"
        "from tenure.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('numpy', 'torch', 'rich', 'tenure._engine') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]" in shown.stdout
    for name in ("explain", "replay", "demo"):
        assert f"\n  {name}" in shown.stdout


def test_replay_of_a_recording_is_exact_and_exits_with_0() -> None:
    shown = run("replay", LEAK)
    assert shown.returncode == 0
    assert shown.stdout.startswith(b"Exact: 3,638 events")


def test_replay_json_has_the_fields_of_the_contract() -> None:
    shown = run("replay", LEAK, "--json")
    value = json.loads(shown.stdout)
    assert value["compared"] is True
    assert value["address_mismatches"] == value["segment_mismatches"] == 0
    assert value["end_state_mismatches"] == 0
    assert value["events"] == 3_638
    assert set(value["peak"]) == {"requested", "allocated", "active", "reserved"}
    assert set(value) >= {
        "file", "device", "rules", "torch_version", "conf", "capacity", "end", "device_allocs",
        "device_frees", "chunk_moves", "retries", "ooms", "first_oom", "seconds",
    }  # fmt: skip


def test_a_what_if_is_not_compared_and_an_out_of_memory_exits_with_1() -> None:
    shown = run("replay", LEAK, "--capacity", "1GiB", "--json")
    value = json.loads(shown.stdout)
    assert shown.returncode == 1
    assert value["compared"] is False
    assert value["address_mismatches"] is None
    assert value["capacity"] == 2**30
    assert value["first_oom"]["event"] > 0


def test_explain_exits_with_1_on_a_finding_and_0_without() -> None:
    assert run("explain", LEAK).returncode == 1
    assert run("explain", str(EXAMPLES / "resnet50.pickle.xz")).returncode == 0


def test_demo_explains_an_out_of_memory_and_names_the_setting() -> None:
    shown = run("demo")
    assert shown.returncode == 0
    assert b"Out of memory, and not for lack of memory" in shown.stdout
    assert b"set: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in shown.stdout


@pytest.mark.parametrize("pack", [bytes, lzma.compress, gzip.compress, zstd.compress])
def test_every_packing_and_standard_input_are_read(pack: object, tmp_path: Path) -> None:
    data = pack(lzma.decompress(Path(LEAK).read_bytes()))  # type: ignore[operator]
    file = tmp_path / "snapshot"
    file.write_bytes(data)
    from_file = run("replay", str(file), "--json")
    from_pipe = run("replay", "-", "--json", stdin=data)
    assert json.loads(from_file.stdout)["events"] == 3_638
    assert json.loads(from_pipe.stdout)["address_mismatches"] == 0


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("replay",), 2),
        (("replay", LEAK, "--conf", "max_split:3"), 2),
        (("replay", LEAK, "--capacity", "many"), 2),
        (("replay", LEAK, "--torch-version", "new"), 2),
        (("replay", LEAK, "--device", "7"), 2),
        (("explain", "no-such-file"), 3),
        (("explain", "-"), 3),
        (("nonsense",), 2),
    ],
)
def test_bad_use_and_bad_input_get_one_clear_line(args: tuple[str, ...], code: int) -> None:
    shown = run(*args, stdin=b"not a snapshot")
    assert shown.returncode == code
    assert not shown.stdout
    lines = shown.stderr.decode().strip().splitlines()
    assert b"Traceback" not in shown.stderr
    assert len(lines) == 1 if code == 3 else len(lines) <= 4


def test_output_is_written_and_never_overwritten_unasked(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    assert run("replay", LEAK, "--json", "-o", str(target)).returncode == 0
    first = target.read_text(encoding="utf-8")
    again = run("replay", LEAK, "--json", "-o", str(target))
    assert again.returncode == 2
    assert b"--force" in again.stderr
    assert target.read_text(encoding="utf-8") == first
    assert run("replay", LEAK, "--json", "-o", str(target), "--force").returncode == 0


def test_a_fault_of_tenure_itself_exits_with_70(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object, **_options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(commands, "main", broken)
    monkeypatch.setattr(type(commands), "__call__", broken)
    monkeypatch.delenv("TENURE_DEBUG", raising=False)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 70


def test_several_files_give_one_object_a_line() -> None:
    shown = CliRunner().invoke(commands, ["replay", LEAK, OOM, "--json"])
    values = [json.loads(line) for line in shown.output.splitlines()]
    assert [value["file"] for value in values] == [LEAK, OOM]


def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    import pickle

    snapshot = pickle.loads(lzma.decompress(Path(LEAK).read_bytes()))
    for event in snapshot["device_traces"][0]:
        for frame in event["frames"]:
            frame["name"] = "\x1b[31mred\x07"
    file = tmp_path / "evil.pickle"
    file.write_bytes(pickle.dumps(snapshot))
    shown = run("explain", str(file))
    assert b"\x1b" not in shown.stdout
    assert b"\x07" not in shown.stdout
    assert b"?[31mred?" in shown.stdout
