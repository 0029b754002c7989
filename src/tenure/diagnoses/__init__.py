"""Evidence into findings, one file per diagnosis."""

from tenure.diagnoses.evidence import Share
from tenure.diagnoses.explaining import Explanation, explain
from tenure.diagnoses.finding import Advice, Finding, Severity, Verified
from tenure.diagnoses.split import Split
from tenure.diagnoses.tuning import Tuning, tune

__all__ = [
    "Advice",
    "Explanation",
    "Finding",
    "Severity",
    "Share",
    "Split",
    "Tuning",
    "Verified",
    "explain",
    "tune",
]
