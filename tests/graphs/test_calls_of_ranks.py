"""A captured step of a user's own loop that talks to other ranks: all replay it, or none does."""

from __future__ import annotations

import dataclasses
import gc
import sys

import pytest
import torch
import torch.distributed as dist

import gapless
from gapless.graphs.consent import Readiness
from gapless.graphs.ranks import calls_of_ranks
from gapless.testing.simulated.simulated_device import SimulatedDevice
from gapless.testing.simulated.simulation import SimulatedGraph
from toy_steps import Training, batches, read_back


pytestmark = pytest.mark.quick_tests(8)

READY, NOT_YET, NEVER = Readiness.READY, Readiness.NOT_YET, Readiness.NEVER


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


class Users:
    """The ranks of a user's loop: this one, and one that tells the same but for what it is given."""

    world = 2

    def __init__(self, **other):
        self.other = other
        self.told = []
        self.num_collectives = 0
        self.talks = True

    def agree(self, value):
        self.told.append(value)
        if isinstance(value, Readiness):
            return [value, value]
        other = {
            name: found(value) if callable(found) else found for name, found in self.other.items()
        }
        return [value, dataclasses.replace(value, **other)]

    def counts(self):
        """Count one more collective at each look: steps as written talk."""
        self.num_collectives += self.talks
        return {1: (self.world, 0), 2: (2, self.num_collectives)}

    @property
    def calls(self):
        """The calls at which the ranks told each other how far they are."""
        return [one.call for one in self.told if not isinstance(one, Readiness)]


@pytest.fixture
def users(monkeypatch):
    """Let steps talk to these ranks."""

    def call(**other):
        ranks = Users(**other)
        monkeypatch.setattr(calls_of_ranks, "user_ranks", lambda device: ranks)
        monkeypatch.setattr(calls_of_ranks, "collectives_so_far", ranks.counts)
        monkeypatch.setattr(calls_of_ranks, "_CALLS_OPEN", 8)
        monkeypatch.setattr(calls_of_ranks, "_CALLS_BETWEEN", 4)
        return ranks

    return call


def trained(device, data, **settings):
    """Return the captured step, and the bits of the weights after the loop."""
    training = Training(device)
    step = gapless.capture(training.step, device=device, **settings)
    for batch in gapless.prefetch(data, device):
        step(batch)
    return step, [read_back(device, weight) for weight in training.model.parameters()]


def as_written(device, data):
    training = Training(device)
    for batch in gapless.prefetch(data, device):
        training.step(batch)
    return [read_back(device, weight) for weight in training.model.parameters()]


MANY = batches(*[4] * 28)


def test_ranks_that_call_alike_replay(device, users):
    """They ask each other in every call at first, and seldom when nothing is open."""
    ranks = users()
    step, weights = trained(device, MANY)

    assert (step.report.num_graphs, step.report.num_replays) == (1, 25)
    assert ranks.calls == [*range(1, 11), 14, 18, 22, 26]
    assert all(map(torch.equal, weights, as_written(device, MANY)))


def test_a_new_kind_is_captured_where_all_have_seen_it(device, users):
    users()
    data = batches(*[4] * 16, *[5] * 10, *[4] * 4)
    step, weights = trained(device, data)

    assert step.report.num_graphs == 2
    assert step.report.num_replays > 18
    assert all(map(torch.equal, weights, as_written(device, data)))


@pytest.mark.filterwarnings("ignore::gapless.CaptureWarning")
@pytest.mark.parametrize("name", ["calls", "call", "step"])
def test_ranks_that_call_otherwise_replay_nothing(device, users, name):
    """One had another kind, or another call: graphs of different captures would meet."""
    ranks = users(**{name: lambda told: getattr(told, name) + (told.call == 14)})
    step, weights = trained(device, MANY)

    assert ranks.calls[-1] == 14
    assert step.is_refused
    assert [one.kind for one in step.report.refusals] == ["ranks"]
    assert "do not call the step alike" in str(step.report)
    assert step.report.num_replays == 11
    assert all(map(torch.equal, weights, as_written(device, MANY)))


@pytest.mark.filterwarnings("ignore::gapless.CaptureWarning")
@pytest.mark.parametrize("other", [{"readiness": NEVER}, {"gives_up": True}])
def test_one_that_cannot_keeps_all_from_it(device, users, other):
    users(**other)
    step, weights = trained(device, MANY)

    assert step.is_refused
    assert step.report.num_replays == 0
    assert [one.kind for one in step.report.refusals] == ["ranks"]
    assert all(map(torch.equal, weights, as_written(device, MANY)))


