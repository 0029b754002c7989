"""Make, check, save and load placements; the lower bound."""

from tenure.plans.checking import Fault, FaultKind, check
from tenure.plans.files import load, save
from tenure.plans.placement import Buffers, Plan, Streams, buffers_of, graph_buffers
from tenure.plans.planning import plan

__all__ = [
    "Buffers",
    "Fault",
    "FaultKind",
    "Plan",
    "Streams",
    "buffers_of",
    "check",
    "graph_buffers",
    "load",
    "plan",
    "save",
]
