"""Finding and replacing the tensors of a batch."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import threading
import types
import weakref
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch.nn.utils.rnn import pack_sequence

from gapless.errors import BatchError
from gapless.pipeline.tree.flatten import flatten


class Point(NamedTuple):
    x: object
    y: object = None


@dataclasses.dataclass
class Open:
    x: object
    y: object = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: object
    y: object = "text"


class Color(enum.Enum):
    RED = 1


class Tracked(collections.UserDict):
    pass


PLAIN = [1, 2.5, 1j, True, None, "text", b"bytes", Color.RED, torch.float16, torch.device("cpu")]

# Tensors are told apart by their only value; the strategy draws equal ones at times.
leaves = st.integers(0, 50).map(lambda n: torch.tensor([n])) | st.sampled_from(PLAIN)
structures = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.dictionaries(st.integers(), inner, max_size=3).map(collections.OrderedDict),
        st.dictionaries(st.text(max_size=2), inner, max_size=3).map(Tracked),
        st.builds(Point, inner, inner),
        st.builds(Open, inner, inner),
        st.builds(Frozen, inner, inner),
    ),
    max_leaves=12,
)


def outline(batch):
    """Return a batch as nested plain tuples that can be compared, with the type of each part."""
    if isinstance(batch, torch.Tensor):
        return (torch.Tensor, *batch.tolist())
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return (type(batch), outline(batch.x), outline(batch.y))
    if isinstance(batch, tuple | list):
        return (type(batch), *map(outline, batch))
    if isinstance(batch, collections.abc.Mapping):
        return (type(batch), *((key, outline(part)) for key, part in batch.items()))
    return (type(batch), repr(batch))


@given(structures)
def test_the_same_structure_comes_back(batch):
    """An identity change gives an equal batch of equal types, and touches the old one nowhere."""
    before = outline(batch)

    assert before == outline(flatten(batch).map(lambda tensor: tensor.clone()).value)
    assert before == outline(batch)


@given(structures)
def test_every_tensor_is_changed_once_in_a_fixed_order(batch):
    """The change sees exactly the tensors that `leaves` lists, in its order."""
    seen = []

    def change(tensor):
        seen.append(tensor)
        return tensor + 100

    changed = flatten(batch).map(change).value

    listed = flatten(batch).leaves
    assert len(listed) == len(seen)
    assert all(a is b for a, b in zip(listed, seen, strict=True))
    assert [t.item() + 100 for t in listed] == [t.item() for t in flatten(changed).leaves]


@pytest.mark.parametrize("value", PLAIN, ids=str)
def test_plain_values_stay_as_they_are(value):
    """Numbers, strings, None and the like are passed on untouched."""
    assert value is flatten([value]).map(torch.clone).value[0]


def test_a_dataclass_keeps_what_is_no_field():
    """Attributes set outside the fields, and fields that are not in `__init__`, come along."""

    @dataclasses.dataclass
    class Loose:
        x: torch.Tensor
        total: int = dataclasses.field(init=False, default=0)

    batch = Loose(torch.ones(2))
    batch.total, batch.note = 7, "kept"

    moved = flatten(batch).map(lambda tensor: tensor * 2).value

    assert (moved.total, moved.note, moved.x.tolist()) == (7, "kept", [2.0, 2.0])
    assert batch.x.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "value",
    [np.ones(2), np.float32(1), object(), {1, 2}, iter([]), len],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [{"deep": (v,)}]], ids=["bare", "deep"])
def test_what_nobody_looks_into_is_kept_and_told(value, wrap):
    """It stays in its place as the same object, it is listed, and is equal to itself alone."""
    tree = flatten(wrap(value))

    assert [id(one) for one in tree.unknown] == [id(value)]
    assert outline(tree.value) == outline(tree.map(torch.clone).value)
    assert tree.key() == flatten(wrap(value)).key()
    other = flatten(wrap(object()))
    assert tree.key() != other.key()
    assert other.difference(tree).startswith("batch")


def test_containers_of_torch_are_looked_into():
    """A packed sequence holds tensors, and sizes that are a part of its kind; a size is a tuple of numbers."""
    packed = pack_sequence([torch.ones(2), torch.ones(1)])
    other = pack_sequence([torch.ones(1), torch.ones(1), torch.ones(1)])

    assert [len(leaf) for leaf in flatten(packed).leaves] == [3]
    assert flatten(packed).with_leaves([torch.zeros(3)]).value.batch_sizes.tolist() == [2, 1]
    assert flatten(packed).key() == flatten(pack_sequence([torch.ones(2), torch.ones(1)])).key()
    assert flatten(packed).key() != flatten(other).key()
    assert flatten(packed).difference(flatten(other)) == "how batch is packed"
    assert flatten(torch.Size([1, 2])).unknown == []


def test_a_key_tells_strides_apart():
    """A graph takes a transposed batch as it is captured, and no other in its place."""
    square = torch.ones(3, 3)

    assert flatten([square]).key() != flatten([square.t()]).key()
    assert flatten([square]).key() == flatten([square.clone()]).key()


def test_a_read_only_mapping_fails_loudly():
    """A mapping that cannot be rebuilt raises instead of keeping its tensors where they are."""
    with pytest.raises(BatchError, match="cannot rebuild a mappingproxy"):
        flatten(types.MappingProxyType({"x": torch.ones(1)})).map(torch.clone)


def test_one_tensor_twice_stays_one():
    """Attention asks whether its query is its key."""
    x, other = torch.ones(2), torch.zeros(2)

    first, second, third = flatten((x, {"again": x}, other)).map(torch.clone).leaves

    assert first is second is not third
    assert first is not x


def test_a_key_tells_one_tensor_from_two():
    x = torch.ones(2)
    once, twice = flatten((x, x.clone())), flatten((x, x))

    assert once.key() != twice.key()
    assert twice.key() == flatten((once.leaves[1], once.leaves[1])).key()
    assert once.difference(twice) == "which of its tensors are the same one"


def test_a_key_tells_tensors_of_inference_mode():
    with torch.inference_mode():
        inferred = torch.ones(2)

    assert flatten(inferred).key() != flatten(torch.ones(2)).key()


class Rounded(float):
    def __repr__(self):
        return "about 1"


class Hidden(str):
    def __repr__(self):
        return "***"


class Phase(enum.Enum):
    FIRST, LAST = 1, 2

    def __repr__(self):
        return "<a phase>"


class Listed(list):
    pass


class Named(dict):
    pass


def noted(kind, note):
    value = kind()
    value.note = note
    return value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Rounded(1.1), Rounded(1.2)),
        (Hidden("a"), Hidden("b")),
        (Phase.FIRST, Phase.LAST),
        (noted(Listed, 1), noted(Listed, 2)),
        (noted(Named, [1, 2]), noted(Named, [1, 3])),
        (noted(Named, {"a": (1,)}), noted(Named, {"a": (2,)})),
        (noted(Named, {1, 2}), noted(Named, {1, 3})),
    ],
)
def test_a_key_tells_plain_values_apart(one, other):
    """By what they are, not by the text of a user's class, and with attributes beside parts."""
    assert flatten(one).key() != flatten(other).key()
    assert flatten(one).key() == flatten(copy.copy(one)).key()


