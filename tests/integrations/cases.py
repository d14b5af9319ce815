"""All cases whose framework is installed: importing this module registers them."""

from __future__ import annotations

from integrations.frameworks import ACCELERATE, LIGHTNING, TRANSFORMERS, is_installed, load
from integrations.harness import FRAMEWORK_CASES


_THEMES = {
    TRANSFORMERS: ("hf_evaluating", "hf_hands_in", "hf_resuming", "hf_training"),
    LIGHTNING: ("lightning_hands_in", "lightning_training"),
    ACCELERATE: ("accelerate_loops",),
}

for _framework, _themes in _THEMES.items():
    if _themes and is_installed(_framework):
        load(_framework, *(f"integrations.{name}" for name in _themes))

CASES = tuple(FRAMEWORK_CASES)
