"""Which other profiler has this process: CUPTI, the driver's profiling library, serves only one."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Libraries that a tool loads into the process that it watches.
_INJECTED = {
    "libToolsInjection": "Nsight Systems",
    "libQuadDAnalysis": "Nsight Systems",
    "libcuda-injection": "Nsight Compute",
    "libsanitizer-collection": "compute-sanitizer",
    "libproton": "Proton",
}
_NEEDS_RIGHTS = (
    "the driver lets only administrators profile (ERR_NVGPUCTRPERM); see "
    "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
)


def running_profiler() -> str:
    """Return the name of the profiler that has this process; empty if none is known to."""
    if torch._C._autograd._profiler_enabled() or torch.autograd.profiler._is_profiler_enabled:
        return "torch.profiler in the script"
    monitor: Any = sys.modules.get("torch.profiler._cupti_monitor")
    if monitor is not None and monitor.get_monitor() is not None:
        return "torch's CUPTI monitor"
    return injected_tool(_loaded_libraries(), os.environ)


def injected_tool(libraries: Iterable[str], environment: Mapping[str, str]) -> str:
    """Return the name of a tool that was loaded into a process; empty if none was.

    Args:
        libraries: paths of those that the process has loaded.
        environment: of the process.
    """
    for library in libraries:
        for part, tool in _INJECTED.items():
            if part in Path(library).name:
                return tool
    if "NSYS_PROFILING_SESSION_ID" in environment:
        return "Nsight Systems"
    injected = environment.get("CUDA_INJECTION64_PATH", "")
    return f"a tool in CUDA_INJECTION64_PATH ({Path(injected).name})" if injected else ""


def reason_in(lines: Iterable[str]) -> str:
    """Return why CUPTI gave nothing, from what the profiler said; empty if it does not say."""
    text = "\n".join(lines)
    if "MULTIPLE_SUBSCRIBERS" in text:
        return "another profiler holds CUPTI in this process"
    if "INSUFFICIENT_PRIVILEGES" in text:
        return _NEEDS_RIGHTS
    found = re.search(r"CUPTI_ERROR_\w+", text)
    return f"CUPTI says {found.group()}" if found else ""


def _loaded_libraries() -> list[str]:
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []  # only Linux tells
    return list(dict.fromkeys(line.rsplit(" ", 1)[-1] for line in lines if ".so" in line))
