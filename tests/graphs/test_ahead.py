"""Captures ahead of a run: a further kind that runs known code is watched in one run and compared with one."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from gapless.graphs.proof.proof_verdict import ProofRun, Verdict
from gapless.graphs.proof.trial import used_anew
from gapless.graphs.reads.addresses import address_of
from gapless.graphs.reads.touched import TouchWatch
from gapless.graphs.warm_ups import WarmUps
from gapless.loop.train_loop import TrainLoop
from gapless.testing import SimulatedDevice


@pytest.fixture
def device():
    with SimulatedDevice() as device, device.allow_waits():
        yield device


class Training:
    """A step that may do something beside training, given the training and the batch."""

    changes_no_other_objects = True

    def __init__(self, device, beside=None):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 1).to(device.torch_device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05, fused=True)
        self.place, self.beside = device.torch_device, beside
        self.seen, self.masks, self.count = torch.zeros(8, device=self.place), {}, 0

    def step(self, x):
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.beside is not None:
            self.beside(self, x)
        return loss.detach()


def batches(device, sizes):
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(size, 4, generator=draw).to(device.torch_device) for size in sizes]


@pytest.fixture
def num_runs(monkeypatch):
    """Return how many runs were watched, and how many were compared, the replays among them."""
    found, watch, compare = Counter(), WarmUps.run, ProofRun.of

    def note_and_watch(self, *args, **more):
        found["watched"] += 1
        return watch(self, *args, **more)

    def note_and_compare(*args, **more):
        found["compared"] += 1
        return compare(*args, **more)

    monkeypatch.setattr(WarmUps, "run", note_and_watch)
    monkeypatch.setattr(ProofRun, "of", note_and_compare)
    return found


def ahead(training, device, sizes):
    with TrainLoop(plan="captured", device=device) as loop:
        return loop.capture_ahead(
            batches(device, sizes),
            training.step,
            model=training.model,
            optimizer=training.optimizer,
        )


def fills_a_cache(training, x):
    if len(x) not in training.masks:
        training.masks[len(x)] = torch.ones(len(x), device=training.place)
    training.seen.add_(training.masks[len(x)].sum())


def counts_in_a_branch(training, x):
    if len(x) == 5:
        training.count += 1


def test_a_further_kind_is_watched_once_and_compared_with_one_run(device, num_runs):
    """The first kind is watched twice and compared with two."""
    training = Training(device)

    report = ahead(training, device, [3, 5, 6])

    assert report.num_graphs == report.proved == 3
    assert num_runs == {"watched": 2 + 1 + 1, "compared": 3 + 2 + 2}


def test_a_kind_that_fills_a_cache_is_watched_twice(device, num_runs):
    """The second run shows what it reads from then on."""
    training = Training(device, fills_a_cache)

    report = ahead(training, device, [3, 5])

    assert report.num_graphs == 2
    assert num_runs["watched"] == 4


def test_a_write_on_the_host_in_a_further_kind_is_refused(device):
    """As it is where batches come."""
    training = Training(device, counts_in_a_branch)

    report = ahead(training, device, [3, 5])

    assert report.num_graphs == 1
    assert "count" in str(report)


def test_a_difference_from_one_run_is_proved_anew(device, num_runs, monkeypatch):
    """One run may differ by chance: a whole proof decides."""
    verdicts, holds = [], Verdict.holds.fget

    def second_fails(self):
        if self not in verdicts:
            verdicts.append(self)
        return holds(self) and self not in verdicts[1:2]

    monkeypatch.setattr(Verdict, "holds", property(second_fails))
    training = Training(device)

    report = ahead(training, device, [3, 5])

    assert len(verdicts) == 3
    assert report.proved == 2
    assert num_runs == {"watched": 3, "compared": 3 + 2 + 3}


def test_a_tensor_that_a_run_before_has_not_used_is_found(device):
    """What both have used, and what is known besides, is not."""
    shared, other = batches(device, [3, 5])
    looks = [TouchWatch(device) for _ in range(2)]
    for number, look in enumerate(looks):
        with look:
            shared.add_(1.0)
            if number:
                other.sum()

    assert [one.shape for one in used_anew(*looks, set())] == [other.shape]
    assert used_anew(*looks, {address_of(other)}) == used_anew(looks[1], looks[0], set()) == []
