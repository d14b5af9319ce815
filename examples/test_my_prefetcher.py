"""Test your own prefetcher: one with a bug that most runs hide, and the same one mended."""

import torch

import gapless
from gapless import testing


class MyPrefetcher:
    """Copy the next batch into one of two device buffers while the last one is in use."""

    is_guarded = False

    def __init__(self, loader, device):
        self.loader, self.device = loader, device
        self.stream = device.create_stream()

    def __iter__(self):
        ahead, buffers = None, []
        for number, batch in enumerate(self.loader):
            if number < 2:
                buffers.append(self.like(batch, self.device.device_buffer))
            arriving = self.copy(batch, buffers[number % 2])
            if ahead is not None:
                yield self.hand_out(*ahead)
            ahead = arriving
        if ahead is not None:
            yield self.hand_out(*ahead)

    def copy(self, batch, buffer):
        pinned = self.like(batch, lambda size: self.device.host_buffer(size, pinned=True))
        pinned.copy_(batch)
        if self.is_guarded:
            # Whatever is queued may still read the buffer: the copy comes after it.
            self.device.wait_stream(self.stream, self.device.current_stream())
        with self.device.use_stream(self.stream):
            self.device.copy(buffer, pinned)
        arrived = self.device.create_event()
        self.device.record_event(arrived, self.stream)
        return buffer, arrived

    def hand_out(self, buffer, arrived):
        self.device.wait_event(self.device.current_stream(), arrived)
        return buffer

    def like(self, batch, allocate):
        buffer = allocate(batch.numel() * batch.element_size())
        return buffer.view(batch.dtype).view(batch.shape)


class GuardedPrefetcher(MyPrefetcher):
    is_guarded = True


def check(make):
    """Return a check of the values of a prefetcher, on whatever device it is given."""

    def check_on(device):
        findings = testing.check_prefetcher(make, device=device, num_elements=64)
        assert not findings, findings

    return check_on


def test_the_bug_is_found_without_a_gpu():
    result = testing.simulate(check(MyPrefetcher), seeds=20)

    assert len(result.failures) == result.num_runs
    assert "wait_event on stream 0" in result.failures[0].races


def test_the_mended_one_is_clean_without_a_gpu():
    result = testing.simulate(check(GuardedPrefetcher), seeds=20)

    assert not result.failures, result


def test_the_mended_one_is_right_on_this_machines_device():
    check(GuardedPrefetcher)(gapless.find_device("auto"))


def test_a_training_step_does_not_wait():
    with testing.SimulatedDevice() as device:
        weight = device.device_buffer(4).view(torch.float32).fill_(1.0)
        for batch in gapless.prefetch([torch.ones(1)] * 5, device):
            with gapless.forbid_waits(device):
                weight += 0.1 * batch
