"""Updates by the operations of a step alone."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from functools import partial

import pytest
import torch
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import ExponentialLR

import gapless
from gapless.graphs.in_place.capture_in_place import capture_report, release
from gapless.graphs.updates import update_operations
from gapless.graphs.updates.noted_calls import NotedCalls
from gapless.testing.simulated.simulated_device import SimulatedDevice
from optimizer_loops import OptimizerLoop, both


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="lazy") as device, device.allow_waits():
        yield device
    assert device.report.races == []


adamw = partial(AdamW, lr=0.1, fused=True)
foreach_adam = partial(Adam, lr=0.1, foreach=True, amsgrad=True)
momentum = partial(SGD, lr=0.1, momentum=0.9, foreach=True)

# Each with other operations: a first step that makes the state, one that is noted, others.
KINDS = {
    "AdamW, fused": adamw,
    "Adam, fused": partial(
        Adam, lr=0.1, fused=True, amsgrad=True, maximize=True, weight_decay=0.1
    ),
    "AdamW, foreach": partial(AdamW, lr=0.1, foreach=True),
    "Adam, foreach": partial(foreach_adam, weight_decay=0.1),
    "Adam, foreach, maximize": partial(foreach_adam, weight_decay=0.1, maximize=True),
    "SGD": partial(SGD, lr=0.1, foreach=True),
    "SGD, momentum": momentum,
    "SGD, all": partial(momentum, weight_decay=0.1, nesterov=True, maximize=True),
    "SGD, dampening": partial(momentum, weight_decay=0.1, dampening=0.5),
    "SGD, fused": partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
}


def run(loop, num=8, *, rate=0.9):
    """Take steps, each with another rate."""
    loop.run(num, rate=rate)


def counts(loop):
    report = loop.report
    return report.num_replays, report.num_quick, report.num_eager


@pytest.mark.parametrize("name", KINDS)
def test_updates_are_quick_where_the_rate_changes_at_every_step(device, name):
    """The first step shows no change, the second is noted; no graph is captured."""
    loop = both(device, KINDS[name], run)

    assert counts(loop) == (0, 6, 2)
    assert (loop.report.num_graphs, loop.report.refusals) == (0, [])
    assert (
        "0 steps replayed, 2 ran as written; 6 updates by the operations of the step alone"
        in str(loop.report)
    )


@pytest.mark.parametrize("make", [adamw, momentum])
def test_a_graph_gives_way_at_the_first_change(device, make):
    """One rate is in a graph; from the first new one on updates are quick, and its memory is free."""

    def play(loop):
        run(loop, 6, rate=1.0)
        run(loop, 1, rate=0.5)
        run(loop, 6, rate=1.0)

    loop = both(device, make, play)

    assert counts(loop) == (4, 5, 4)
    assert loop.report.num_graphs == 1


def test_counts_on_the_host_are_quick_at_any_rate(device):
    """No graph can hold them."""
    loop = both(device, foreach_adam, partial(run, rate=1.0))

    assert counts(loop) == (0, 6, 2)


def test_an_operation_that_is_another_than_torchs_is_never_called(device, monkeypatch):
    """What `step()` calls is compared with it first; other versions of torch may call something else."""
    called = []

    def other(weights, *_):
        called.append(len(weights))
        torch._foreach_mul_(weights, 0.5)

    way = update_operations._FUSED_ADAM
    other_way = update_operations.Way(other, way.state, is_fused=True)
    monkeypatch.setattr(update_operations, "_FUSED_ADAM", other_way)
    loop = both(device, adamw, partial(run, num=40))

    assert loop.report.num_quick == 0
    assert 0 < len(called) < 20


def test_what_changes_in_every_step_ends_quick_updates(device):
    """To collect takes longer than a step as written."""

    def play(loop):
        for number in range(40):
            run(loop, 1)
            for known in loop.optimizer.state.values():
                known["note"] = torch.tensor(float(number))

    loop = both(device, adamw, play)

    assert counts(loop) == (0, 0, 40)
    assert loop.report.refusals != []


def test_sets_of_weights_in_turns(device):
    """Each is collected once."""

    def play(loop):
        first = loop.weights[0]
        for number in range(24):
            first.requires_grad_(number % 3 != 2)
            loop.count += 1
            for weight in loop.weights:
                weight.grad = torch.full_like(weight, loop.count) if weight.requires_grad else None
            loop.optimizer.step()
            loop.optimizer.param_groups[0]["lr"] *= 0.9
            loop.values.append([weight.tolist() for weight in loop.weights])

    loop = both(device, momentum, play)

    assert counts(loop) == (0, 21, 3)


def test_state_that_is_gone_is_let_go(device):
    """The lists do not keep it beyond the next step."""
    loop = OptimizerLoop(device, momentum)
    run(loop, 4)
    before = weakref.ref(loop.optimizer.state[loop.weights[0]]["momentum_buffer"])
    loop.optimizer.load_state_dict(copy.deepcopy(loop.optimizer.state_dict()))
    run(loop, 1)
    gc.collect()

    assert before() is None


def test_gradients_are_let_go(device):
    """Neither the noted step nor a quick one keeps them."""
    loop = OptimizerLoop(device, adamw)
    for num in (2, 3):
        run(loop, num)
        before = weakref.ref(loop.weights[0].grad)
        loop.optimizer.zero_grad()

        assert before() is None


def test_release_copies_and_files(device):
    """As of any captured optimizer."""
    loop = OptimizerLoop(device, adamw)
    attributes = set(vars(OptimizerLoop(device, adamw, is_captured=False).optimizer))
    run(loop)
    copied, loaded = copy.deepcopy(loop.optimizer), pickle.loads(pickle.dumps(loop.optimizer))
    release(loop.optimizer)

    assert set(vars(loop.optimizer)) == attributes
    for one in (copied, loaded, loop.optimizer):
        assert type(one.step.__self__) is AdamW
        with pytest.raises(gapless.UserError, match="not captured"):
            capture_report(one)


def test_a_scheduler_is_content(device, recwarn):
    """Made before the capture or after it."""
    for captures_first in (True, False):
        loop = OptimizerLoop(device, adamw, is_captured=captures_first)
        scheduler = ExponentialLR(loop.optimizer, 0.9)
        gapless.capture(loop.optimizer, device=device)
        for _ in range(6):
            run(loop, 1, rate=1.0)
            scheduler.step()

        assert loop.report.num_quick == 4
    assert [str(one.message) for one in recwarn] == []


def test_a_profile_has_the_step(device):
    """By the name that it has as written."""
    loop = OptimizerLoop(device, adamw)
    run(loop, 4)
    with torch.profiler.profile() as profile:
        run(loop, 1)

    assert loop.report.num_quick == 3
    assert "Optimizer.step#AdamW.step" in {one.key for one in profile.key_averages()}


# --- calls that are noted ---


def _on_host(tensor):
    return tensor.dim() == 0


def _noted(work):
    with NotedCalls(_on_host) as noted:
        work()
    return noted


ONE, OTHER = torch.ones(3), torch.ones(3)


def _work(tensor=ONE, factor=0.5, number=1.0):
    # Intermediate results count as what they are made of.
    product = torch.mul(tensor, factor)
    torch._foreach_add_([tensor, product], torch.tensor(number), alpha=2.0)


@pytest.mark.parametrize(
    "other",
    [
        partial(_work, tensor=OTHER),
        partial(_work, factor=0.25),
        partial(_work, factor=torch.tensor(0.5)),
        partial(_work, number=2.0),
        lambda: torch.mul(ONE, 0.5),
        lambda: (_work(), torch.mul(ONE, 0.5)),
        lambda: torch.mul(ONE.mul_(1.0), 0.5),
        lambda: (torch.mul(ONE, 0.5), torch._foreach_add_([ONE], torch.tensor(1.0), alpha=2.0)),
    ],
)
def test_other_calls_are_told_apart(other):
    """By operation, tensor, number and order."""
    assert not _noted(_work).are_those_of(other)


def test_equal_calls_are_known_and_do_not_run():
    """What reads numbers of the host may read them in another way."""
    noted, before = _noted(_work), ONE.tolist()

    assert noted.are_those_of(lambda: (torch.tensor(3.0).item(), _work()))
    assert ONE.tolist() == before


def test_a_zero_has_a_sign():
    """Numbers are equal if all of their bits are."""
    assert not _noted(partial(_work, factor=0.0)).are_those_of(partial(_work, factor=-0.0))
