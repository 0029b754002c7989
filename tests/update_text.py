"""Writes the agreed texts anew: python tests/update_text.py, then read the difference."""

from __future__ import annotations

from shared_data import EXAMPLES, GOLDEN
from tenure.diagnoses import compare, explain
from tenure.reports import comparison_text, explanation_text
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

files = [EXAMPLES / f"{name}.pickle.xz" for name in ("resnet50", "gpt2_varlen")]
comparison = compare(*map(load, files))
(GOLDEN / "text" / "diff_resnet50_gpt2_varlen.txt").write_text(
    comparison_text(comparison, *(file.name for file in files)), encoding="utf-8"
)
