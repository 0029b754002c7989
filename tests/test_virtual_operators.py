"""Virtual GPU: rules for operators, and whole scripts whose tensors can be counted by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tenure.cards import card_named
from tenure.virtual import scratch
from tenure.virtual.attentions import Request, choose
from tenure.virtual.card import kernels_of
from tenure.virtual.convolutions import is_channels_last
from tenure.virtual.workspaces import Shape, weight_workspace, workspace
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
        size=source[2:],
        element=element,
        **{"strided": False, "patches": False, "channels_last": False, **more},
    )


def strided(*shape: Any, **more: Any) -> Shape:
    return convolution(*shape, strided=True, **more)


IMAGES_3X3 = convolution((16, 3, 224, 224), (64, 3, 3, 3), (16, 64, 224, 224))
IMAGES_7X7 = strided((4, 3, 960, 1312), (64, 3, 7, 7), (4, 64, 480, 656))
PYRAMID = convolution((4, 256, 336, 328), (256, 256, 3, 3), (4, 256, 336, 328))
PATCHES = strided(
    (48, 3, 224, 224), (768, 3, 16, 16), (48, 768, 14, 14),
    element=2, patches=True, bfloat16=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "recorded"),
    [
        (IMAGES_7X7, 382_931_728),
        (IMAGES_3X3, 0),
        (PATCHES, 56_131_600),
        (convolution((4, 256, 30, 41), (256, 256, 3, 3), (4, 256, 30, 41)), 12_435_472),
        # The last tiles of the result shared out: none, 12 among eleven each, 6 among 18 each.
        (convolution((4, 256, 336, 336), (256, 256, 3, 3), (4, 256, 336, 336)), 927_203_475),
        (PYRAMID, 922_485_491),
        (convolution((4, 256, 168, 164), (256, 256, 3, 3), (4, 256, 168, 164)), 235_143_827),
        (convolution((4, 64, 240, 328), (64, 64, 1, 1), (4, 64, 240, 328)), 0),
        (convolution((4, 2048, 42, 41), (512, 2048, 1, 1), (4, 512, 42, 41)), 70_533_267),
        # A stride makes copies of 1x1 ones too, but a large result is written where it belongs.
        (strided((4, 256, 240, 328), (512, 256, 1, 1), (4, 512, 120, 164)), 322_961_424),
        (strided((4, 512, 120, 164), (1024, 512, 1, 1), (4, 1024, 60, 82)), 241_827_987),
        (strided((24, 160, 50, 67), (64, 160, 1, 1), (24, 64, 25, 34)), 0),
    ],
)
def test_convolutions_take_what_was_recorded(shape: Shape, recorded: int) -> None:
    assert workspace(shape, H200) == pytest.approx(recorded, abs=1000)


def test_gradients_by_images_take_nothing_in_32_bits() -> None:
    assert workspace(IMAGES_7X7, H200, backward=True) == 0


@pytest.mark.parametrize(
    ("shape", "recorded"),
    [
        (PATCHES, 75_006_096),
        (IMAGES_3X3, 0),
        (convolution((4, 512, 120, 164), (256, 512, 1, 1), (4, 256, 120, 164)), 2_097_152),
        # Copies, the weight turned, and as many parts as multiprocessors find a tile of their own.
        (convolution((4, 64, 200, 336), (64, 64, 3, 3), (4, 64, 200, 336)), 139_838_119),
        (strided((4, 128, 240, 272), (128, 128, 3, 3), (4, 128, 120, 136)), 175_964_839),
        (PYRAMID, 912_261_727),
        (strided((4, 256, 200, 336), (512, 256, 1, 1), (4, 512, 100, 168)), 421_266_063),
        # More tiles than multiprocessors.
        (convolution((4, 512, 25, 42), (512, 512, 3, 3), (4, 512, 25, 42)), 35_291_887),
        # Few pixels: Winograd's products.
        (convolution((4, 256, 13, 21), (256, 256, 3, 3), (4, 256, 13, 21)), 16_515_072),
        (convolution((4, 256, 17, 20), (256, 256, 3, 3), (4, 256, 17, 20)), 16_809_984),
        (
            convolution(
                (64, 512, 28, 28), (256, 512, 1, 1), (64, 256, 28, 28),
                element=2, channels_last=True,
            ),
            8_388_608,
        ),
        (
            convolution(
                (64, 128, 28, 28), (128, 128, 3, 3), (64, 128, 28, 28),
                element=2, channels_last=True,
            ),
            3_539_535,
        ),
    ],
)  # fmt: skip
def test_weight_gradients_take_what_was_recorded(shape: Shape, recorded: int) -> None:
    assert weight_workspace(shape, H200) == pytest.approx(recorded, abs=1000)


def test_no_images_take_nothing() -> None:
    none = convolution((0, 256, 14, 14), (256, 256, 3, 3), (0, 256, 14, 14))
    assert workspace(none, H200) == weight_workspace(none, H200) == 0


def test_without_tensor_cores_nothing_is_copied() -> None:
    old = kernels_of(card_named("v100"))
    assert workspace(PYRAMID, old) == weight_workspace(PYRAMID, old) == 0
    assert workspace(replace(PYRAMID, tf32=False), H200) == 0


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


@needs_torch
def test_masks_are_set_in_as_many_places_as_they_were_made_to_be(tmp_path: Path) -> None:
    script = tmp_path / "masks.py"
    script.write_text(
        "import torch\n"
        "ones = torch.ones(5000, device='cuda')\n"
        "unknown = lambda *shape: torch.randn(*shape, 5000, device='cuda') @ ones\n"
        "count = lambda mask: len(torch.where(mask)[0])\n"
        "labels = unknown(2000).long()\n"
        "first = torch.zeros_like(labels, dtype=torch.uint8)\n"
        "second = torch.zeros_like(labels, dtype=torch.uint8)\n"
        "first[torch.where(labels >= 1)[0][:128]] = 1\n"
        "second[torch.where(labels == 0)[0][:384]] = 1\n"
        "print(count(first | second), count(torch.cat([first, second])))\n"
        "print([count(labels == level) for level in (2, 3, 4, 2)])\n"
        "overlaps = unknown(20, 3000)\n"
        "print(count(overlaps == overlaps.max(dim=1, keepdim=True).values))\n"
        "scores = torch.sigmoid(unknown(4, 1000))\n"
        "print(count(scores[1] >= 0.0), count(scores[1] >= 0.5))\n"
        "scores.sub_(1)\n"
        "print(count(scores[1] >= 0.0))\n"
    )
    value, done = run_virtually(tmp_path, script)
    assert done.stdout.splitlines() == ["512 512", "[500, 250, 125, 500]", "20", "1000 500", "500"]
    said = value["verdict"]["assumptions"]
    assert any("each index sets a place of its own" in what for what in said), said


# Each with the most bytes that it allocated at once on an H200 with torch 2.11, its inputs aside.
RECORDED_PEAKS = {
    "torch.fft.fft(complex_waves)": 2 * 16_777_216,
    "torch.fft.rfft(waves)": 2 * 8_388_736,
    "torch.fft.irfft(half, n=131072)": 8_388_608 + 2 * 8_388_736,
    "torch.fft.fftn(images)": 2 * 9_633_792,
    "torch.linalg.inv(matrix)": 3 * 4_194_304,
    "torch.linalg.qr(matrix)": 2 * 4_194_304 + 6_291_584,
    "torch.linalg.eigh(matrix)": 4_194_304 + 17_429_388,
    "torch.linalg.svd(matrix)": 3 * 4_194_304 + 8_675_456,
    "torch.linalg.pinv(matrix)": 3 * 4_194_304 + 8_675_456,
    "torch.cholesky_inverse(matrix)": 2 * 4_194_304,
    "torch.autograd.grad(bags, table, torch.ones_like(bags))": 60_000_016 + 5_120_000,
}


@needs_torch
def test_transforms_and_linear_algebra_take_what_was_recorded(tmp_path: Path) -> None:
    script = tmp_path / "transforms.py"
    script.write_text(
        "import torch\n"
        "waves = torch.randn(16, 131072, device='cuda')\n"
        "complex_waves = waves.to(torch.complex64)\n"
        "half = torch.randn(16, 65537, dtype=torch.complex64, device='cuda')\n"
        "images = torch.randn(8, 3, 224, 224, dtype=torch.complex64, device='cuda')\n"
        "matrix = torch.randn(1024, 1024, device='cuda')\n"
        "table = torch.randn(50000, 128, device='cuda', requires_grad=True)\n"
        "places = torch.randint(0, 50000, (100000,), device='cuda')\n"
        "starts = torch.arange(0, 100000, 10, device='cuda')\n"
        "bags = torch.nn.functional.embedding_bag(places, table, starts, mode='sum')\n"
        f"for line in {list(RECORDED_PEAKS)!r}:\n"
        "    torch.cuda.reset_peak_memory_stats()\n"
        "    before = torch.cuda.memory_stats()['requested_bytes.all.current']\n"
        "    eval(line)\n"
        "    print(torch.cuda.memory_stats()['requested_bytes.all.peak'] - before)\n"
    )
    _, done = run_virtually(tmp_path, script)
    peaks = dict(zip(RECORDED_PEAKS, map(int, done.stdout.split()), strict=True))
    assert peaks == pytest.approx(RECORDED_PEAKS, rel=0.005)


@needs_torch
def test_settings_of_cudnn_are_heeded_or_said_to_be_left_out(tmp_path: Path) -> None:
    script = tmp_path / "settings.py"
    script.write_text(
        "import torch\n"
        "layer = torch.nn.Conv2d(64, 64, 3, padding=1).cuda()\n"
        "images = torch.randn(16, 64, 56, 56, device='cuda')\n"
        "def most():\n"
        "    torch.cuda.reset_peak_memory_stats()\n"
        "    before = torch.cuda.memory_stats()['requested_bytes.all.current']\n"
        "    with torch.no_grad(): layer(images)\n"
        "    print(torch.cuda.memory_stats()['requested_bytes.all.peak'] - before)\n"
        "most()\n"
        "torch.backends.cudnn.benchmark = True\n"
        "torch.backends.cudnn.allow_tf32 = False\n"
        "most()\n"
    )
    value, done = run_virtually(tmp_path, script)
    both = 2 * 16 * 64 * 56 * 56 * 4
    with_copies, without = map(int, done.stdout.split())
    assert without == both // 2
    assert with_copies == pytest.approx(both // 2 + both, rel=0.01)
    assert any("cudnn.benchmark is left out" in what for what in value["verdict"]["decisive"])
