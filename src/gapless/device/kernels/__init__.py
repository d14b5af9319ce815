"""Kernels in Triton; a module of one is imported only where `HAS_TRITON`."""

from __future__ import annotations

import os
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path


def _has_triton() -> bool:
    """Return whether Triton is there, and a C compiler with Python's headers, with which it builds launchers.

    Torch for a CPU or for Windows comes without it. A folder of that name is no Triton.
    """
    found = find_spec("triton")
    compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    # Debian's own scheme of folders has no headers.
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    headers = Path(sysconfig.get_path("include", scheme), "Python.h")
    return (
        found is not None
        and found.origin is not None
        and any(map(shutil.which, compilers))
        and headers.exists()
    )


HAS_TRITON = _has_triton()

# Of heads that `span_attention` is made for and tested with.
HEAD_WIDTHS = (16, 32, 64, 128)
