"""A step is captured beside a profiler of Python, or its report says why it is not."""

from __future__ import annotations

import cProfile
import ctypes
import pstats
import sys

import pytest
import torch

import gapless
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import read_back


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


def profiled_calls(device):
    """Call a captured step a few times; return its results and its report."""
    step = gapless.capture(lambda x: x.mul(2.0).sum(), device=device)
    found = []
    for number in range(6):
        x = device.device_buffer(12).view(torch.float32)
        x.fill_(float(number))
        found.append(read_back(device, step(x)).item())
    return found, step.report


EXPECTED = [6.0 * n for n in range(6)]


def test_a_step_is_captured_beside_cprofile(device):
    """The profiler goes on after the calls that gapless had to watch itself."""
    profiler = cProfile.Profile()
    profiler.enable()
    found, report = profiled_calls(device)
    after_it()
    profiler.disable()

    names = {name for _, _, name in pstats.Stats(profiler).stats}
    assert found == EXPECTED
    assert report.num_replays > 0
    assert "after_it" in names


def after_it():
    """Be seen by the profiler."""


class _Counts:
    """What a profiler made in C hands to Python: nothing that can be called."""


@pytest.fixture
def profiler_in_c():
    """Watch this thread as a profiler made in C does; count what it sees."""
    seen = []
    kind = ctypes.PYFUNCTYPE(
        ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
    )
    callback = kind(lambda *_: seen.append(1) or 0)
    ctypes.pythonapi.PyEval_SetProfile(callback, ctypes.py_object(_Counts()))
    yield seen
    sys.setprofile(None)


def test_beside_a_profiler_that_cannot_be_paused_the_report_says_so(device, profiler_in_c):
    """The step runs as written, and the profiler goes on."""
    found, report = profiled_calls(device)
    is_there = type(sys.getprofile()) is _Counts
    sys.setprofile(None)

    assert found == EXPECTED
    assert is_there
    assert (report.num_replays, report.refusal.kind) == (0, "watched_by_mode")
    assert "_Counts" in report.refusal.text
