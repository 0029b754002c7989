"""Writes the agreed texts anew: python tests/update_text.py, then read the difference."""

from __future__ import annotations

from shared_data import EXAMPLES, GOLDEN
from tenure.diagnoses import explain
from tenure.reports import explanation_text
from tenure.snapshots import load

CASES = {
    "gpt2_varlen": None,
    "leak_graph": None,
    "prefetch_streams": None,
    "resnet50": None,
    "llama_lora.limit5.5": int(5.5 * 2**30),
}

for name, capacity in CASES.items():
    text = explanation_text(explain(load(EXAMPLES / f"{name}.pickle.xz"), capacity=capacity))
    (GOLDEN / "text").mkdir(exist_ok=True)
    (GOLDEN / "text" / f"explain_{name}.txt").write_text(text, encoding="utf-8")
