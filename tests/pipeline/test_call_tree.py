"""The trees of calls."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st

from gapless.device import torch_private
from gapless.pipeline.step import Call
from gapless.pipeline.tree import call_tree
from gapless.pipeline.tree.call_tree import CallTrees
from gapless.pipeline.tree.flatten import flatten


PLAIN = [
    0,
    1,
    True,
    False,
    0.0,
    -0.0,
    1.0,
    math.nan,
    None,
    "1",
    b"1",
    1j,
    torch.float16,
    (),
    [],
    {},
]

tensors = st.builds(
    lambda size, dtype, turned: torch.zeros(2, size, dtype=dtype).t()[:, : 2 - turned],
    st.integers(0, 3),
    st.sampled_from([torch.float32, torch.int64]),
    st.booleans(),
)
leaves = tensors | st.sampled_from(PLAIN)
names = st.sampled_from(["x", "y", "mask"])
values = st.one_of(
    leaves,
    st.lists(leaves, max_size=2),
    st.lists(leaves, max_size=2).map(tuple),
    st.dictionaries(names | st.sampled_from([0, 1, True]), leaves, max_size=2),
    st.lists(st.lists(leaves, max_size=2), max_size=2),
)
calls = st.tuples(
    st.lists(values, max_size=3).map(tuple), st.dictionaries(names, values, max_size=2)
)


@given(calls)
def test_the_tensors_of_a_call_are_those_of_the_walk(call):
    """In the same order, with what cannot be taken apart, and rebuilt as by the walk."""
    tree, walked = CallTrees().of(*call), flatten(Call(*call))

    assert [*map(id, tree.leaves)] == [*map(id, walked.leaves)]
    assert tree.value == walked.value
    assert tree.unknown == walked.unknown
    moved = tree.map(torch.clone)
    assert flatten(moved.value).structure() == walked.structure()
    assert [leaf.tolist() for leaf in moved.leaves] == [leaf.tolist() for leaf in tree.leaves]


@given(st.lists(calls, min_size=2, max_size=6))
def test_calls_have_one_key_if_they_have_one_by_the_walk(several):
    """Whatever was known before; a key is equal to itself and hashes alike."""
    trees = CallTrees()
    found = [trees.of(*call).key() for call in several for _ in range(2)]
    walked = [flatten(Call(*call)).key() for call in several for _ in range(2)]

    for key, of_walk in zip(found, walked, strict=True):
        alike = [of_walk == other for other in walked]
        assert alike == [key == other for other in found]
        assert all(hash(key) == hash(other) for other in found if key == other)


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(2, 3).double(),
        torch.zeros(3, 2).t(),
        torch.zeros(2, 4),
        torch.zeros(6),
        torch.zeros(2, 3, device="meta"),
    ],
)
def test_tensors_of_another_form_make_another_key(other):
    """Dtypes, strides, shapes and devices; back again the key is the one that was there."""
    trees = CallTrees()
    known = trees.of((torch.zeros(2, 3),), {}).key()

    assert trees.of((other,), {}).key() != known
    assert trees.of((torch.ones(2, 3),), {}).key() is known


def test_a_key_is_the_same_under_other_modes():
    """They are not part of the call."""
    trees = CallTrees()
    tensor = torch.zeros(2, 3)
    known = trees.of((tensor,), {}).key()

    with torch.inference_mode():
        assert trees.of((tensor,), {}).key() == known
    with torch.autocast("cpu"):
        assert trees.of((tensor,), {}).key() == known


def test_what_is_known_is_bounded(monkeypatch):
    """Plain values that are new in every call take no memory without end."""
    monkeypatch.setattr(call_tree, "_MAX_KNOWN", 10)
    trees = CallTrees()
    for number in range(100):
        trees.of((torch.zeros(1), number), {})

    assert len(trees._known) <= 10


def test_without_torchs_comparison_keys_are_the_same(monkeypatch):
    """An older or newer torch may not have it."""
    monkeypatch.setattr(torch_private, "_TensorGuards", None)
    trees = CallTrees()

    keys = [trees.of((torch.zeros(2, size),), {}).key() for size in (3, 3, 4)]

    assert keys[0] == keys[1] != keys[2]
