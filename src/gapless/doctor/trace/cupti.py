"""CUPTI, the driver's profiling library: which profiler has it, what it says, and letting go of it.

It serves one profiler of a process. What torch's profiler writes to the script's stderr by itself, such as
that it has begun, is kept from it.

Torch's profiler leaves CUPTI attached to the process, and each launch costs the host some microseconds
more until the process ends. Asked by `TEARDOWN_CUPTI=1`, it detaches CUPTI when it stops. Before CUDA 13
torch's own compiler forbids that where there are CUDA graphs, since CUPTI crashed when it came back.
Source: `CuptiActivityApi.cpp` of Kineto; `torch/__init__.py`, `_TorchCompileInductorWrapper`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.device.torch_gpu import cuda_version
from gapless.device.torch_private import is_cupti_monitored, is_profiler_enabled


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_VARIABLE = "TEARDOWN_CUPTI"
_FIRST_CUDA = 13

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

_STDERR = 2

# "WARNING:2026-01-31 12:00:00 17:17 CuptiActivityProfiler.cpp:52] ..."
_OF_THE_PROFILER = re.compile(rb"[A-Z]+:\d{4}-\d\d-\d\d \S+ \d+:\d+ \S+:\d+\]")

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


def running_profiler() -> str:
    """Return the name of the profiler that has this process; empty if none is known to."""
    if is_profiler_enabled():
        return "torch.profiler in the script"
    if is_cupti_monitored():
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


@contextmanager
def profiler_output(said: list[str]) -> Iterator[None]:
    """Put the profiler's lines of the body into a list; lines of others are written out after it."""
    try:
        sys.stderr.flush()
        saved = os.dup(_STDERR)
    except (OSError, ValueError, AttributeError):
        yield  # there is no stderr
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), _STDERR)
        try:
            yield
        finally:
            os.dup2(saved, _STDERR)
            os.close(saved)
            file.seek(0)
            for line in file:
                if _OF_THE_PROFILER.match(line):
                    said.append(line.decode(errors="replace").strip())
                else:
                    _write(line)


def _write(line: bytes) -> None:
    while line:
        line = line[os.write(_STDERR, line) :]
