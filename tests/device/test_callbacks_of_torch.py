"""Torch calls back before waits for as long as somebody asks for it, and not a moment longer."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import pytest
import torch
from torch.cuda import _gpu_trace

from gapless.device import torch_private
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


def test_one_begins_while_another_ends(monkeypatch, flag):
    """Whoever begins is called back, also if the other's end was under way."""
    is_ending, may_end = threading.Event(), threading.Event()

    class SlowFlag:
        """Torch's, but it takes its time to become false."""

        @property
        def value(self):
            return flag.value

        @value.setter
        def value(self, value):
            if not value:
                is_ending.set()
                may_end.wait(20)
            flag.value = value

    monkeypatch.setattr(torch_private, "_gpu_trace_flag", SlowFlag)
    forget, begun = call_before_waits(print), []
    ending = threading.Thread(target=forget)
    beginning = threading.Thread(target=lambda: begun.append(call_before_waits(print)))
    ending.start()
    assert is_ending.wait(20)
    beginning.start()
    beginning.join(0.2)
    may_end.set()
    for thread in (ending, beginning):
        thread.join(20)

    assert flag
    begun[0]()
    assert not flag


def test_one_ends_while_the_same_thread_begins(monkeypatch, flag):
    """As where the garbage collector closes a generator that counted."""
    registry = _gpu_trace.EventSynchronizationCallbacks
    forget, add, ended = call_before_waits(print), registry.add_callback, []

    def add_and_collect(callback):
        if not ended:
            ended.append(True)
            forget()
        add(callback)

    monkeypatch.setattr(registry, "add_callback", add_and_collect)
    begun = []
    thread = threading.Thread(target=lambda: begun.append(call_before_waits(print)), daemon=True)
    thread.start()
    thread.join(20)

    assert begun, "a deadlock"
    assert flag
    begun[0]()
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