def test_attributes_that_are_not_plain_are_no_part_of_a_key():
    """As those of a tokenizer, which are new objects in each batch."""
    assert flatten(noted(Named, [object()])).key() == flatten(noted(Named, [object()])).key()


def test_a_batch_that_leads_to_itself_is_refused():
    batch = {"x": torch.ones(1)}
    batch["self"] = batch

    with pytest.raises(BatchError, match="a batch, a dict, leads to itself"):
        flatten(batch)


class CountedReads(collections.UserDict):
    """Counts how often its items are read."""

    num_reads = 0

    def __getitem__(self, name):
        self.num_reads += 1
        return super().__getitem__(name)


class CountedValues(dict):
    """Reads its items as a dict does."""

    num_reads = 0

    def __iter__(self):
        self.num_reads += 1
        return super().__iter__()


@pytest.mark.parametrize(("kind", "num_reads"), [(CountedReads, 2), (CountedValues, 1)])
def test_a_walk_reads_a_mapping_of_a_users_once(kind, num_reads):
    """What is read a second time is only to show that it is the same."""
    batch = kind(x=torch.ones(1))

    assert len(flatten(batch).leaves) == 1
    assert batch.num_reads == num_reads


def test_a_mapping_that_gives_other_items_each_time_is_left_alone():
    """Also one that is a dict, whose own items are others."""

    class Doubling(dict):
        def __getitem__(self, name):
            return super().__getitem__(name) * 2

    batch = Doubling(x=torch.ones(1))

    assert flatten(batch).unknown == [batch]


