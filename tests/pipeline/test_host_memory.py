"""Copies within host memory."""

from __future__ import annotations

import _thread
import gc
import signal
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, strategies as st

from gapless.pipeline import host_memory
from gapless.pipeline.host_memory import (
    PART_BYTES,
    Helpers,
    copy_bytes,
    is_plain,
    page_locked_copy,
)
from late_device import LateDevice


SIZES = st.one_of(
    st.integers(0, 300),
    st.builds(
        lambda parts, more: max(0, parts * PART_BYTES + more),
        st.integers(3, 7),
        st.integers(-3, 3),
    ),
)


@given(num_bytes=SIZES, helpers=st.integers(0, 3), offset=st.integers(0, 9))
def test_every_byte_is_copied_and_none_beside(num_bytes, helpers, offset):
    source = torch.randint(0, 256, (num_bytes + 32,), dtype=torch.uint8)
    target = torch.full((num_bytes + 32,), 7, dtype=torch.uint8)

    some = Helpers(helpers) if helpers else None
    copy_bytes(target.data_ptr() + offset, source.data_ptr() + 3, num_bytes, helpers=some)

    assert torch.equal(target[offset : offset + num_bytes], source[3 : 3 + num_bytes])
    assert bool((target[:offset] == 7).all())
    assert bool((target[offset + num_bytes :] == 7).all())


def test_helpers_are_shared_and_end_with_the_last_who_needed_them():
    gc.collect()
    before = set(threading.enumerate())
    one, other = Helpers(), Helpers()
    done = threading.Semaphore(0)
    for helpers in (one, other):
        helpers.begin(done.release, 9)
    for _ in range(18):
        assert done.acquire(timeout=20)
    begun = set(threading.enumerate()) - before
    assert 1 <= len(begun) <= 3
    del one, helpers
    assert begun
    assert all(thread.is_alive() for thread in begun)

    del other
    for thread in begun:
        thread.join(10)
    assert not any(thread.is_alive() for thread in begun)


@pytest.mark.parametrize("num_started", [0, 1])
def test_who_gets_no_more_threads_copies_alone(monkeypatch, num_started):
    """As where the system allows a process no more of them; nothing writes when the copy is done."""
    start, left = threading.Thread.start, [num_started]

    def start_few(thread):
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    gc.collect()
    before = set(threading.enumerate())
    monkeypatch.setattr(threading.Thread, "start", start_few)
    source = torch.arange(4 * PART_BYTES, dtype=torch.int32)
    helpers = Helpers(3)
    for _ in range(2):
        target = torch.zeros_like(source)
        copy_bytes(target.data_ptr(), source.data_ptr(), source.nbytes, helpers=helpers)
        assert len(set(threading.enumerate()) - before) == num_started
        assert torch.equal(target, source)


def test_nobody_writes_after_an_interrupt(monkeypatch):
    """Nor after a second one, which comes while helpers are waited for."""
    is_writing, may_end, under_way = threading.Event(), threading.Event(), [0]

    def memmove(target, source, size):
        if threading.current_thread() is threading.main_thread():
            is_writing.wait(20)
            raise KeyboardInterrupt
        under_way[0] += 1
        is_writing.set()
        may_end.wait(20)
        under_way[0] -= 1

    def interrupt_again():
        is_writing.wait(20)
        time.sleep(0.1)
        _thread.interrupt_main()
        time.sleep(0.1)
        may_end.set()

    monkeypatch.setattr(host_memory, "ctypes", SimpleNamespace(memmove=memmove))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    other = threading.Thread(target=interrupt_again)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            copy_bytes(0, 0, 8 * PART_BYTES, helpers=Helpers(1))
        assert may_end.is_set()
        assert under_way == [0]
    finally:
        may_end.set()
        other.join()
        signal.signal(signal.SIGINT, before)


def test_a_helper_that_begins_after_an_interrupt_finds_nothing_to_do(monkeypatch):
    class LateHelpers(Helpers):
        def begin(self, work, number):
            self.work = work

    written = []

    def memmove(target, source, size):
        if written:
            raise KeyboardInterrupt
        written.append(target)

    monkeypatch.setattr(host_memory, "ctypes", SimpleNamespace(memmove=memmove))
    helpers = LateHelpers(1)
    with pytest.raises(KeyboardInterrupt):
        copy_bytes(0, 0, 8 * PART_BYTES, helpers=helpers)
    helpers.work()

    assert len(written) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_a_copy_has_values_and_strides(dtype):
    values = torch.arange(24).to(dtype).view(2, 3, 4)
    for tensor in (values, values.transpose(0, 2), values[1], values.permute(1, 2, 0)):
        copy = page_locked_copy(tensor, LateDevice(seed=0))
        assert torch.equal(copy, tensor)
        assert copy.stride() == tensor.stride()
        assert copy.data_ptr() != tensor.data_ptr()


def test_what_is_no_plain_range_of_memory():
    values = torch.arange(12.0).view(3, 4)
    complex_values = torch.zeros(3, dtype=torch.complex64)
    others = [
        values[:, ::2],
        values[:1].expand(3, 4),
        values.to_sparse(),
        complex_values.conj(),
        complex_values.conj().imag,
        torch.nn.Parameter(values),
        values.clone().requires_grad_(),
        torch.empty(2, device="meta"),
    ]

    assert all(is_plain(one) for one in (values, values.T, torch.empty(0), torch.tensor(1.0)))
    assert not any(is_plain(one) for one in others)
