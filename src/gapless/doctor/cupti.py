"""Let go of CUPTI, the driver's profiling library, when torch's profiler ends.

Torch's profiler leaves CUPTI attached to the process, and each launch costs the host some microseconds
more until the process ends. Asked by `TEARDOWN_CUPTI=1`, it detaches CUPTI when it stops. Before CUDA 13
torch's own compiler forbids that where there are CUDA graphs, since CUPTI crashed when it came back.
Source: `CuptiActivityApi.cpp` of Kineto; `torch/__init__.py`, `_TorchCompileInductorWrapper`.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gapless.device.in_use import cuda_version


if TYPE_CHECKING:
    from collections.abc import Iterator

_VARIABLE = "TEARDOWN_CUPTI"
_FIRST_CUDA = 13

CUPTI_REMAINS = (
    "CUPTI, the driver's profiling library, stays in the process: each launch costs the host some "
    "microseconds more until the script ends; `gapless doctor --stop-after` ends it after the windows."
)


def is_cupti_let_go() -> bool:
    """Whether CUPTI is detached when a profiler stops whose start and stop are in `cupti_let_go`."""
    if _VARIABLE in os.environ:
        return os.environ[_VARIABLE] == "1"
    return int(cuda_version().partition(".")[0] or 0) >= _FIRST_CUDA


@contextmanager
def cupti_let_go() -> Iterator[None]:
    """Ask torch's profiler, started or stopped in the body, to detach CUPTI; the script may forbid it."""
    if _VARIABLE in os.environ or not is_cupti_let_go():
        yield
        return
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)
