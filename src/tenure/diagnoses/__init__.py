"""Evidence into findings, one file per diagnosis."""

from tenure.diagnoses.budgets import Budget, Verdict, check, read_budget
from tenure.diagnoses.comparing import Change, Comparison, compare
from tenure.diagnoses.device import DeviceUse
from tenure.diagnoses.evidence import Share
from tenure.diagnoses.explaining import Explanation, explain
from tenure.diagnoses.finding import Advice, Confidence, Finding, Severity, Verified
from tenure.diagnoses.split import PoolShare, Split
from tenure.diagnoses.tuning import Tuning, tune

__all__ = [
    "Advice",
    "Budget",
    "Change",
    "Comparison",
    "Confidence",
    "DeviceUse",
    "Explanation",
    "Finding",
    "PoolShare",
    "Severity",
    "Share",
    "Split",
    "Tuning",
    "Verdict",
    "Verified",
    "check",
    "compare",
    "explain",
    "read_budget",
    "tune",
]
