"""tenure.step(): growth is told from noise, tidying is done where it pays, trainers call it."""

from __future__ import annotations

import copy
import gc
import importlib
import itertools
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tenure
from tenure.errors import UsageError
from tenure.live import steps
from tenure.live.runs.pacing import GAP, TRIED, Pace
from tenure.live.runs.stepping import MOST, StepMark, Steps, rise_of

MIB = 1 << 20


def marks(*allocated: int) -> list[StepMark]:
    return [StepMark(i + 1, float(i), size, size) for i, size in enumerate(allocated)]


def test_what_rises_every_step_is_growth_by_so_much_a_step() -> None:
    rise = rise_of(marks(*(100 * MIB + 28 * MIB * i for i in range(25))))
    assert rise is not None
    assert rise.bytes_per_step == 28 * MIB
    assert (rise.first, rise.last) == (3, 25)
    assert rise.total == 28 * MIB * 22


@pytest.mark.parametrize(
    "sizes",
    [
        [1, 3, *[9] * 20],  # optimizer state is born, then level
        [5, 5, *[9, 4, 6] * 6],  # batches of several lengths
        [1, 1, *range(30, 10, -1)],
        [1, 2, 3],  # too few
    ],
    ids=["level", "varying", "falling", "short"],
)
def test_what_levels_off_is_no_growth(sizes: list[int]) -> None:
    assert rise_of(marks(*(size * MIB for size in sizes))) is None


def test_many_steps_are_thinned_out_and_still_show_the_rise() -> None:
    kept = Steps()
    for i in range(5 * MOST):
        kept.mark(float(i), i * MIB, i * MIB)
    assert kept.count == 5 * MOST
    assert len(kept.marks) <= MOST
    rise = rise_of(kept.marks)
    assert rise is not None
    assert rise.bytes_per_step == MIB


@pytest.mark.parametrize(("cost", "every"), [(0.0, 1), (0.005, 1), (0.2, 20)])
def test_lines_are_kept_as_often_as_their_cost_allows(cost: float, every: int) -> None:
    pace, keeps = Pace(), True
    for _ in range(GAP * TRIED + 2):
        keeps = pace.next(0.05 * (1 + cost) if keeps else 0.05)
    assert pace.every == every
    assert sum(pace.next(0.05) for _ in range(100)) == 100 // every


def test_a_slow_drift_of_steps_is_not_taken_for_the_cost_of_lines() -> None:
    pace = Pace()
    for i in range(GAP * TRIED + 2):
        pace.next(0.05 * 1.05**i)
    assert pace.every == 1


class Counter:
    """Stands in for the allocator's counters, and for the clock."""

    def __init__(self) -> None:
        self.allocated = 100 * MIB
        self.pending = 0
        self.now = 0.0

    def __call__(self) -> tuple[int, int, int]:
        return self.allocated, self.allocated, self.pending


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter:
    counter = Counter()
    monkeypatch.setattr(steps, "_counts", counter)
    monkeypatch.setattr("tenure.live.steps.time.perf_counter", lambda: counter.now)
    monkeypatch.setattr(steps._Stepping, "now", steps.Stepper())
    return counter


def test_a_step_says_what_is_live_and_touches_nothing(
    counted: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "collect", lambda: pytest.fail("collected without being asked"))
    for _ in range(10):
        report = tenure.step()
    assert report.number == 10
    assert report.allocated == counted.allocated
    assert report.tidied == ()


