"""Small snapshots in the formats of several torch versions, and torch's own way to pickle them."""

from __future__ import annotations

import struct
from typing import Any

BASE = 0x7F00_0000_0000
MIB = 1 << 20

Plain = dict[str, Any]


def frame(name: str, line: int) -> Plain:
    return {"name": name, "filename": "/app/train.py", "line": line}


STACK = [frame("linear", 125), frame("forward", 30), frame("<module>", 7)]


def block(address: int, size: int, requested: int, state: str) -> Plain:
    frames = STACK if state != "inactive" else []
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": frames,
    }


def segment(address: int, blocks: list[Plain], **more: object) -> Plain:
    sizes = [b["size"] for b in blocks]
    active = [b for b in blocks if b["state"] != "inactive"]
    return {
        "device": 0,
        "address": address,
        "total_size": sum(sizes),
        "allocated_size": sum(b["size"] for b in blocks if b["state"] == "active_allocated"),
        "active_size": sum(b["size"] for b in active),
        "requested_size": sum(b["requested_size"] for b in active),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": blocks,
        "frames": STACK,
        **more,
    }


def event(action: str, addr: int, size: int, time_us: int, **more: object) -> Plain:
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time_us, **more}


def settings() -> Plain:
    return {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.5,
        "expandable_segments": True,
        "roundup_power2_divisions": {"1": 0, "2": 4},
    }


def torch_2_11() -> Plain:
    """Compile context, metadata, no pool ids in events; two devices, the second idle."""
    notes = {"compile_context": "N/A", "user_metadata": "", "frames": STACK}
    named = {"compile_context": "region 0/1", "user_metadata": "step 3", "frames": STACK[1:]}
    events = [
        event("segment_alloc", BASE, 20 * MIB, 1000, **notes),
        event("alloc", BASE, 5 * MIB - 3, 1001, **named),
        event("alloc", BASE + 5 * MIB, MIB, 1002, **notes),
        event("free_requested", BASE + 5 * MIB, MIB, 1003, **notes),
        {
            "action": "oom",
            "device_free": 1 << 34,
            "size": 1 << 40,
            "stream": 7,
            "time_us": 1004,
            **notes,
        },
        event("snapshot", 0, 6 * MIB, 1005, **notes),
    ]
    blocks = [
        block(BASE, 5 * MIB, 5 * MIB - 3, "active_allocated"),
        block(BASE + 5 * MIB, MIB, MIB, "active_pending_free"),
        block(BASE + 6 * MIB, 14 * MIB, 0, "inactive"),
    ]
    second = segment(BASE - 2 * MIB, [block(BASE - 2 * MIB, 2 * MIB, 9, "inactive")])
    second |= {"segment_type": "small", "segment_pool_id": (0, 3), "is_expandable": True}
    scope = {"name": "step", "stage": "START", "device": 0, "time_us": 1000}
    return {
        "segments": [segment(BASE, blocks, stream=7), second],
        "device_traces": [events, []],
        "allocator_settings": settings(),
        "external_annotations": [scope, {**scope, "stage": "END", "time_us": 2000}],
    }


def torch_2_12() -> Plain:
    """A pool id in each event; no compile context, no metadata."""
    plain = torch_2_11()
    for number, e in enumerate(plain["device_traces"][0]):
        del e["compile_context"], e["user_metadata"]
        e["pool_id"] = (0, number % 2)
    return plain


def torch_2_14() -> Plain:
    """As 2.12, with host memory, annotations in the trace and frames of FX graphs."""
    plain = torch_2_12()
    stack = [{**f, "fx_node_op": "call_function", "fx_node_name": "mm"} for f in STACK]
    note = event("annotate", BASE, 5 * MIB, 1006, pool_id=(0, 0), user_metadata="weights")
    plain["device_traces"][0].append({**note, "frames": stack})
    plain["host_segments"] = [{"anything": [1, 2, 3]}]
    plain["host_traces"] = [[{"action": "alloc"}]]
    return plain


def torch_2_0() -> Plain:
    """Blocks without address, requested size or frames, but with a history; no times, no pools."""
    plain = torch_2_11()
    for s in plain["segments"]:
        for key in ("segment_pool_id", "is_expandable", "frames", "requested_size"):
            del s[key]
        for b in s["blocks"]:
            uses = [{"addr": b["address"], "real_size": b["requested_size"], "frames": STACK}]
            older = {"addr": b["address"], "real_size": 1, "frames": STACK[:1]}
            del b["address"], b["requested_size"], b["frames"]
            if b["state"] != "inactive":
                b["history"] = [*uses, older]
    for e in plain["device_traces"][0]:
        for key in ("time_us", "compile_context", "user_metadata"):
            del e[key]
    del plain["device_traces"][0][0]["frames"]
    del plain["external_annotations"], plain["allocator_settings"]
    return plain


ALL = {f.__name__: f for f in (torch_2_0, torch_2_11, torch_2_12, torch_2_14)}


class TorchPickler:
    """Writes as torch::jit::Pickler does: protocol 2, containers memoized once they are complete.

    _memory_snapshot_pickled() of torch's C++ library makes such files.
    """

    def __init__(self) -> None:
        self._out = bytearray(b"\x80\x02")
        self._memo: dict[object, int] = {}

    def dumps(self, value: object) -> bytes:
        self._push(value)
        return bytes(self._out + b".")

    def _push(self, value: object) -> None:
        if isinstance(value, str):
            self._memoized(value, lambda: self._text(value))
        elif isinstance(value, bool) or value is None:
            self._out += {True: b"\x88", False: b"\x89", None: b"N"}[value]
        elif isinstance(value, int):
            self._integer(value)
        elif isinstance(value, float):
            self._out += b"G" + struct.pack(">d", value)
        else:
            self._memoized(id(value), lambda: self._container(value))

    def _memoized(self, key: object, write: Any) -> None:
        if key in self._memo:
            index = self._memo[key]
            self._out += b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)
            return
        write()
        index = self._memo[key] = len(self._memo)
        self._out += b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index)

    def _text(self, text: str) -> None:
        data = text.encode()
        self._out += b"X" + struct.pack("<I", len(data)) + data

    def _integer(self, number: int) -> None:
        if 0 <= number < 1 << 8:
            self._out += b"K" + bytes([number])
        elif 0 <= number < 1 << 16:
            self._out += b"M" + struct.pack("<H", number)
        elif -(1 << 31) <= number < 1 << 31:
            self._out += b"J" + struct.pack("<i", number)
        else:
            self._out += b"\x8a\x08" + struct.pack("<q", number)

    def _container(self, value: Any) -> None:
        if isinstance(value, dict):
            self._out += b"}"
            items = [x for pair in value.items() for x in pair]
            end = b"u"
        elif isinstance(value, list):
            self._out += b"]"
            items, end = value, b"e"
        else:
            for item in value:
                self._push(item)
            self._out += {0: b")", 1: b"\x85", 2: b"\x86", 3: b"\x87"}[len(value)]
            return
        if not items:
            return
        self._out += b"("
        for item in items:
            self._push(item)
        self._out += end
