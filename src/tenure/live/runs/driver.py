"""What the driver says of a GPU: used bytes, and whose they are."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DeviceUse:
    """A GPU's memory at one moment; the parts add up to `used`.

    Attributes:
        device: Its index in this process.
        total: All of it.
        free: What the driver would give.
        reserved: What this process's allocator holds.
        others: Of other processes; None if it could not be told from the rest.
        neighbours: Processes that use it, this one included; None likewise.
        why: How `others` is known, or why it is not.
    """

    device: int
    total: int
    free: int
    reserved: int
    others: int | None
    neighbours: int | None
    why: str

    @property
    def used(self) -> int:
        """What is in use on the device, by whomever."""
        return self.total - self.free

    @property
    def rest(self) -> int:
        """Context, kernels and libraries; and other processes where they cannot be told."""
        return max(self.used - self.reserved - (self.others or 0), 0)


def device_use(torch: Any, device: int, reserved: int) -> DeviceUse:
    """Asks the driver, and NVML for the processes.

    Raises:
        RuntimeError: The driver does not answer.
    """
    free, total = torch.cuda.mem_get_info(device)
    others, neighbours, why = _others(torch, device)
    if others is not None and others > total - free - reserved:
        others, why = None, "NVML's figures do not fit the driver's"
    return DeviceUse(device, int(total), int(free), reserved, others, neighbours, why)


def _others(torch: Any, device: int) -> tuple[int | None, int | None, str]:
    """Bytes of other processes, how many processes there are, and how that is known."""
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None, None, "not told from other processes: install nvidia-ml-py"
    try:
        pynvml.nvmlInit()
        try:
            handle = _handle(pynvml, torch, device)
            found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        finally:
            pynvml.nvmlShutdown()
    except Exception as error:  # noqa: BLE001  NVML raises its own classes, by version
        return None, None, f"not told from other processes: NVML: {error}"
    sizes = {int(p.pid): p.usedGpuMemory for p in found}
    if len(sizes) <= 1:
        return 0, len(sizes), "NVML shows no other process"
    mine = sizes.pop(os.getpid(), None)
    if mine is None or any(size is None for size in sizes.values()):
        text = f"NVML shows {len(found)} processes, but not which is this one or what each uses"
        return None, len(found), text
    return sum(sizes.values()), len(found), "by NVML"


def _handle(pynvml: Any, torch: Any, device: int) -> Any:
    """NVML's handle of a device: by its name, since CUDA_VISIBLE_DEVICES renumbers them."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is not None:
        name = f"GPU-{uuid}"
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(name)
        except TypeError:
            return pynvml.nvmlDeviceGetHandleByUUID(name.encode())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    index = int(visible[device]) if visible != [""] and visible[device].isdigit() else device
    return pynvml.nvmlDeviceGetHandleByIndex(index)
