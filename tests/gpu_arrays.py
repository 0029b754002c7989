"""CuPy and Numba on a real GPU under tenure: `python gpu_arrays.py cupy|numba|both [RULES]`.

PyTorch is there in each, since sharing with it is what is looked at. RULES is elastic (the default)
or torch. The last line printed is a JSON object; anything wrong is an exception. What is not
installed is said there under "skipped".
"""

from __future__ import annotations

import importlib
import json
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

import tenure
from tenure import _engine

MIB = 1 << 20
LATE = 20_000_000  # cycles that keep a stream busy
Result = dict[str, Any]

np: Any = importlib.import_module("numpy")
kept: list[Any] = []  # until the process ends: what is alive then must not disturb its end


def blocks() -> dict[int, tuple[Any, ...]]:
    """Live and pending blocks, by address."""
    return {block[1]: block for block in _engine.Live.blocks(0) if block[4] in {1, 2}}


def live_bytes() -> int:
    """Bytes of live blocks, as every counter has to say."""
    allocated = int(torch.cuda.memory_allocated())
    assert allocated == tenure.memory_stats()["allocated_bytes.all.current"]
    assert allocated == sum(block[2] for block in blocks().values() if block[4] == 1)
    return allocated


def takes_over(make: Callable[[int], Any]) -> None:
    """What PyTorch freed the library gets, and the other way round: reserved does not grow."""
    torch.cuda.empty_cache()
    before, size = live_bytes(), 256 * MIB
    x = torch.empty(size, dtype=torch.uint8, device="cuda")
    reserved = torch.cuda.memory_reserved()
    for _ in range(3):
        del x
        array = make(size)
        assert torch.cuda.memory_reserved() == reserved
        assert live_bytes() == before + size
        del array
        x = torch.empty(size, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_reserved() == reserved
    del x
    assert live_bytes() == before


def late_use(make: Callable[[int, int], Any], name: Callable[[Any, Any], None]) -> None:
    """An array that a side stream reads late is not handed out before, once it was told of that.

    `make(elements, value)` is an int32 array on the default stream, `name(array, stream)` says that
    the stream uses it.
    """
    side = torch.cuda.Stream()
    for value in range(1, 20):
        array = make(MIB, value)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(LATE)
            read = torch.as_tensor(array, device="cuda") + 0
        name(array, side)
        del array
        over = [torch.full((MIB,), -1, dtype=torch.int32, device="cuda") for _ in range(4)]
        side.synchronize()
        assert bool((read == value).all().item()), value
        del over, read


def patterns(make: Callable[[random.Random], tuple[Any, int, Any]], seed: int) -> int:
    """Random sizes and streams; each block is looked at before it dies. How many there were.

    `make` gives something that torch.as_tensor takes, what is in it, and the stream of its work.
    """
    generator = random.Random(seed)
    held: list[tuple[Any, int, Any]] = []
    for _ in range(400):
        held.append(make(generator))
        while len(held) > generator.randint(1, 25):
            array, value, stream = held.pop(generator.randrange(len(held)))
            with torch.cuda.stream(stream):
                seen = torch.as_tensor(array, device="cuda")
                assert bool((seen == value).all().item()), value
            del array, seen
    return 400


def by_torch(generator: random.Random) -> tuple[Any, int, Any]:
    value, stream = generator.randint(0, 1 << 30), torch.cuda.current_stream()
    size = int(2 ** generator.uniform(2, 21))
    return torch.full((size,), value, dtype=torch.int32, device="cuda"), value, stream


def ends_clean() -> None:
    """Nothing is left of what this script made."""
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")  # a request: what waited for other streams is noticed
    torch.cuda.empty_cache()
    left = [block for block in blocks().values() if block[4] == 1]
    assert not left, left
    _engine.Live.check(0)
    assert torch.cuda.memory_reserved() == 0, torch.cuda.memory_reserved()


# --- CuPy ----------------------------------------------------------------------------------------


def cupy_streams(cupy: Any) -> None:
    """Memory belongs to CuPy's current stream; a free on it is not reused elsewhere too soon."""
    stream = cupy.cuda.Stream(non_blocking=True)
    same = torch.cuda.ExternalStream(stream.ptr)
    for value in range(1, 20):
        with stream:
            array = cupy.full(MIB, value, dtype=cupy.int32)
            assert blocks()[array.data.ptr][5] == stream.ptr
            with torch.cuda.stream(same):
                torch.cuda._sleep(LATE)
                read = torch.as_tensor(array, device="cuda") + 0
            del array  # on its own stream: no word of it is needed
        over = [cupy.full(MIB, -1, dtype=cupy.int32) for _ in range(4)]
        stream.synchronize()
        assert bool((read == value).all().item()), value
        del read, over


def cupy_exchange(cupy: Any) -> None:
    """One memory under two names: it lives as long as either."""
    before = live_bytes()
    array = cupy.arange(MIB, dtype=cupy.float32)
    tensor = torch.from_dlpack(array)
    assert tensor.data_ptr() == array.data.ptr
    del array
    assert float(tensor.sum(dtype=torch.float64).item()) == MIB * (MIB - 1) / 2
    other = cupy.from_dlpack(tensor)
    del tensor
    assert float(other.astype(cupy.float64).sum().item()) == MIB * (MIB - 1) / 2
    del other
    torch.cuda.synchronize()
    assert live_bytes() == before


def cupy_errors(cupy: Any) -> str:
    """Out of memory is CuPy's own error, with the engine's words, and the process goes on."""
    try:
        cupy.empty(1 << 50, dtype=cupy.uint8)
    except cupy.cuda.memory.OutOfMemoryError as error:
        text = str(error)
    assert "out of memory. Tried to allocate 1048576.00 GiB" in text, text
    assert int(cupy.ones(1000, dtype=cupy.int32).sum().item()) == 1000
    return text.partition("\n")[0]


def with_cupy(cupy: Any) -> Result:
    import tenure.live.cupy as adapter

    adapter.install()
    cupy.empty(1)
    takes_over(lambda n: cupy.empty(n, dtype=cupy.uint8))
    cupy_streams(cupy)

    def name(array: Any, side: Any) -> None:
        adapter.record_stream(array, cupy.cuda.ExternalStream(side.cuda_stream))

    late_use(lambda n, value: cupy.full(n, value, dtype=cupy.int32), name)
    cupy_exchange(cupy)
    error = cupy_errors(cupy)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]

    def make(generator: random.Random) -> tuple[Any, int, Any]:
        if generator.random() < 0.3:
            return by_torch(generator)
        stream, value = generator.choice(streams), generator.randint(0, 1 << 30)
        with stream:
            array = cupy.full(int(2 ** generator.uniform(2, 21)), value, dtype=cupy.int32)
        return array, value, torch.cuda.ExternalStream(stream.ptr)

    checked = in_threads(lambda seed: patterns(make, seed))
    return {"error": error, "checked": checked, "cupy": cupy.__version__}


