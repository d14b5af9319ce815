"""What a step does to its batch is done again to another batch."""

from __future__ import annotations

import copy
from collections import ChainMap, UserDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from gapless.graphs.replay.batch_changes import BatchWatch
from gapless.graphs.replay.results import Results
from gapless.pipeline.tree.flatten import flatten


@dataclass
class Pair:
    """A batch with names."""

    first: Any
    second: Any = None


class Named(dict):
    """A dictionary with attributes."""


def apply(changes, other, *, inputs, others=()):
    """Change another batch as the captured one was changed, whose tensors were these."""
    tree = flatten(other)
    put = Results(flatten(changes.put), inputs=inputs, others=others)
    changes.apply(tree, put.own(tree.leaves))


def changed_again(make, change):
    """Return two batches: one that a function has changed, and one that was changed likewise."""
    batch, other = make(), make()
    tree = flatten(batch)
    watch = BatchWatch(tree)
    change(batch)
    apply(watch.changes(), other, inputs=tree.leaves)
    return batch, other


def plain(value):
    """Return a batch as plain values, each tensor with its number in the order of first use."""
    numbers = {}

    def walk(part):
        if isinstance(part, torch.Tensor):
            return (numbers.setdefault(id(part), len(numbers)), part.tolist())
        if isinstance(part, Pair):
            return ("Pair", walk(vars(part)))
        if isinstance(part, dict):
            return (type(part).__name__, [(key, walk(inner)) for key, inner in part.items()])
        if isinstance(part, list | tuple):
            return (type(part).__name__, [walk(inner) for inner in part])
        return part

    return walk(value)


# --- any changes of any batch ---


