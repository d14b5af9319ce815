"""What a step leaves on the Python side is put back after a run that is not to count."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from gapless.graphs.proof.python_side import PythonSide
from gapless.graphs.replay.kept_tensors import KeptTensors


NOTHING_KEPT = KeptTensors([], on_device=lambda tensor: True)


def is_double(tensor):
    """Say that a tensor is on the device: those of float64 stand for the host's."""
    return tensor.dtype is not torch.float64


def side(*, gradients=(), optimizers=(), kept=NOTHING_KEPT, on_device=is_double):
    return PythonSide(list(gradients), optimizers, kept, on_device=on_device)


@pytest.fixture
def weight():
    return torch.nn.Parameter(torch.ones(2))


def trained(weight, **options):
    """Return an optimizer with state."""
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, **options)
    weight.grad = torch.ones(2)
    optimizer.step()
    return optimizer


# --- gradients and places ---


def test_gradients_are_the_tensors_they_were(weight):
    """None where there was none; what the run wrote into them is put back by others."""
    other = torch.nn.Parameter(torch.ones(2))
    weight.grad = gradient = torch.ones(2)
    found = side(gradients=[(weight, gradient), (other, None)])
    weight.grad, other.grad = None, torch.zeros(2)
    found.restore()

    assert weight.grad is gradient
    assert other.grad is None


def test_places_hold_what_they_held():
    """Whatever a step has put there."""

    class Places:
        num_resets = 0

        def reset(self):
            self.num_resets += 1

    places = Places()
    side(kept=places).restore()

    assert places.num_resets == 1


# --- optimizers ---


def test_state_that_a_run_has_made_is_gone(weight):
    """The first update makes it, and another one would not be the first."""
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    found = side(optimizers=[optimizer])
    weight.grad = torch.ones(2)
    optimizer.step()
    assert optimizer.state
    found.restore()

    assert not optimizer.state


@pytest.mark.parametrize("num_runs", [1, 3])
def test_a_state_that_is_replaced_is_itself_again(weight, num_runs):
    """Also after several runs, each of which replaces and fills it."""
    optimizer = trained(weight)
    state, entries = optimizer.state[weight], dict(optimizer.state[weight])
    found = side(optimizers=[optimizer])
    for _ in range(num_runs):
        optimizer.state.pop(weight)["step"] = 1
        optimizer.state[weight] = {"other": 2}
        found.restore()
        found.restore()

        assert optimizer.state[weight] is state
        assert state == entries


def test_tensors_on_the_host_have_their_values_again(weight):
    """Steps that an optimizer counts, and rates; those on the device are put back by others."""
    optimizer = trained(weight)
    optimizer.state[weight]["step"] = step = torch.tensor(4.0, dtype=torch.float64)
    optimizer.param_groups[0]["rate"] = rate = torch.tensor(0.1, dtype=torch.float64)
    momentum = optimizer.state[weight]["momentum_buffer"]
    found = side(optimizers=[optimizer])
    for tensor in (step, rate, momentum):
        tensor.add_(1)
    found.restore()

    assert optimizer.state[weight]["step"] is step
    assert (step.item(), rate.item()) == (4.0, 0.1)
    assert momentum.tolist() == [2.0, 2.0]


# --- any changes ---


def put(optimizer, weight, name, value):
    optimizer.state[weight][name] = value


def take_away(optimizer, weight, name, value):
    optimizer.state[weight].pop(name, None)


def add_to(optimizer, weight, name, value):
    found = optimizer.state[weight].get(name)
    if isinstance(found, torch.Tensor):
        found.add_(value)


def replace_the_state(optimizer, weight, name, value):
    optimizer.state[weight] = {name: value}


def forget_the_state(optimizer, weight, name, value):
    optimizer.state.pop(weight, None)


def change_the_group(optimizer, weight, name, value):
    optimizer.param_groups[0][name] = value


CHANGES = [put, take_away, add_to, replace_the_state, forget_the_state, change_the_group]
names = st.sampled_from("abc")
entries = st.dictionaries(
    names,
    st.integers(0, 3)
    | st.integers(0, 3).map(lambda number: torch.tensor(number, dtype=torch.float64)),
)
runs = st.lists(
    st.tuples(st.sampled_from(CHANGES), st.integers(0, 1), names, st.integers(4, 9)), max_size=5
)


def described(optimizer):
    """Return the objects around an optimizer by their ids, and the values of what has any."""
    tables = [optimizer.state, *optimizer.state.values(), *optimizer.param_groups]
    objects = {id(table): {id(key): id(part) for key, part in table.items()} for table in tables}
    values = {
        id(table): {key: float(table[key]) for key in "abc" if key in table} for table in tables
    }
    return objects, values


@settings(deadline=None)
@given(st.lists(entries, min_size=0, max_size=2), entries, st.lists(runs, max_size=3))
def test_any_changes_are_undone_after_each_run(states, group, some):
    """Objects and values are those of before."""
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    optimizer.state.update(zip(weights, states, strict=False))
    optimizer.param_groups[0].update(group)
    before, found = described(optimizer), side(optimizers=[optimizer])
    for run in some:
        for change, number, name, value in run:
            change(optimizer, weights[number], name, value)
        found.restore()

        assert described(optimizer) == before