def test_a_container_with_a_tensor_beside_its_items_is_left_alone():
    """A graph would read the tensor of another batch there."""
    batch = noted(Named, torch.ones(1))
    batch["x"] = torch.ones(1)

    assert [id(one) for one in flatten(batch).unknown] == [id(batch)]


class Slotted:
    __slots__ = ("__private", "note", "x")

    def __init__(self, x, note="kept"):
        self.x, self.note, self.__private = x, note, x * 2

    @property
    def private(self):
        return self.__private


class Odd:
    """Finds attributes in a store, and takes none by its constructor."""

    def __init__(self):
        self.__dict__["store"] = {"x": torch.ones(1), "kind": type(self)}

    def __getattr__(self, name):
        if name not in self.__dict__["store"]:
            raise AttributeError(name)
        return self.__dict__["store"][name]

    def __setattr__(self, name, value):
        raise AssertionError("no attribute is set")


class Closing:
    """Would close its file when a twin is gone."""

    def __init__(self):
        self.x = torch.ones(1)

    def __del__(self):
        pass


class Mine(collections.deque):
    """A container of C with attributes."""


class Rows(collections.abc.Mapping):
    """Iterates over rows, as a TensorDict does."""

    def __init__(self, **items):
        self.columns = items

    def __getitem__(self, name):
        return self.columns[name]

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __iter__(self):
        return iter([{"x": row} for row in self.columns["x"]])


@pytest.mark.parametrize(
    ("batch", "read"),
    [
        (Slotted(torch.ones(1)), lambda batch: [batch.x, batch.private]),
        (Odd(), lambda batch: [batch.x]),
        (types.SimpleNamespace(x=torch.ones(1), note="kept"), lambda batch: [batch.x]),
        (Rows(x=torch.ones(1)), lambda batch: [batch["x"]]),
    ],
    ids=["slots", "store", "namespace", "rows"],
)
def test_an_object_is_a_container_of_its_attributes(batch, read):
    """It is made anew past its constructor, with all else as it was; the other one stays."""
    tree = flatten(batch)

    found = tree.map(lambda leaf: leaf + 7).value

    assert tree.unknown == []
    assert type(found) is type(batch)
    assert [one.tolist() for one in read(found)] == [(one + 7).tolist() for one in read(batch)]
    assert getattr(found, "note", None) == getattr(batch, "note", None)
    assert flatten(found).key() == tree.key()


def test_plain_attributes_of_an_object_are_a_part_of_its_kind():
    """A step may decide by them."""
    some, other = Slotted(torch.ones(1), "some"), Slotted(torch.ones(1), "other")

    assert flatten(some).key() != flatten(other).key()
    assert flatten(some).difference(flatten(other)) == "batch.note (str)"


def test_a_part_that_refers_back_refers_to_the_twin():
    """As PyG's stores do, by a weak reference."""
    batch = types.SimpleNamespace(store=Tracked(x=torch.ones(1)))
    owner = Held(batch.store)
    batch.store.parent = weakref.ref(owner)

    found = flatten(owner).map(torch.clone).value

    assert found.store is not owner.store
    assert found.store.parent() is found
    assert owner.store.parent() is owner


def test_weak_references_are_alike_and_lead_nowhere_in_a_batch_that_is_made_anew():
    """A TensorDict remembers by one what it was made of."""
    owners = [Odd(), Odd()]
    one, other = (
        flatten(types.SimpleNamespace(x=torch.ones(1), made_by=("to", weakref.ref(owner))))
        for owner in owners
    )

    found = one.map(torch.clone).value

    assert one.key() == other.key()
    assert found.made_by[1]() is None
    assert one.value.made_by[1]() is owners[0]


class Held:
    def __init__(self, store):
        self.store = store


@pytest.mark.parametrize(
    "value",
    [
        torch.nn.Linear(1, 1),
        torch.optim.SGD([torch.ones(1)], lr=0.1),
        Closing(),
        Mine(),
        threading.Lock(),
        torch.Generator(),
        lambda: None,
        np.ones(1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_does_something_is_no_container(value):
    """Nor is what keeps its state out of sight of Python: a twin would not be one."""
    assert flatten(value).unknown == [value]
    assert flatten(types.SimpleNamespace(x=torch.ones(1), inner=value)).unknown == [value]
