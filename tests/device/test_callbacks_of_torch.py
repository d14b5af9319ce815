"""Torch calls back before waits for as long as somebody asks for it, and not a moment longer."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from torch.cuda import _gpu_trace

from gapless.device.cuda_waits import call_before_waits


@pytest.fixture
def flag():
    """Torch's own, which decides whether it looks for callbacks."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    return ctypes.c_bool.in_dll(library, "_ZN3c104impl8GPUTrace9haveStateE")


def test_torch_calls_back_until_it_is_forgotten(flag):
    """And again for whoever comes later."""
    assert not flag
    for _ in range(2):
        heard = []
        forget = call_before_waits(heard.append)
        _gpu_trace.EventSynchronizationCallbacks.fire_callbacks(1)
        assert flag
        forget()

        assert not flag
        assert heard == ["event synchronize"]


def test_the_last_one_ends_it(flag):
    one, other = call_before_waits(print), call_before_waits(print)
    one()
    assert flag
    other()
    assert not flag


def test_callbacks_of_others_go_on(flag):
    """Such as those of torch's own sanitizer, which sees no waits alone."""
    registry = _gpu_trace.MemoryAllocationCallbacks
    forget = call_before_waits(print)
    registry.add_callback(print)
    forget()
    try:
        assert flag
    finally:
        registry.callback_list.remove(print)
        call_before_waits(print)()
    assert not flag
