"""A trace without what its owner may not want to share: file paths, and on request names.

What is public knowledge stays, since diagnoses rest on it: the path of a file of PyTorch or of
another known package from the package's name on, and the names of methods that everybody writes.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tenure.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from numpy.typing import NDArray

    from tenure.traces import Annotation, Stacks, Trace

KINDS = ("paths", "names")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PACKAGES = _words(
    """
    accelerate apex bitsandbytes datasets deepspeed diffusers einops fairscale flash_attn
    functorch ignite ipykernel IPython jax lightning megatron numpy onnx pandas peft pydantic
    pytorch_lightning ray scipy sklearn tenure timm tokenizers torch torchao torchaudio
    torchdata torchmetrics torchrec torchtext torchtitan torchtune torchvision tqdm
    transformer_engine transformers triton trl unsloth vllm xformers
    """
)
# Parts of torch by which a checkout of its source is told.
TORCH_PARTS = _words(
    """
    _C _dynamo _functorch _higher_order_ops _inductor _library _ops.py _tensor.py amp ao
    autograd backends cuda distributed export fft func functional.py fx jit nn optim profiler
    random.py serialization.py storage.py utils
    """
)
METHODS = _words(
    """
    <dictcomp> <genexpr> <lambda> <listcomp> <module> <setcomp> __call__ __enter__ __exit__
    __init__ __iter__ __next__ _apply backward configure_optimizers empty_cache evaluate forward
    load_state_dict loss main reset_parameters run step train training_step wrapper
    """
)
_PACKAGES = re.compile(r"(?:site|dist)-packages$")
_STANDARD = re.compile(r"python3(?:\.\d+)?$")
_PART = r"[\w.+@~-]+"
_PATH = re.compile(
    # from the root or from here, folders may hold spaces; or relative, with an ending
    rf"(?<![\w.)])(?:[A-Za-z]:|~|\.{{1,2}})?[\\/](?:{_PART}(?: {_PART})*[\\/])+(?:{_PART})?"
    rf"|(?<![\w.)]){_PART}(?:[\\/]{_PART})+\.\w{{1,6}}\b"
)
_NO_PATH = re.compile(r"<[\w .-]+>(?:\.\d+)?|\?\?")
_STEP = re.compile(r"(Optimizer\.\w+#).*")


def parse_kinds(text: str) -> tuple[str, ...]:
    """The kinds in text such as `paths` or `paths,names`.

    Raises:
        UsageError: A kind that is none.
    """
    kinds = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    wrong = [kind for kind in kinds if kind not in KINDS]
    if wrong or not kinds:
        raise UsageError(f"--redact {text!r}: say what to leave out: paths, or paths,names")
    return kinds


def redacted(trace: Trace, kinds: Collection[str]) -> Trace:
    """The trace with neutral names, the same ones for the same file each time.

    Args:
        trace: As recorded.
        kinds: `paths`: file paths. `names`: also functions of files that are not public, and
            names of annotations. Text that the user attached to events is dropped in either case.
    """
    stacks = _redacted_stacks(trace.stacks, hide_names="names" in kinds)
    events = replace(trace.events, metadata=np.full_like(trace.events.metadata, -1))
    annotations = _redacted_annotations(trace.annotations, hide_names="names" in kinds)
    notes = tuple(replace(note, text=without_paths(note.text)) for note in trace.notes)
    return replace(trace, stacks=stacks, events=events, annotations=annotations, notes=notes)


def without_paths(text: str) -> str:
    """The text with everything that looks like a path taken out."""
    return _PATH.sub("(path)", text)


def _redacted_stacks(stacks: Stacks, *, hide_names: bool) -> Stacks:
    used = np.unique(stacks.file).tolist()
    public = {index: public_path(stacks.strings[index]) for index in used}
    private = sorted({stacks.strings[index] for index in used if public[index] is None})
    numbers = {path: number for number, path in enumerate(private, 1)}
    table = _Table()
    files = {
        index: table.index(public[index] or neutral_path(path, numbers[path]))
        for index in used
        for path in (stacks.strings[index],)
    }
    hidden: dict[str, int] = {}
    names = np.empty(len(stacks.name), np.int32)
    for i, (file, name) in enumerate(zip(stacks.file.tolist(), stacks.name.tolist(), strict=True)):
        text = without_paths(stacks.strings[name])
        if hide_names and public[file] is None and text not in METHODS:
            text = f"function-{hidden.setdefault(text, len(hidden) + 1)}"
        names[i] = table.index(text)
    return replace(
        stacks,
        file=_mapped(stacks.file.tolist(), files),
        name=names,
        strings=table.strings,
    )


class _Table:
    """Texts, each once."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def index(self, text: str) -> int:
        return self._known.setdefault(text, len(self._known))

    @property
    def strings(self) -> tuple[str, ...]:
        return tuple(self._known)


def _mapped(values: Iterable[int], to: dict[int, int]) -> NDArray[np.int32]:
    return np.array([to[value] for value in values], np.int32)


def public_path(path: str) -> str | None:
    """The part of a path that everybody has, or None if it may tell something.

    Kept are files of known packages, of Python and of torch from the package's name on, and names
    that are no paths, such as `<string>` and `??`.
    """
    parts = re.split(r"[\\/]", path)
    if _NO_PATH.fullmatch(path):
        return path
    for at, part in enumerate(parts[:-1]):
        if _PACKAGES.search(part) and parts[at + 1] in PACKAGES:
            return "/".join(["site-packages", *parts[at + 1 :]])
        module = parts[at + 1].removesuffix(".py")
        if _STANDARD.match(part) and module in sys.stdlib_module_names:
            return "/".join(["python/lib/python3", *parts[at + 1 :]])
        if part == "torch" and parts[at - 1] == "pytorch" and parts[at + 1] in TORCH_PARTS:
            return "/".join(["source", *parts[at:]])
    return None


def neutral_path(path: str, number: int) -> str:
    """A name for a private file that still tells a program from a library, and Python from C++."""
    ending = ".ipynb" if path.endswith(".ipynb") else ".py" if path.endswith(".py") else ".cpp"
    if "site-packages" in path or "dist-packages" in path:
        return f"site-packages/package/file-{number}{ending}"
    return f"file-{number}{ending}"


def _redacted_annotations(
    annotations: tuple[Annotation, ...], *, hide_names: bool
) -> tuple[Annotation, ...]:
    hidden: dict[str, int] = {}
    result = []
    for annotation in annotations:
        name = without_paths(annotation.name)
        step = _STEP.fullmatch(name)
        if hide_names and step:
            name = f"{step[1]}optimizer"
        elif hide_names:
            name = f"annotation-{hidden.setdefault(name, len(hidden) + 1)}"
        result.append(replace(annotation, name=name))
    return tuple(result)
