"""Kernels in Triton; a module of one is imported only where `HAS_TRITON`."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec


# Torch for a CPU or for Windows comes without it, and it builds its launchers with a C compiler.
HAS_TRITON = find_spec("triton") is not None and bool(
    os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
)

# Of heads that `span_attention` is made for and tested with.
HEAD_WIDTHS = (16, 32, 64, 128)
