"""Virtual GPU: rules for operators, and whole scripts whose tensors can be counted by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tenure.cards import card_named
from tenure.virtual import scratch
from tenure.virtual.attentions import Request, choose
from tenure.virtual.card import kernels_of
from tenure.virtual.convolutions import Shape, is_channels_last, weight_workspace, workspace
from test_virtual import needs_torch, run_virtually

H200 = kernels_of(card_named("h200"))
SCRIPTS = Path(__file__).parent / "virtual_scripts"
NAMES = sorted(p.stem for p in SCRIPTS.glob("*.py") if p.stem != "counting")
MIB = 1 << 20

# --- sizes ---------------------------------------------------------------------------------------


def convolution(
    source: tuple[int, ...], weight: tuple[int, ...], result: tuple[int, ...], **more: Any
) -> Shape:
    element = more.pop("element", 4)
    sizes = [element]
    for shape in (source, weight, result):
        size = element
        for number in shape:
            size *= number
        sizes.append(size)
    return Shape(
        inputs=sizes[1],
        weights=sizes[2],
        outputs=sizes[3],
        batch=source[0],
        channels=source[1],
        filters=result[1],
        groups=more.pop("groups", 1),
        window=weight[2] * weight[3],
        pixels=source[2] * source[3],
        element=element,
        **{"strided": False, "patches": False, "channels_last": False, **more},
    )


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (((4, 3, 960, 1312), (64, 3, 7, 7), (4, 64, 480, 656), True), 382_931_728),
        (((4, 256, 30, 41), (256, 256, 3, 3), (4, 256, 30, 41), False), 12_435_472),
        (((4, 64, 240, 328), (64, 64, 1, 1), (4, 64, 240, 328), False), 0),
    ],
)
def test_convolutions_in_32_bits_copy_to_channels_last_as_recorded(
    shape: Any, expected: int
) -> None:
    *sizes, strided = shape
    assert workspace(convolution(*sizes, strided=strided), H200) == expected


def test_patches_take_what_was_recorded() -> None:
    shape = convolution(
        (48, 3, 224, 224), (768, 3, 16, 16), (48, 768, 14, 14),
        element=2, strided=True, patches=True,
    )  # fmt: skip
    assert workspace(shape, H200) == 56_131_600
    assert weight_workspace(shape, H200) == 75_006_096


def test_weight_gradients_split_their_sum_as_recorded() -> None:
    plain = convolution((4, 512, 120, 164), (256, 512, 1, 1), (4, 256, 120, 164))
    assert weight_workspace(plain, H200) == 2_097_152
    last = convolution(
        (64, 512, 28, 28), (256, 512, 1, 1), (64, 256, 28, 28), element=2, channels_last=True
    )
    assert weight_workspace(last, H200) == 8_388_608


def test_channels_last_is_told_by_strides() -> None:
    assert is_channels_last((2, 3, 4, 5), (60, 1, 15, 3))
    assert not is_channels_last((2, 3, 4, 5), (60, 20, 5, 1))
    assert not is_channels_last((8, 1, 1, 1), (1, 1, 1, 1))


def test_sorts_of_floats_take_what_was_recorded() -> None:
    assert scratch.radix_sort(8881, key=4) == 117_503


def test_selections_take_what_was_recorded() -> None:
    assert scratch.selection(14 * 314_595) == 9_215
    assert scratch.selection(1_258_380) == 3_327
    assert scratch.selection(314_595) == 1_535
    assert scratch.count_sum(314_595) == 21_503


def test_topk_shares_long_rows_among_blocks_as_recorded() -> None:
    assert scratch.shares_rows(4, 236_160)
    assert 4 * scratch.blocks_of_row(4, 236_160, H200) == 740
    assert not scratch.shares_rows(8, 4096)


def test_flash_attention_splits_keys_only_where_queries_are_few() -> None:
    assert scratch.flash_splits(64, H200, queries=512, keys=512, width=64) == 1
    assert scratch.flash_splits(8, H200, queries=1, keys=8192, width=128) > 1


# --- attention -----------------------------------------------------------------------------------


class Shaped:
    """As much of a tensor as the choice of a kernel looks at."""

    def __init__(self, *shape: int, dtype: str = "bfloat16", strided: bool = False) -> None:
        self.shape = shape
        self.dtype = f"torch.{dtype}"
        self.requires_grad = False
        self._last = 2 if strided else 1

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return 1

    def stride(self, _dim: int) -> int:
        return self._last

    def element_size(self) -> int:
        return 4 if self.dtype == "torch.float32" else 2


def chosen(card: str = "h200", mask: Any = None, keys: Any = None, **more: Any) -> str:
    causal, dropout = more.pop("causal", False), more.pop("dropout", 0.0)
    without = more.pop("without", "")
    query = Shaped(2, 8, *more.pop("shape", (128, 64)), **more)
    keys = keys or query
    allowed = frozenset({"cudnn", "flash", "efficient", "math"} - {without})
    request = Request(query, keys, keys, mask, dropout, causal, True, allowed)
    return choose(request, kernels_of(card_named(card)))


def test_attention_is_chosen_as_the_card_would() -> None:
    mask = Shaped(2, 1, 128, 128)
    assert chosen() == "cudnn"
    assert chosen("rtx4090") == chosen("a100") == chosen("rtx5090") == "flash"
    assert chosen("t4") == "math"  # no bfloat16 there
    assert chosen("t4", dtype="float16") == "efficient"
    assert chosen(dtype="float32") == "efficient"
    assert chosen(mask=mask) == "cudnn"
    assert chosen("rtx4090", mask=mask) == "efficient"
    assert chosen(without="cudnn") == "flash"


def test_what_no_fused_kernel_can_do_takes_the_plain_path() -> None:
    grouped = Shaped(2, 2, 128, 64)
    assert chosen(keys=grouped) == "cudnn"
    assert chosen("rtx4090", keys=grouped) == "flash"
    assert chosen("rtx4090", keys=grouped, mask=Shaped(128, 128)) == "math"
    assert chosen("rtx4090", keys=grouped, mask=Shaped(128, 128), without="math") == "cudnn"
    assert chosen(shape=(128, 62)) == "flash"  # padded; cuDNN wants a multiple of 8
    assert chosen(shape=(128, 62), mask=Shaped(128, 128)) == "math"
    assert chosen(shape=(128, 512)) == "efficient"
    assert chosen(strided=True) == "math"
    assert chosen("rtx4090", causal=True, keys=Shaped(2, 8, 256, 64)) == "efficient"
    assert chosen(shape=(1, 64), dropout=0.1, keys=Shaped(2, 8, 128, 64)) == "flash"


# --- scripts -------------------------------------------------------------------------------------

RUN = """
import contextlib, io, json, os, sys
from tenure.virtual import run_script
results = {}
for script in sys.argv[2:]:
    said, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        run = run_script(script, [], "h200", torch_version=(2, 11))
    results[os.path.basename(script)[:-3]] = {
        "code": run.exit_code, "said": said.getvalue(), "complained": complained.getvalue(),
        "peak": run.peak(), "verdict": run.verdict().as_dict(),
    }