def test_all_wait_for_one_whose_warm_up_takes_longer(device, users):
    users(readiness=lambda told: min(told.readiness, NOT_YET if told.call < 10 else READY))
    step, _ = trained(device, MANY)

    assert (step.report.num_graphs, step.report.num_replays) == (1, 17)


@pytest.mark.filterwarnings("ignore::gapless.CaptureWarning")
def test_a_rank_that_cannot_says_so_until_all_know(device, users):
    """It goes on answering: who asks alone waits for ever."""
    ranks = users()
    training = Training(device)

    def reads(batch):
        return training.step(batch) + float(batch.sum()) * 0.0

    step = gapless.capture(reads, device=device)
    for batch in gapless.prefetch(batches(*[3] * 8, *[4] * 8, *[5] * 8, *[6] * 8), device):
        step(batch)

    told = [one for one in ranks.told if not isinstance(one, Readiness)]
    assert step.is_refused
    assert told[-1].gives_up
    assert not any(one.gives_up for one in told[:-1])


@pytest.mark.filterwarnings("ignore::gapless.CaptureWarning")
def test_a_step_that_talks_to_some_is_refused_without_a_question(device, users):
    ranks = users()
    ranks.world = 4
    step, _ = trained(device, MANY)

    assert ranks.told == []
    assert "talks to some of the ranks" in str(step.report)


def test_a_step_that_talks_to_nobody_asks_nobody(device, users):
    """A rank may capture it alone, such as a validation on rank 0."""
    ranks = users()
    ranks.talks = False
    step, _ = trained(device, MANY)

    assert ranks.told == []
    assert step.report.num_replays > 20


def test_a_step_that_one_rank_captures_alone_changes_no_number(device, users):
    """Steps that talk are numbered in the order in which they do, which is that of all ranks."""
    ranks = users()
    trained(device, MANY[:3])
    ranks.talks = False
    trained(device, MANY[:3])  # on this rank alone
    ranks.talks = True
    trained(device, MANY)

    numbers = list(dict.fromkeys(one.step for one in ranks.told if not isinstance(one, Readiness)))
    assert numbers == [numbers[0], numbers[0] + 1]


@pytest.mark.filterwarnings("ignore::gapless.CaptureWarning")
def test_a_step_that_talks_to_all_and_to_some_is_refused_by_all(device, users, monkeypatch):
    """Those that talk to all alone ask, and have to be told."""
    ranks = users()

    def counts():
        ranks.num_collectives += 1
        return {1: (4, ranks.num_collectives), 2: (2, ranks.num_collectives)}

    monkeypatch.setattr(calls_of_ranks, "collectives_so_far", counts)
    step, _ = trained(device, MANY)

    assert len(ranks.told) == 1
    assert ranks.told[0].gives_up
    assert "talks to some of the ranks" in str(step.report)


# --- the end of a process group ---


@pytest.fixture
def group(monkeypatch):
    """A process group of this process alone, which a test ends."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # the group replaces it for good
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def graphs():
    gc.collect()
    return sum(isinstance(one, SimulatedGraph) for one in gc.get_objects())


def test_graphs_are_gone_before_a_process_group_ends(device, group):
    """NCCL would wait for them for ever, though the loop still holds its step; it may go on afterwards."""
    step, _ = trained(device, batches(*[4] * 12))
    num_replays, before = step.report.num_replays, graphs()

    dist.destroy_process_group()

    assert num_replays > 0
    assert before > 0
    assert graphs() == 0
    for batch in gapless.prefetch(batches(*[4] * 12), device):
        step(batch)
    assert step.report.num_replays > num_replays


def test_graphs_outlive_a_group_on_the_host(device, group):
    """No graph holds work of gloo, and other ranks keep theirs."""
    beside = dist.new_group(backend="gloo")
    step, _ = trained(device, batches(*[4] * 12))
    before = graphs()

    dist.destroy_process_group(beside)

    assert graphs() == before > 0
    assert step.report.num_replays > 0


def test_a_graph_without_its_verdict_goes_as_well(device, group):
    """It was captured at the last call before the end."""
    step, _ = trained(device, batches(*[4] * 3))
    num_replays, before = step.report.num_replays, graphs()

    dist.destroy_process_group()

    assert num_replays == 0
    assert before > 0
    assert graphs() == 0
