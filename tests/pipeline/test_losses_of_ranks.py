"""Losses of several ranks: gathered on the device whenever they are flushed."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from gapless.errors import LossError, RanksDifferError, UserError
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.losses import loss_agreement
from gapless.pipeline.losses.deferred_loss import DeferredLoss
from gapless.testing.simulated.simulated_device import SimulatedDevice


class Ranks:
    """Two ranks, of which the other has twice the values and three times the weights."""

    world = 2

    def __init__(self):
        self.num_gathered = []

    def gather_rows(self, rows):
        self.num_gathered.append(len(rows))
        return torch.stack((rows, rows * rows.new_tensor([2.0, 3.0])))


@pytest.fixture(params=["asap", "lazy"])
def device(request):
    with SimulatedDevice(scheduler=request.param) as device, device.allow_waits():
        yield device
        assert not device.report.races


def on(device, value):
    return device.device_buffer(4).view(torch.float32)[0].fill_(value)


def test_rows_are_gathered_where_they_are_flushed(device):
    """Beyond the end of the ring as well, and those of numbers that were on the host."""
    ranks = Ranks()
    losses = DeferredLoss(device, ranks=ranks)
    for number in range(1500):
        loss = on(device, number) if number % 2 else float(number)
        losses.add(loss, weight=4.0)
    losses.drain()

    assert losses.history == [number * (1 + 2 * 3) / 4 for number in range(1500)]
    assert losses.weights == [16.0] * 1500
    assert ranks.num_gathered == [512, 512, 476]


def test_rows_of_several_streams_are_gathered_together(device):
    """The gathering waits for each of them."""
    ranks = Ranks()
    losses = DeferredLoss(device, ranks=ranks)
    for number in range(6):
        with device.use_stream(device.shared_stream(f"test {number % 3}")):
            losses.add(on(device, number))
    losses.drain()

    assert losses.history == [number * (1 + 2 * 3) / 4 for number in range(6)]
    assert ranks.num_gathered == [6]


def test_what_comes_when_it_may_gathers_nothing(device):
    """A look at the newest loss, and a wait for those that are flushed, happen on one rank alone."""
    ranks = Ranks()
    losses = DeferredLoss(device, ranks=ranks)
    losses.add(on(device, 1.0))
    before = losses.latest()
    losses.flush()
    losses.add(on(device, 2.0))
    losses.wait_for_flushed()
    HostWaits(device).wait_stream(device.current_stream(), reason="test")

    assert before is None
    assert losses.latest().step == 0
    assert losses.history == [7 / 4]
    assert ranks.num_gathered == [1]


class Users(Ranks):
    """The ranks of a user's loop, of which the other has added something else if told so."""

    def __init__(self, **other):
        super().__init__()
        self.other = other
        self.num_agreed = 0

    def agree(self, added):
        self.num_agreed += 1
        is_first_step = not added.num_added
        return [added, added if is_first_step else dataclasses.replace(added, **self.other)]


@pytest.fixture
def users(monkeypatch):
    """Let a user's process group have these ranks."""

    def call(**other):
        ranks = Users(**other)
        monkeypatch.setattr(loss_agreement, "user_ranks", lambda device: ranks)
        return ranks

    return call


def test_ranks_of_a_user_agree_where_the_host_waits_anyway(device, users):
    """At the first step, each mean and each reset, but not where values are sent in between."""
    ranks = users()
    losses = DeferredLoss(device, ranks=True, every=4)
    for _ in range(3):
        for count in range(10):
            losses.add(on(device, float(count)))
        losses.mean()
        losses.mean()
        losses.reset()

    assert ranks.num_agreed == 12
    assert ranks.num_gathered == [1, *[4, 4, 2] * 3]
    assert losses.wait_stats.by_reason["agreement"].count == 12


def test_devices_connect_while_all_ranks_are_at_the_first_step(device, users):
    """A host that connects waits for all: at a later gathering one of them might never come."""
    ranks = users()
    losses = DeferredLoss(device, ranks=True)
    agreed = []
    ranks.gather_rows = lambda rows: (
        agreed.append(ranks.num_agreed) or Users.gather_rows(ranks, rows)
    )
    for _ in range(3):
        losses.add(on(device, 1.0))

    assert (agreed, ranks.num_gathered) == ([1], [1])


def test_a_rank_takes_part_in_what_others_have_queued(device, users):
    """Or their device would wait for ever, and then the error would not reach its user."""
    ranks = users(num_added=9, gathered=((0, 4), (4, 8)))
    losses = DeferredLoss(device, ranks=True, every=4)
    for _ in range(5):
        losses.add(on(device, 1.0))

    with pytest.raises(RanksDifferError, match=r"losses of 5 steps, and rank 1 those of 9"):
        losses.mean()
    assert ranks.num_gathered == [1, 4, 4]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"every": 5}, r"`every` of the losses is None on rank 0 and 5 on rank 1"),
        ({"names": ("cost",)}, r"rank 0 adds a loss by position, and rank 1 adds `cost`"),
        ({"gathered": ((0, 2),)}, r"sent losses 0 times, and rank 1 1 times"),
    ],
)
def test_what_differs_is_said(device, users, other, message):
    users(**other)
    losses = DeferredLoss(device, ranks=True)
    losses.add(on(device, 1.0))

    with pytest.raises(RanksDifferError, match=message):
        losses.mean()


def test_an_error_of_the_loop_waits_for_no_rank(device, users):
    """The others may be anywhere."""
    ranks = users()
    with pytest.raises(ZeroDivisionError), DeferredLoss(device, ranks=True) as losses:
        losses.add(on(device, 1.0))
        raise ZeroDivisionError

    assert ranks.num_agreed == 1
    assert ranks.num_gathered == [1]


def test_a_process_alone_has_no_ranks(device):
    losses = DeferredLoss(device, ranks=True)
    losses.add(on(device, 2.0))

    assert losses.mean() == 2.0
    assert "agreement" not in losses.wait_stats.by_reason


def test_torchrun_without_a_process_group_is_a_mistake(device, monkeypatch):
    place = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    for name, value in place.items():
        monkeypatch.setenv(name, str(value))

    with pytest.raises(UserError, match="init_process_group"):
        DeferredLoss(device, ranks=True)


def test_a_number_of_ranks_is_a_mistake(device):
    """The process group says how many there are."""
    with pytest.raises(LossError, match=r"`ranks` must be True .*, but is 2"):
        DeferredLoss(device, ranks=2)