def in_threads(work: Callable[[int], int]) -> int:
    """The sum of what three threads return; an exception of theirs is raised here."""
    with ThreadPoolExecutor(3) as pool:
        return sum(pool.map(work, range(3)))


# --- Numba ---------------------------------------------------------------------------------------


def numba_kernel(cuda: Any) -> str:
    """A kernel of Numba's own on memory of the engine, if Numba can compile one here."""
    try:

        def double(array: Any) -> None:
            i = cuda.grid(1)
            if i < array.size:
                array[i] *= 2

        array = cuda.to_device(np.arange(1000, dtype=np.int32))
        cuda.jit(double)[8, 128](array)
    except Exception as error:  # noqa: BLE001 -- no compiler here: not what is looked at
        return f"not compiled ({type(error).__name__})"
    assert (array.copy_to_host() == 2 * np.arange(1000)).all()
    return "right"


def with_numba(cuda: Any) -> Result:
    cuda.device_array(1)
    takes_over(lambda n: cuda.device_array(n, dtype=np.uint8))
    kernel = numba_kernel(cuda)
    import tenure.live.numba as adapter

    def name(array: Any, side: Any) -> None:
        adapter.record_stream(array, cuda.external_stream(side.cuda_stream))

    late_use(lambda n, value: cuda.to_device(np.full(n, value, dtype=np.int32)), name)
    own = cuda.stream()

    def make(generator: random.Random) -> tuple[Any, int, Any]:
        if generator.random() < 0.3:
            return by_torch(generator)
        value = generator.randint(0, 1 << 30)
        data = np.full(int(2 ** generator.uniform(2, 19)), value, dtype=np.int32)
        array = cuda.to_device(data, stream=own if generator.random() < 0.5 else 0)
        return array, value, torch.cuda.current_stream()

    checked = patterns(make, 1)
    try:
        cuda.device_array(1 << 50, dtype=np.uint8)
    except cuda.cudadrv.driver.CudaAPIError as error:
        text = str(error)
    assert "out of memory. Tried to allocate 1048576.00 GiB" in text, text
    free, total = cuda.current_context().get_memory_info()
    assert 0 < free < total
    return {"kernel": kernel, "checked": checked, "error": text.partition("\n")[0]}


# --- the whole -----------------------------------------------------------------------------------


def found(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def main(which: str, rules: str = "elastic") -> Result:
    wanted = ("cupy", "numba") if which == "both" else (which,)
    cupy = found("cupy") if "cupy" in wanted else None
    cuda = found("numba.cuda") if "numba" in wanted else None
    tenure.install(rules, quiet=True)
    result: Result = {"rules": rules}
    if cuda is not None:  # before Numba's first use of the device
        importlib.import_module("tenure.live.numba").install()
    if cupy is not None:
        result["cupy"] = with_cupy(cupy)
    if cuda is not None:
        result["numba"] = with_numba(cuda)
    missing = [name for name, module in (("cupy", cupy), ("numba", cuda)) if module is None]
    result["skipped"] = [f"no {name}" for name in missing if name in wanted]
    ends_clean()
    if cupy is not None:
        kept.append(cupy.ones(MIB))
    if cuda is not None:
        kept.append(cuda.device_array(MIB))
    kept.append(torch.ones(MIB, device="cuda"))
    return result


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:3])) + "\n")
