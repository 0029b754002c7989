"""Hypothesis profiles: what `--hypothesis-profile=deep` searches on top of every run."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("deep", max_examples=5000)