def test_growth_is_told_once(counted: Counter, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(200):
        counted.allocated += MIB
        report = tenure.step()
    assert report.rise is not None
    assert report.rise.bytes_per_step == MIB
    assert [r.message for r in caplog.records if "grows 1.00 MiB every step" in r.message]
    assert len(caplog.records) == 1


def test_collecting_that_frees_nothing_is_tried_ever_more_seldom(
    counted: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(steps._Stepping.now.steps.count))
    for _ in range(300):
        counted.now += 0.1
        tenure.step(tidy=True)
    gaps = [b - a for a, b in itertools.pairwise(collected)]
    assert collected
    assert all(later >= earlier for earlier, later in itertools.pairwise(gaps))
    assert len(collected) < 12


def test_collecting_that_frees_much_goes_on(
    counted: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collect() -> None:
        counted.now += 0.002
        counted.allocated = 100 * MIB

    monkeypatch.setattr(gc, "collect", collect)
    freed = 0
    for _ in range(50):
        counted.now += 0.1
        counted.allocated += 10 * MIB
        freed += tenure.step(tidy=True).freed
    assert freed >= 450 * MIB


def test_the_callbacks_import_no_trainer_before_they_are_asked_for() -> None:
    text = (
        "import sys, tenure.live.trainers; "
        "print({'transformers', 'lightning', 'accelerate', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", ["install", "uninstall", "memory_stats", "memory_summary"])
def test_a_name_for_an_allocator_in_process_imports_neither_numpy_nor_the_diagnoses(
    name: str,
) -> None:
    text = (
        f"import sys, tenure; tenure.{name}; "
        "print({'torch', 'numpy', 'tenure.diagnoses', 'tenure.snapshots'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.usefixtures("counted")
def test_the_transformers_callback_marks_a_step() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from tenure.live.trainers import transformers_callback

    callback: Any = transformers_callback()
    callback.on_step_end(None, None, None)
    assert steps._Stepping.now.steps.count == 1


@pytest.mark.usefixtures("counted")
def test_accelerate_marks_a_step_for_each_of_the_optimizers_own() -> None:
    torch: Any = pytest.importorskip("torch", reason="torch is not installed")
    accelerate: Any = pytest.importorskip("accelerate", reason="accelerate is not installed")
    from tenure.live.trainers import watch_accelerate

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = torch.nn.Linear(4, 4)
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for _ in range(2):  # as when a notebook's cell is run again
        watch_accelerate(accelerator)
    for _ in range(8):
        with accelerator.accumulate(net):
            accelerator.backward(net(torch.ones(2, 4)).sum())
            optimizer.step()
            optimizer.zero_grad()
    assert steps._Stepping.now.steps.count == 4


@pytest.mark.usefixtures("counted")
@pytest.mark.filterwarnings("ignore")  # Lightning's own, of PyTorch and of data loaders
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_marks_a_step_for_each_of_the_optimizers_own(
    package: str, tmp_path: Path
) -> None:
    torch: Any = pytest.importorskip("torch", reason="torch is not installed")
    lightning: Any = pytest.importorskip(package, reason=f"{package} is not installed")
    from tenure.live import trainers

    callback = trainers._lightning_class_of(lightning.Callback)(tidy=False)

    class Model(lightning.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self, fails_at: int = -1) -> None:
            super().__init__()
            self.net, self.fails_at = torch.nn.Linear(4, 2), fails_at

        def training_step(self, batch: Any, number: int) -> Any:
            if number == self.fails_at:
                raise RuntimeError("in the middle")
            return self.net(batch[0]).square().sum()

        def validation_step(self, batch: Any, _: int) -> None:
            self.net(batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    batches = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.ones(14, 4)), batch_size=2
    )
    checkpoint = tmp_path / "middle.ckpt"

    def steps_of(model: Any, epochs: int, begin: Path | None = None) -> int:
        before = steps._Stepping.now.steps.count
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            accumulate_grad_batches=4,
            callbacks=[callback],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        try:
            trainer.fit(model, batches, batches, ckpt_path=begin)
        finally:
            found = steps._Stepping.now.steps.count - before
        trainer.save_checkpoint(checkpoint)
        return found

    # Seven batches an epoch: after the fourth, and after the last.
    assert steps_of(Model(), 3) == 6
    assert steps_of(Model(), 2) == 4, "what another trainer counted is none of this one's steps"
    assert steps_of(Model(), 3, begin=checkpoint) == 2
    before = steps._Stepping.now.steps.count
    with pytest.raises(RuntimeError, match="in the middle"):
        steps_of(Model(fails_at=5), 1)
    assert steps._Stepping.now.steps.count == before + 1


@pytest.mark.parametrize(
    ("package", "made"),
    [
        ("transformers", "transformers_callback"),
        ("lightning.pytorch", "lightning_callback"),
        ("pytorch_lightning", "lightning_callback"),
    ],
)
def test_a_callback_goes_to_another_process_without_the_model(package: str, made: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip(package, reason=f"{package} is not installed")
    from tenure.live import trainers

    callback = getattr(trainers, made)(tidy=True)
    callback.log = lambda: None  # Lightning hangs methods of the model on it
    for again in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
        assert type(again) is type(callback)
        assert again.tidy is True
        assert not hasattr(again, "log")


def test_lightnings_callback_is_of_the_package_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from tenure.live import trainers

    installed = {name: ModuleType(name) for name in ("lightning.pytorch", "pytorch_lightning")}
    for name, module in installed.items():
        module.Callback = type(name, (), {})  # type: ignore[attr-defined]
    monkeypatch.setattr(importlib, "import_module", installed.__getitem__)
    for name, module in installed.items():
        for other in installed:
            monkeypatch.delitem(sys.modules, other, raising=False)
        monkeypatch.setitem(sys.modules, name, module)
        assert isinstance(trainers.lightning_callback(), module.Callback)


def test_without_lightning_its_callback_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from tenure.live import trainers

    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match="neither"):
        trainers.lightning_callback()
