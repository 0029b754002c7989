"""Why a script cannot be run without its card, and what to try."""

from __future__ import annotations

from types import TracebackType

from tenure.lifetimes import is_library

# What an error says -> why it came, and what to try; the first that fits holds.
_HINTS = (
    (
        (
            "sparse layout",
            "SparseMeta",
            "got Sparse",
            "Sparse CSR",
            "SparseTensorImpl",
            "SparseCsr",
        ),
        "sparse layouts are not modelled: gather and index_add over the indices take like memory",
    ),
    (
        ("triton", "Triton"),
        (
            "hand-written kernels run on a card only: choose one of PyTorch's own, such as "
            "attn_implementation='sdpa'"
        ),
    ),
    (
        ("NCCL", "nccl", "init_process_group", "torch.distributed", "MASTER_ADDR"),
        "several GPUs are not modelled: run one rank without torch.distributed",
    ),
    (
        (
            *("no fake impl", "UnsupportedOperatorException", "Cannot access data pointer"),
            "with arguments from the 'CUDA' backend",
        ),
        (
            "an operator here needs data that a virtual GPU does not have: put another one in its "
            "place, or, if it is of an extension, give it torch.library.register_fake"
        ),
    ),
    (
        ("data is not allocated yet", "torch.jit"),
        "what is traced here needs data: leave torch.jit out, the model runs as it is",
    ),
    (
        ("shape_env", "NestedTensor"),
        "nested tensors are not modelled: pad the sequences, and give a mask",
    ),
    (
        ("FakeTensor", "data-dependent", "DataDependentOutputException", "DynamicOutputShape"),
        "the result depends on values that nobody computed: give the script fixed sizes here",
    ),
    (
        ("CUDA library", "CUDA functionality", "CUDA build", "Torch not compiled with CUDA"),
        "this asks the CUDA libraries themselves, which are not there: leave it out",
    ),
    (
        ("offline", "HTTPSConnection", "We couldn't connect", "Max retries exceeded"),
        "weights are not needed: build the model from its config (AutoModel.from_config)",
    ),
)


def hint_for(error: BaseException) -> str:
    """Why the error came and what to try; empty where it is the script's own affair."""
    text = f"{type(error).__name__}: {error}"
    return next((hint for words, hint in _HINTS if any(word in text for word in words)), "")


def line_of(error: BaseException) -> str:
    """The innermost line of the script's own code, as `train.py:12`; empty if there is none."""
    place = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not is_library(file):
            place = f"{file.rsplit('/', 1)[-1]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