batches = st.recursive(
    st.lists(st.integers(0, 9), min_size=1, max_size=3).map(torch.tensor)
    | st.sampled_from([1, "text", None]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=6,
)


def all_containers(value):
    """Return the containers of a batch that can be changed, from the outside in."""
    found = [value] if isinstance(value, list | dict | Pair) else []
    parts = vars(value) if isinstance(value, Pair) else value
    if isinstance(parts, list | tuple | dict):
        for part in list(parts.values()) if isinstance(parts, dict) else parts:
            found += all_containers(part)
    return found


def tensors_of(value):
    return flatten(value).leaves


def add_a_tensor(batch, container, number):
    put(container, torch.full((2,), number))


def add_a_plain_value(batch, container, number):
    put(container, number)


def add_what_is_there(batch, container, number):
    """Put a tensor of the batch where it was not."""
    found = tensors_of(batch)
    if found:
        put(container, found[number % len(found)])


def add_a_view(batch, container, number):
    """Put a view of a tensor of the batch there, which may have been put there before."""
    found = tensors_of(batch)
    if found:
        put(container, found[number % len(found)][:1])


def add_a_structure(batch, container, number):
    """Put a new container there, around a tensor of the batch and a new one."""
    found = tensors_of(batch)
    put(container, (found[: number % 2], {"new": torch.zeros(1)}, "text"))


def put(container, value):
    if isinstance(container, list):
        container.append(value)
    elif isinstance(container, dict | UserDict):
        container["new"] = value
    else:
        container.second = value


def take_away(batch, container, number):
    if isinstance(container, Pair):
        container.first = None
    elif isinstance(container, list) and container:
        container.pop(number % len(container))
    elif container:
        container.pop(sorted(container)[number % len(container)])


def write(batch, container, number):
    found = tensors_of(batch)
    if found:
        found[number % len(found)].add_(1)


CHANGES = [
    add_a_tensor,
    add_a_plain_value,
    add_what_is_there,
    add_a_view,
    add_a_structure,
    take_away,
    write,
]
changes = st.lists(
    st.tuples(st.sampled_from(CHANGES), st.integers(0, 5), st.integers(0, 5)), max_size=4
)


@settings(deadline=None)
@given(batches, changes, st.integers(0, 9))
def test_any_changes_are_done_again(batch, some, number):
    """Values, structure, and which places hold the same tensor or share its memory are equal."""

    def change(value):
        for what, place, number in some:
            containers = all_containers(value)
            if containers:
                what(value, containers[place % len(containers)], number)

    found, again = changed_again(lambda: copy.deepcopy(batch), change)
    for changed in (found, again):
        write(changed, None, number)

    assert plain(again) == plain(found)


# --- kinds of changes ---


def test_what_was_not_changed_is_left_alone():
    """No change is found, and applying it does nothing."""
    batch = {"rows": torch.ones(2), "names": ["a"]}
    watch = BatchWatch(flatten(batch))
    batch["rows"].sum()

    found = watch.changes()

    assert not found
    assert not found.writes_tensors


def test_new_tensors_are_copied_for_each_batch():
    """The graph's own are overwritten by its next replay."""
    batch, other = changed_again(lambda: [torch.ones(2)], lambda batch: batch.append(batch[0] * 2))
    batch[1].zero_()

    assert other[1].tolist() == [2.0, 2.0]


def test_tensors_of_the_batch_are_those_of_the_other_batch():
    """What changed places is not copied."""
    batch, other = [torch.zeros(1), torch.ones(1)], [torch.zeros(1), torch.ones(1)]
    first, second = other
    tree = flatten(batch)
    watch = BatchWatch(tree)
    batch.reverse()
    apply(watch.changes(), other, inputs=tree.leaves)

    assert other[0] is second
    assert other[1] is first


def test_what_was_there_before_the_step_stays_itself():
    """Such as a weight that the step puts into its batch."""
    weight = torch.ones(3)
    batch, other = [], []
    tree = flatten(batch)
    watch = BatchWatch(tree)
    batch += [weight, weight[:2]]
    apply(watch.changes([weight]), other, inputs=tree.leaves, others=[weight])
    weight.zero_()

    assert other[0] is weight
    assert other[1].tolist() == [0.0, 0.0]


def test_an_attribute_that_is_no_field_is_set_and_taken_away():
    """Any object with attributes can be changed."""

    def make():
        pair = Pair(torch.ones(1))
        pair.old = 1
        return pair

    def change(pair):
        pair.total = pair.first.sum()
        del pair.old

    _, other = changed_again(make, change)

    assert vars(other) == {"first": torch.ones(1), "second": None, "total": torch.ones(())}


def test_inference_tensors_can_be_written_to_again():
    """They allow it in their own mode alone."""
    with torch.inference_mode():
        other = [torch.zeros(2)]
    batch = [torch.zeros(2)]
    tree = flatten(batch)
    watch = BatchWatch(tree)
    batch[0].add_(3)
    apply(watch.changes(), other, inputs=tree.leaves)

    assert other[0].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("make", [list, dict, lambda: Pair(1), Named, UserDict])
def test_kinds_that_can_be_changed_are_supported(make):
    """Lists, mappings and objects with attributes."""
    batch = make()
    watch = BatchWatch(flatten(batch))
    put(batch, 3)

    assert watch.changes()
    assert watch.changes().unsupported is None


def test_a_batch_of_a_tokenizer_loses_and_gets_items():
    """It is a `UserDict`, from which many steps take the labels."""

    def change(batch):
        batch["labels"] = batch.pop("label")
        del batch["mask"]

    batch, other = changed_again(lambda: UserDict(label=1, ids=2, mask=3), change)

    assert list(other.items()) == list(batch.items()) == [("ids", 2), ("labels", 1)]


def test_a_mapping_of_layers_is_not_changed():
    """What is put into it lies in one of them, what is there in any."""
    batch = ChainMap({}, {"first": torch.ones(2)})
    watch = BatchWatch(flatten(batch))
    batch["second"] = 3

    assert watch.changes().unsupported == "a ChainMap"
