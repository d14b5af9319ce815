"""Nested state as tensors and JSON."""

from __future__ import annotations

import json
import math
import random

import pytest
import torch

from gapless.checkpoint import CheckpointError, pack, unpack


def there_and_back(state):
    tensors, packed = pack(state)
    return unpack(tensors, json.loads(json.dumps(packed)))


def test_plain_state_comes_back_as_it_was():
    """Numbers exactly; tuples, keys that are no text and keys that look like ours as well."""
    state = {
        "a": [1, 2.5, None, True, "x", (1, (2,), [])],
        3: {"<tensor>": "no tensor", (1, "b"): 0.1, None: math.inf, True: -0.0},
        "big": 2**70,
    }

    assert there_and_back(state) == state
    assert math.isnan(there_and_back([math.nan])[0])
    assert there_and_back(random.getstate()) == random.getstate()


def test_the_state_of_an_optimizer_comes_back():
    """An optimizer that loads it goes on with the same bits."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1), betas=(0.9, 0.98))
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()

    found = there_and_back(optimizer.state_dict())

    again = torch.optim.AdamW(model.parameters(), lr=1.0)
    again.load_state_dict(found)
    assert again.param_groups[0]["betas"] == (0.9, 0.98)
    for weight in model.parameters():
        assert torch.equal(again.state[weight]["exp_avg"], optimizer.state[weight]["exp_avg"])


def test_a_tensor_that_occurs_twice_is_kept_once():
    """And two tensors whose places have the same name are kept apart."""
    shared = torch.ones(2)
    tensors, _ = pack([shared, shared])
    state = there_and_back(
        {1: torch.zeros(1), "1": torch.ones(1), "a.b": shared, "a": {"b": -shared}}
    )

    assert len(tensors) == 1
    assert (state[1].item(), state["1"].item()) == (0.0, 1.0)
    assert torch.equal(state["a.b"], -state["a"]["b"])


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", torch.float32])
def test_what_cannot_be_kept_is_named(value):
    """With its place in the state."""
    with pytest.raises(CheckpointError, match=r"a\.0\.b is a "):
        pack({"a": [{"b": value}]})


def test_state_inside_itself():
    """State without an end is refused in one line."""
    state = {}
    state["again"] = [state]

    with pytest.raises(CheckpointError, match="holds itself"):
        pack(state)


def test_a_missing_tensor_is_named():
    """If state and tensors are of two checkpoints."""
    _, packed = pack({"a": torch.ones(1)})

    with pytest.raises(CheckpointError, match="no tensor 'a'"):
        unpack({}, packed)
