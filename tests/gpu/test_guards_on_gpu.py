"""Every guard of memory, with one side held up on purpose."""

from __future__ import annotations

import gc

import pytest
import torch

import gapless
from gapless.device.find import find_device
from gapless.loop.train_loop import TrainLoop
from gapless.nmt.stream_manager import StreamManager


pytestmark = pytest.mark.gpu

# About 20 ms on any current GPU: longer than everything else in a test together.
_LONG = 40_000_000


def _batches(count, size=1 << 20):
    return [torch.full((size,), float(number)) for number in range(count)]


@pytest.mark.parametrize("depth", [0, 1])
def test_a_batch_let_go_late_is_not_overwritten_early(depth):
    """Work queued on an earlier batch, after the next one was taken, still reads that batch."""
    sums = []
    previous = None
    for batch in gapless.prefetch(_batches(16), "cuda", depth=depth):
        if previous is not None:
            torch.cuda._sleep(_LONG)
            sums.append(previous.view(2, -1).double().mean())
        previous = batch

    assert list(range(15)) == torch.stack(sums).tolist()


def test_memory_stays_that_of_three_batches():
    """The copy of a batch waits on the device for its memory, however far the host is ahead."""
    batches = [torch.ones(1 << 22)] * 100
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for batch in gapless.prefetch(batches, "cuda"):
        torch.cuda._sleep(_LONG // 40)
        batch.mul_(2)

    assert torch.cuda.memory_reserved() - before <= 3.2 * batches[0].nbytes


def test_a_full_loss_ring_keeps_every_loss_in_order():
    """Three thousand losses behind a busy device arrive once each, in order."""
    losses = gapless.DeferredLoss("cuda")
    torch.cuda._sleep(_LONG)
    for number in range(3000):
        losses.add(torch.full((), float(number), device="cuda"))
    losses.drain()

    assert losses.history == [float(number) for number in range(3000)]


def test_a_stream_manager_orders_streams_without_waiting():
    """Events of one stream hold back another, and the host only asks."""
    # CUDA loads a kernel when it is first launched, and waits for the device.
    torch.cuda._sleep(1)
    assert (torch.ones(4, device="cuda") * 7 + 1).tolist() == [8.0] * 4
    with StreamManager("cuda", num_streams=2) as streams:
        event = streams.create_event()
        with streams.use(0):
            torch.cuda._sleep(_LONG)
            value = torch.ones(4, device="cuda") * 7
        streams.record_event(event, 0)
        was_done = streams.query_event(event)
        streams.wait_event(event, 1)
        with streams.use(1):
            copied = value + 1
        streams.synchronize(1)

    assert not was_done
    assert copied.tolist() == [8.0] * 4
    assert streams.stats.by_reason["stream"].count == 1


def test_memory_is_flat_over_many_epochs():
    """Two hundred epochs take no more memory than two."""
    loop = TrainLoop(plan="gapless", device="cuda")
    weight = torch.nn.Parameter(torch.zeros(64, device="cuda"))

    def step(batch):
        loss = (weight * batch).sum()
        loss.backward()
        weight.grad = None
        return loss

    data = [torch.ones(64) for _ in range(10)]
    for _ in range(2):
        loop.run_epoch(data, step)
    before = torch.cuda.memory_reserved()
    for _ in range(200):
        loop.run_epoch(data, step)

    assert before == torch.cuda.memory_reserved()


class Collected(torch.utils.data.Dataset):
    """Its workers collect garbage before they give anything."""

    def __len__(self):
        return 4

    def __getitem__(self, number):
        gc.collect()
        return torch.full((2,), float(number))


def test_a_worker_leaves_its_parents_garbage_alone():
    """A dropped loop, with its pinned memory, graphs and events, does not end forked workers."""
    device = find_device("cuda")

    def leave_garbage():
        model = torch.nn.Linear(2, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1, device="cuda"))

        def step(batch):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        loop = TrainLoop(plan="captured", device=device)
        loop.run_epoch([torch.ones(3, 2) for _ in range(8)], step)
        loop.itself = loop

    gc.disable()
    try:
        for _ in range(3):
            leave_garbage()
        loader = torch.utils.data.DataLoader(Collected(), num_workers=2, timeout=60)
        found = [float(batch[0, 0]) for batch in loader]
    finally:
        gc.enable()

    assert found == [0.0, 1.0, 2.0, 3.0]


def test_no_stream_that_a_user_makes_is_one_of_ours():
    """Torch hands out its streams again and again; a step is captured on nobody else's."""
    device = find_device("cuda")
    names = ("gapless.capture", "gapless.transfer", "gapless.readback")
    ours = {device.shared_stream(name).cuda_stream for name in names}

    users = {torch.cuda.Stream().cuda_stream for _ in range(100)}

    assert len(ours) == len(names)
    assert not ours & users
