"""The names of precisions, apart from `numerics` so that the command line's help needs no torch."""

from __future__ import annotations

from typing import Literal


Precision = Literal["fp32", "tf32", "bf16", "fp16"]
