"""How NCCL is set up for a way to sum, and what settings of a run say of it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from gapless.errors import DataError, UserError
from gapless.nmt.run.config import make_config
from gapless.ranks import WayToSum
from gapless.ranks.gradient_sum import summing
from gapless.ranks.group import _group_on
from ranks import way_program


pytestmark = pytest.mark.xdist_group("processes: way to sum")


# Of NCCL, for what nobody chose.
UNDEFINED = -(2**31)


class Options:
    """In the place of `ProcessGroupNCCL.Options`, which only torch for GPUs has."""

    def __init__(self, is_high_priority_stream=False):
        self.is_high_priority_stream = is_high_priority_stream
        self.config = SimpleNamespace(min_ctas=UNDEFINED, max_ctas=UNDEFINED)
        self._timeout = timedelta(minutes=10)


@pytest.fixture
def made(monkeypatch):
    """Return what a group on a device is made with."""

    def call(way):
        given = {}
        monkeypatch.setattr(
            dist, "ProcessGroupNCCL", SimpleNamespace(Options=Options), raising=False
        )
        monkeypatch.setattr(dist, "new_group", lambda **more: given.update(more))
        monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: given.update(first=tensor))
        _group_on(torch.device("meta"), way)
        return SimpleNamespace(**given)

    return call


def test_nccl_is_left_as_it_is(made):
    """Unless a way says otherwise: ordinary priority, as many channels as it wants."""
    options = made(WayToSum(bucket_bytes=1, sends_bf16=True)).pg_options

    assert not options.is_high_priority_stream
    assert (options.config.min_ctas, options.config.max_ctas) == (UNDEFINED, UNDEFINED)


def test_a_way_with_priority_and_few_channels(made):
    """The group has both."""
    options = made(WayToSum(has_priority=True, most_channels=4)).pg_options

    assert options.is_high_priority_stream
    assert (options.config.min_ctas, options.config.max_ctas) == (UNDEFINED, 4)


def test_nccl_has_the_limit_of_its_group_and_connects_at_once(made):
    """Torch warns where limits differ; a capture must not be what connects."""
    group = made(WayToSum())

    assert group.pg_options._timeout == group.timeout
    assert group.device_id == group.first.device


def test_what_settings_say():
    """All of them; by default gradients are summed in one piece, as they are."""
    chosen = make_config(
        {
            "sum": "buckets",
            "sum_bucket_mib": 0.5,
            "sum_precision": "bf16",
            "sum_priority": "high",
            "sum_channels": 8,
        }
    )

    assert make_config({}).way_to_sum() == WayToSum()
    assert chosen.way_to_sum() == WayToSum(
        bucket_bytes=2**19, sends_bf16=True, has_priority=True, most_channels=8
    )
    # Copies have no kernels of NCCL.
    assert replace(chosen, sum="copies").way_to_sum() == WayToSum(
        bucket_bytes=2**19, sends_bf16=True, copies=True
    )


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("sum", "hooks"),
        ("sum_precision", "fp16"),
        ("sum_priority", "low"),
        ("sum_channels", 0),
        ("sum_bucket_mib", -1.0),
    ],
)
def test_a_setting_that_says_nothing(setting, value):
    """It is refused by its name."""
    with pytest.raises((UserError, DataError), match=f"`{setting}` must be"):
        make_config({setting: value})


class Copies(TorchDispatchMode):
    """Counts copies."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += "copy" in str(operation)
        return operation(*args, **kwargs or {})


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (WayToSum(), 0),
        (WayToSum(bucket_bytes=8), 0),
        # There and back.
        (WayToSum(sends_bf16=True), 2),
    ],
)
def test_gradients_that_are_kept_are_not_copied(monkeypatch, way, expected):
    """They are made where they are summed, but for those that are rounded."""
    sent = SimpleNamespace(wait=lambda: None)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: sent)
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
    gradients = summing(weights, way, group=None, last_group=None, agree=lambda value: [value])
    counts = []
    for _ in range(3):
        gradients.start()
        with Copies() as copies:
            sum(weight.sum() for weight in weights).backward()
            gradients.finish()
        counts.append(copies.count)
        for weight in weights:
            weight.grad.zero_()
    gradients.close()

    assert counts[0] > 0
    assert counts[1:] == [expected] * 2


@pytest.mark.parametrize(
    ("most_channels", "expected"),
    [
        (None, ["send 0", "send 1", "send 2", "backward ends", "wait 0", "wait 1", "wait 2"]),
        # Kernels of two groups that run at a time could wait for each other.
        (4, ["send 0", "send 1", "backward ends", "wait 0", "wait 1", "send 2 apart"]),
    ],
)
def test_when_buckets_are_sent(monkeypatch, most_channels, expected):
    """Each during the backward pass; a last one with a group of its own when the others are done."""
    said = []

    def all_reduce(memory, *, group, async_op):
        number = sum(one.startswith("send") for one in said)
        said.append(f"send {number}" + (" apart" if group == "last" else ""))
        return SimpleNamespace(wait=lambda: said.append(f"wait {number}"))

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    way = WayToSum(bucket_bytes=8, most_channels=most_channels)
    last = "some" if way.last == way else "last"
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
    gradients = summing(weights, way, group="some", last_group=last, agree=lambda value: [value])
    for _ in range(2):
        said.clear()
        gradients.start()
        sum(weight.sum() for weight in weights).backward()
        said.append("backward ends")
        gradients.finish()

    assert said[: len(expected)] == expected


# --- in processes ---


def check_way(ended, name, *, captures):
    """Check that weights are those of one process that adds up, as written and captured."""
    ended.check_done()
    for rank in ended.ranks:
        found = json.loads(rank.out)
        graphs = {"graphs": 1} if captures else {"graphs": 0}
        assert found["eager"] == {"bits": found["expected"], "graphs": 0}
        assert found["captured"] == {"bits": found["expected"], **graphs}
        if captures:
            # As the group itself says.
            way = way_program.WAYS[name]
            expected = [way.has_priority, way.most_channels or UNDEFINED]
            if way.last == way:
                assert found["nccl"] == {"main": expected, "beside": None}
            else:
                assert found["nccl"] == {"main": [False, UNDEFINED], "beside": expected}


@pytest.mark.parametrize("world", [1, 2])
def test_a_way_over_gloo(fork, world):
    """Priority and channels mean nothing there; a group of one sums nothing, and parts alone."""
    ended = fork(way_program.__file__, "buckets with priority", world=world).end()

    check_way(ended, "buckets with priority", captures=False)
