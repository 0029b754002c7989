"""Results into text and JSON; computes no numbers."""

from tenure.reports.comparing import comparison_dict, comparison_text
from tenure.reports.plain import explanation_dict, replay_dict
from tenure.reports.replaying import replay_text
from tenure.reports.text import explanation_text
from tenure.reports.tuning import tuning_dict, tuning_text

__all__ = [
    "comparison_dict",
    "comparison_text",
    "explanation_dict",
    "explanation_text",
    "replay_dict",
    "replay_text",
    "tuning_dict",
    "tuning_text",
]
