"""Places that a step gives other tensors in each call, as a graph finds and leaves them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from gapless.graphs.reads.host_run import KeptPath
from gapless.graphs.reads.value_places import Place
from gapless.graphs.replay.kept_tensors import KeptTensors, place_of
from gapless.graphs.replay.results import Results
from gapless.pipeline.tree.flatten import flatten


def kept(places, *, names=None, plain=(), on_device=lambda tensor: True):
    """Return what keeps the entries of a dictionary."""
    paths = [
        KeptPath(
            Place("dict", places, name, name=name, site="train.py:1"),
            name,
            "train.py:1",
            is_plain=name in plain,
        )
        for name in names or places
    ]
    return KeptTensors(paths, on_device=on_device)


def captured(places, step, **how):
    """Capture a step on places; return what keeps them, and a function that replays it."""
    found = kept(places, **how)
    found.begin_capture()
    graph = step(places)
    found.end_capture(())
    results = Results(flatten(found.left()), inputs=(), others=())
    found.reset()

    def replay():
        found.fill()
        graph()
        found.hand_out(results.own(()))

    return found, replay


def doubles(places):
    """Double what stands in all places; return the same on the memory of now."""
    steps = []
    for name, value in list(places.items()):
        tree = flatten(value)
        doubled = tree.map(lambda tensor: tensor * 2)
        places[name] = doubled.value
        steps += list(zip(doubled.leaves, tree.leaves, strict=True))

    def graph():
        for target, source in steps:
            torch.mul(source, 2, out=target)

    return graph


values = st.recursive(
    st.integers(-9, 9).map(lambda number: torch.tensor([number, 1])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("ab"), inner)
    ),
    max_leaves=5,
)


def plain(value):
    return flatten(value).map(lambda tensor: tensor.clone()).key(), [
        leaf.tolist() for leaf in flatten(value).leaves
    ]


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["h", "c"]), values, min_size=1), st.integers(1, 3))
def test_replays_leave_in_places_what_the_step_would(places, num_replays):
    """Any structures of tensors, each replay going on from the one before."""
    expected = dict(places)
    for _ in range(num_replays):
        doubles(expected)
    _, replay = captured(places, doubles)
    for _ in range(num_replays):
        replay()

    assert {name: plain(value) for name, value in places.items()} == {
        name: plain(value) for name, value in expected.items()
    }


@pytest.fixture
def hidden():
    return {"h": torch.ones(2)}


def test_what_a_place_holds_is_overwritten_by_no_replay(hidden):
    """The loop may keep what it found there, and what the last replay left."""
    first = hidden["h"]
    _, replay = captured(hidden, doubles)
    replay()
    second = hidden["h"]
    replay()

    assert [tensor.tolist() for tensor in (first, second, hidden["h"])] == [
        [1.0, 1.0],
        [2.0, 2.0],
        [4.0, 4.0],
    ]


def test_tensors_that_share_memory_share_it_after_a_replay(hidden):
    """What the loop writes into one of them shows in the other."""

    def step(places):
        graph = doubles({"h": places["h"]})
        places["last"] = {"all": places["h"], "first": places["h"][:1]}
        return graph

    hidden["last"] = {"all": hidden["h"], "first": hidden["h"][:1]}
    _, replay = captured(hidden, step)
    replay()
    hidden["h"].zero_()

    assert hidden["last"]["all"] is hidden["h"]
    assert hidden["last"]["first"].tolist() == [0.0]


def test_after_a_try_the_places_hold_what_they_held(hidden):
    """The same objects, any number of times."""
    first, number = hidden["h"], hidden.setdefault("n", 3)
    found = kept(hidden, plain=["n"])
    for _ in range(2):
        hidden.update(h=torch.zeros(1), n=7)
        found.reset()

        assert hidden["h"] is first
        assert hidden["n"] == number


def test_plain_values_are_put_there_after_each_replay(hidden):
    """Whatever the loop has put there meanwhile."""
    hidden["n"] = 1

    def step(places):
        graph = doubles({"h": places["h"]})
        places["n"] = 5
        return graph

    found, replay = captured(hidden, step, plain=["n"])
    assert hidden["n"] == 1
    hidden["n"] = 9
    assert found.are_alike()
    replay()

    assert hidden["n"] == 5


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(3),
        torch.ones(2, dtype=torch.float64),
        [torch.ones(2)],
        None,
    ],
)
def test_tensors_of_another_kind_are_not_alike(hidden, other):
    """Shape, dtype and structure count; values do not."""
    found, _ = captured(hidden, doubles)
    hidden["h"] = torch.zeros(2)
    assert found.are_alike()
    hidden["h"] = other

    assert not found.are_alike()


def test_a_graph_reads_no_graph_of_gradients(hidden):
    """Its replays cannot run a backward pass into the step before."""
    hidden["h"] = torch.ones(2, requires_grad=True) * 1
    kept(hidden).begin_capture()

    assert not hidden["h"].requires_grad


@pytest.mark.parametrize("value", [[torch.ones(1), object()], torch.ones(1, dtype=torch.int8)])
def test_what_no_graph_can_keep_is_named(value):
    """Unknown objects, and tensors that are not on the device."""
    places = {"h": torch.ones(2), "log": value}
    found = kept(places, on_device=lambda tensor: tensor.dtype is not torch.int8)

    assert place_of(found.objection) == "log (train.py:1)"
    assert kept({"h": torch.ones(2)}).objection is None