with open(sys.argv[1], "w") as file:
    json.dump(results, file)
sys.stdout.flush(); os._exit(0)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every script's run, all in one process: to start PyTorch takes longer than they do."""
    result = tmp_path_factory.mktemp("scripts") / "results"
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(result), *(str(SCRIPTS / f"{name}.py") for name in NAMES)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert result.exists(), done.stderr[-2000:]
    found: dict[str, Any] = json.loads(result.read_text())
    return found


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_a_script_holds_is_what_its_tensors_take(name: str, results: dict[str, Any]) -> None:
    result = results[name]
    assert result["code"] == 0, result["complained"][-1500:]
    *_, line = result["said"].splitlines()
    _, allocated, _, held = line.split()
    # Beside the tensors that the script names only workspaces are left: of cuBLAS, 32 MiB for each
    # thread, and of cuBLASLt, 1 MiB; and cuDNN's state for dropout in an LSTM, 48 KiB for each
    # multiprocessor.
    rest = int(allocated) - int(held) - (49_152 * 132 if name == "language" else 0)
    assert rest % MIB == 0, rest
    assert rest // MIB in {0, 32, 33, 64, 65, 66}, rest
    assert result["peak"]["allocated"] >= int(allocated)


@needs_torch
@pytest.mark.slow
def test_nothing_is_assumed_without_being_said(results: dict[str, Any]) -> None:
    said = results["sampling"]["verdict"]["assumptions"]
    assert any("is chosen" in what for what in said), said
    assert any("finite" in what for what in results["handmade"]["verdict"]["assumptions"])
    assert any("gradients are finite" in w for w in results["scaler"]["verdict"]["assumptions"])


@needs_torch
def test_without_a_compiler_inference_runs_and_training_says_why_not(tmp_path: Path) -> None:
    script = tmp_path / "infers.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout()).cuda()\n"
        "x = torch.randn(8, 64, device='cuda')\n"
        "with torch.no_grad(): print(model(x).shape)\n"
        "model(x).sum().backward()\n"
    )
    none = {"PATH": str(tmp_path), "CXX": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    _, done = run_virtually(tmp_path, script, **none)
    assert done.stdout == "torch.Size([8, 64])\n"
    assert done.returncode == 1
    first, *_, last = done.stderr.splitlines()
    assert first.startswith("tenure: no C++ compiler was found")
    assert last.startswith("RuntimeError: no C++ compiler was found")
