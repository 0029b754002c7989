"""tenure run: the script's behaviour is untouched, and each kind of holder is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from shared_data import ABSENT, SHARED

CASES = SHARED / "cases"
ON_CPU = ("l01", "l02", "l03", "l04", "l05", "l06", "l07", "l08", "l09")
needs_torch = pytest.mark.skipif(
    subprocess.run(
        [sys.executable, "-c", "import importlib.util as u; assert u.find_spec('torch')"],
        capture_output=True,
        check=False,
    ).returncode
    != 0,
    reason="torch is not installed: nothing to watch",
)

SCRIPTS = {
    "holder.graph": """
        import torch
        w = torch.ones(256, 256, requires_grad=True)
        total = 0
        for _ in range(8):
            h = torch.tanh(w @ w)
            total = total + (h * h).mean()
    """,
    "holder.overlap": """
        import torch
        for _ in range(3):
            x = torch.ones(4 << 20)
    """,
    "holder.view": """
        import torch
        batches = [torch.zeros(100_000, 16) for _ in range(4)]
        first_rows = []
        for b in batches:
            first_rows.append(b[:10])
        del batches, b
    """,
    "holder.ctx": """
        import torch
        class Own(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.y = x.clone()
                return ctx.y
            @staticmethod
            def backward(ctx, g):
                return g
        import gc
        gc.disable()
        for _ in range(4):
            Own.apply(torch.ones(1 << 20, requires_grad=True))
    """,
    "holder.list": """
        import torch
        outs = []
        for _ in range(12):
            outs.append(torch.ones(1 << 18))
    """,
    "holder.gc_off": """
        import gc, torch
        gc.disable()
        class Node: pass
        for _ in range(6):
            node = Node(); node.me = node; node.data = torch.ones(1 << 20); del node
    """,
    "": """
        import torch
        net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh(),
                                  torch.nn.Linear(512, 256))
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(6):
            loss = net(torch.ones(512, 256)).square().mean()
            loss.backward(); optimizer.step(); optimizer.zero_grad()
    """,
}


def run(*args: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tenure", "run", *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


def write(folder: Path, text: str) -> str:
    lines = text.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    (folder / "script.py").write_text("\n".join(line[indent:] for line in lines) + "\n")
    return "script.py"


def report(folder: Path, script: str, *args: str) -> dict[str, Any]:
    run("--json", "-o", "report.json", script, *args, cwd=folder)
    value: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return value


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit('words')", 1),
        ("def f():\n    raise ValueError('no')\nf()", 1),
        ("x = (", 1),
        ("print('fine')", 0),
    ],
)
def test_output_errors_and_exit_code_are_pythons_own(text: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(text + "\n")
    plain = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    shown = run("-o", "report.txt", "script.py", cwd=tmp_path)
    assert shown.returncode == plain.returncode == code
    assert shown.stdout == plain.stdout
    assert shown.stderr == plain.stderr


def test_arguments_name_and_file_are_pythons_own(tmp_path: Path) -> None:
    text = """
        import sys, sibling
        print(sys.argv, __name__, __file__, sys.path[0], '__main__' in sys.modules, __spec__)
        print(__builtins__, type(__loader__).__name__, sys.stdin.read())
    """
    write(tmp_path, text)
    (tmp_path / "sibling.py").touch()
    args = ["script.py", "--json", "-o", "x", "cpu"]
    plain = subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
    )
    assert run(*args, cwd=tmp_path).stdout == plain.stdout


MODULES = {
    "package/__init__.py": "",
    "package/__main__.py": "import sys; from .other import x; print(sys.argv, __spec__.name, x)",
    "package/other.py": "x = 1\nif __name__ == '__main__': print(__package__, __file__)",
    "package/broken.py": "x = (",
    "package/leaves.py": "raise SystemExit(4)",
}


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("package", 0),
        ("package.other", 0),
        ("package.leaves", 4),
        ("package.nothing", 1),
        ("nothing", 1),
        ("package.broken", 1),
    ],
)
def test_a_module_runs_as_python_runs_it(module: str, code: int, tmp_path: Path) -> None:
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    args = ["-m", module, "a", "--json"]
    plain = subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    shown = run("--json", "-o", "report.json", *args, cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (plain.returncode, plain.stdout)
    assert shown.returncode == code
    assert shown.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]
    assert json.loads((tmp_path / "report.json").read_text())["file"] == f"-m {module}"


@needs_torch
@pytest.mark.slow
def test_a_thread_that_outlives_the_scripts_last_line_belongs_to_the_run(tmp_path: Path) -> None:
    text = """
        import threading, torch
        def work():
            global x
            go.wait()
            x = torch.ones(1 << 20)
        go = threading.Event()
        threading.Thread(target=work).start()
        threading.Timer(0.3, go.set).start()
    """
    assert report(tmp_path, write(tmp_path, text))["holders"]["live"] == 4 << 20


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import sys; sys.stderr.close(); sys.stdout.close()", 0),
        ("import sys; sys.stderr.close(); sys.exit('words')", 1),
        ("import os; os.close(1); os.close(2)", 0),
        ("import os; os.mkdir('other'); os.chdir('other')", 0),
    ],
    ids=["streams closed", "stderr closed", "files closed", "elsewhere"],
)
def test_what_the_script_does_to_the_process_costs_no_report(
    text: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(text + "\n")
    assert run("-o", "report.txt", "script.py", cwd=tmp_path).returncode == code
    assert (tmp_path / "report.txt").read_text().startswith("tenure: peak")


def test_each_process_of_a_distributed_run_has_a_report_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os; print(os.environ['RANK'])\n")
    for rank in ("0", "1"):
        run("-o", "report.json", "--json", "script.py", cwd=tmp_path, RANK=rank, WORLD_SIZE="2")
    assert sorted(p.name for p in tmp_path.glob("*.json")) == [
        "report.rank0.json",
        "report.rank1.json",
    ]


def test_a_module_that_is_not_named_is_one_line(tmp_path: Path) -> None:
    shown = run("-m", cwd=tmp_path)
    assert (shown.returncode, len(shown.stderr.splitlines())) == (2, 1)


def test_a_missing_script_is_one_line_and_bad_input(tmp_path: Path) -> None:
    shown = run("nothing.py", cwd=tmp_path)
    assert shown.returncode == 3
    assert len(shown.stderr.splitlines()) == 1


@cache
def told(code: str) -> dict[str, Any]:
    """The report on one of the scripts, which runs once."""
    with TemporaryDirectory() as folder:
        return report(Path(folder), write(Path(folder), SCRIPTS[code]))


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("code", SCRIPTS, ids=lambda code: code or "healthy")
def test_each_kind_of_holder_is_named_and_a_healthy_run_has_none(code: str) -> None:
    value = told(code)
    codes = [finding["code"] for finding in value["findings"]]
    assert (code in codes) if code else not codes
    assert sum(row["bytes"] for row in value["holders"]["rows"]) == value["holders"]["live"]
    assert value["missing"] == []


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("code", ["holder.ctx", "holder.view", "holder.list"])
def test_one_cause_is_told_once(code: str) -> None:
    assert [finding["code"] for finding in told(code)["findings"]] == [code]


@needs_torch
@pytest.mark.slow
def test_one_sum_over_a_loop_is_told_once(tmp_path: Path) -> None:
    text = """
        import torch
        model = torch.nn.Linear(400, 400)
        def evaluate():
            total = 0
            for _ in range(100):
                total = total + model(torch.randn(400, 400)).square().mean()
            return total / 100
        print(evaluate() > 0)
    """
    value = report(tmp_path, write(tmp_path, text))
    (finding,) = [one for one in value["findings"] if one["code"] == "holder.graph"]
    assert "total of evaluate" in finding["evidence"][0]


@needs_torch
@pytest.mark.slow
def test_what_rises_every_step_is_named_however_small_a_part_it_is(tmp_path: Path) -> None:
    text = """
        import torch
        big = torch.ones(1 << 23)
        net = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        history = []
        for _ in range(16):
            net(torch.ones(8, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            history.append({"out": torch.ones(1 << 16)})
    """
    value = report(tmp_path, write(tmp_path, text))
    held = next(f for f in value["findings"] if f["code"] == "holder.list")
    assert any("global history[" in line for line in held["evidence"])
    assert value["steps"]["growth_per_step"] == 1 << 18
    assert any(row["site"].endswith("script.py:10 <module>") for row in value["peak"]["by_site"])


@needs_torch
@pytest.mark.slow
def test_tensors_that_only_stand_for_others_hold_nothing(tmp_path: Path) -> None:
    text = """
        import weakref, torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        class Node: pass
        for _ in range(4):
            node = Node(); node.me = node
            with FakeTensorMode():
                node.traced = torch.ones(1 << 20)
            other = Node(); node.weak = weakref.proxy(other); del other
            node.small = torch.ones(1 << 10)
            del node
        x = torch.ones(1 << 20)
    """
    value = report(tmp_path, write(tmp_path, text))
    assert value["missing"] == []
    assert value["peak"]["allocated"] == (4 << 20) + 4 * (4 << 10)
    assert value["findings"] == []


RACES = {
    "stream.race_read": """
        host = device.to("cpu", non_blocking=True)
        host.sum()
    """,
    "stream.host_overwrite": """
        host = torch.ones(1 << 20, pin_memory=True)
        device.copy_(host, non_blocking=True)
        host.fill_(7)
    """,
    "": """
        host = device.to("cpu", non_blocking=True)
        torch.cuda.synchronize()
        host.sum()
    """,
}


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("code", RACES, ids=lambda code: code or "healthy")
def test_the_host_races_with_the_device_without_a_stream_of_the_scripts_own(
    code: str, tmp_path: Path
) -> None:
    begin = """
        import tenure
        gpu = tenure.virtual_gpu("h100")
        gpu.__enter__()
        import torch
        device = torch.ones(1 << 20, device="cuda")
    """
    write(tmp_path, begin.rstrip() + RACES[code])
    value = report(tmp_path, "script.py")
    found = [one["code"] for one in value["findings"] if one["code"].startswith("stream.")]
    assert found == ([code] if code else [])


@needs_torch
@pytest.mark.slow
def test_watching_ends_under_a_mode_of_the_scripts_own_and_leaves_it_on(tmp_path: Path) -> None:
    text = """
        import torch
        from torch.utils.flop_counter import FlopCounterMode
        from tenure.live.runs.watching import Watching
        net, x = torch.nn.Linear(64, 64), torch.ones(4, 64)
        with FlopCounterMode(display=False) as counter:
            net(x)
            assert Watching.now._leave_operations()
            net(x)
        print(counter.get_total_flops(), torch._C._len_torch_dispatch_stack())
    """
    shown = run("-o", "report.txt", write(tmp_path, text), cwd=tmp_path)
    assert shown.stdout.split() == [str(2 * 2 * 4 * 64 * 64), "0"]


@needs_torch
@pytest.mark.slow
def test_a_script_that_leaves_by_os_exit_is_reported(tmp_path: Path) -> None:
    text = """
        import os, torch
        x = torch.ones(1 << 20)
        os._exit(5)
    """
    shown = run("--json", "-o", "report.json", write(tmp_path, text), cwd=tmp_path)
    assert shown.returncode == 5
    assert json.loads((tmp_path / "report.json").read_text())["holders"]["live"] == 4 << 20


@needs_torch
@pytest.mark.slow
def test_a_script_that_asks_for_torch_before_it_imports_it_is_watched(tmp_path: Path) -> None:
    text = """
        import importlib.util
        assert importlib.util.find_spec("torch")
        import torch
        x = torch.ones(1 << 20)
    """
    assert report(tmp_path, write(tmp_path, text))["holders"]["live"] == 4 << 20


def test_a_crash_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    shown = run("script.py", cwd=tmp_path)
    assert shown.returncode == -9
    assert shown.stderr.startswith("tenure: no report: ")
    assert len(shown.stderr.splitlines()) == 1


@pytest.mark.parametrize("option", ["--rules=torch", "--capacity=1GiB", "--torch-version=2.11"])
def test_options_that_would_do_nothing_are_refused(option: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('ran')\n")
    shown = run(option, "script.py", cwd=tmp_path)
    assert shown.returncode == 2
    assert shown.stdout == ""


@needs_torch
@pytest.mark.slow
@pytest.mark.skipif(not CASES.is_dir(), reason=ABSENT)
@pytest.mark.parametrize(
    "case", [p.stem for p in sorted(CASES.glob("l*.py")) if p.stem.startswith(ON_CPU)]
)
def test_the_shared_cases_are_named(case: str, tmp_path: Path) -> None:
    expected = json.loads((CASES / "expected.json").read_text())[case]["codes"]
    value = report(tmp_path, str(CASES / f"{case}.py"), "cpu")
    assert {finding["code"] for finding in value["findings"]} & set(expected)
    assert value["exit_code"] == 0
