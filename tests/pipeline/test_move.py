"""Rebuilding a batch around what was moved, by the type of each part."""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import gapless
from gapless.pipeline.tree.containers import tensors_inside
from gapless.pipeline.tree.move import BatchWalk, takes_non_blocking


DOUBLED = [2.0, 2.0]


def ones():
    return torch.ones(2)


def move(batch):
    """Return a batch with every tensor doubled and every object asked to move itself."""
    return BatchWalk(lambda tensor: tensor * 2, lambda value: value.to("cpu")).move(batch)


class Named(NamedTuple):
    x: object
    label: object = "name"


class NamedWithMethod(Named):
    def double(self):
        return self.x * 2


class Items(list):
    """A list with an attribute."""


class OpenDict(dict):
    """Items that are attributes as well."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


class Wrapped(collections.abc.MutableMapping):
    """A mapping that keeps its items in a dict of its own."""

    def __init__(self, items):
        self.data = dict(items)
        self.order = list(items)

    def __getitem__(self, name):
        return self.data[name]

    def __setitem__(self, name, value):
        if name not in self.data:
            self.order.append(name)
        self.data[name] = value

    def __delitem__(self, name):
        del self.data[name]

    def __iter__(self):
        return iter(self.order)

    def __len__(self):
        return len(self.data)


@dataclasses.dataclass
class Open:
    x: object
    y: object = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: object
    y: object = "text"


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """A dataclass that is a mapping, as model outputs are."""

    x: object = None

    def __post_init__(self):
        self["x"] = self.x

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        super().__setattr__(name, value)


class Color(enum.Enum):
    RED = 1


def with_attribute(value, **attributes):
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


CONTAINERS = {
    "tuple": lambda x: (x, 1),
    "list": lambda x: [x, "text"],
    "dict": lambda x: {"a": x, 3: None},
    "named tuple": lambda x: Named(x),
    "named tuple with a method": lambda x: NamedWithMethod(x),
    "torch's named tuple": lambda x: torch.return_types.max((x, torch.tensor([0, 0]))),
    "list with attributes": lambda x: with_attribute(Items([x]), note="kept"),
    "defaultdict": lambda x: collections.defaultdict(list, a=x),
    "OrderedDict": lambda x: collections.OrderedDict(b=x, a=1),
    "UserDict": lambda x: collections.UserDict(a=x),
    "items as attributes": lambda x: OpenDict(a=x),
    "own mapping": lambda x: Wrapped({"b": x, "a": 1}),
    "dataclass": lambda x: with_attribute(Open(x), note="kept"),
    "frozen dataclass": lambda x: Frozen(x),
    "dataclass that is a mapping": lambda x: Output(x=x),
    "deep": lambda x: ({"a": [Named(Frozen({"b": (x,)}))]},),
}


def tensor_in(batch):
    """Return the floats of the first tensor that is found in a batch."""
    return next(t for t in tensors_inside(batch) if t.is_floating_point()).tolist()


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_container_comes_back_as_its_own_kind(kind):
    """It has the type and the attributes that it had, and the loader's own is as it was."""
    batch = CONTAINERS[kind](ones())

    found = move(batch)

    assert type(found) is type(batch)
    assert (tensor_in(found), tensor_in(batch)) == (DOUBLED, [1.0, 1.0])
    assert found is not batch
    assert getattr(found, "note", None) == getattr(batch, "note", None)


def test_a_mapping_shares_nothing_with_the_loaders():
    """Whatever the loop writes into its batch, the loader's own mapping does not see it."""
    for kind in ("defaultdict", "OrderedDict", "UserDict", "items as attributes", "own mapping"):
        batch = CONTAINERS[kind](ones())
        names = list(batch)
        found = move(batch)
        found["new"] = 1

        assert [*names, "new"] == list(found)
        assert list(batch) == names
        assert len(batch) == len(names)


def test_mappings_keep_what_they_do():
    """A default, an order and items that are attributes work on the copy as well."""
    assert move(collections.defaultdict(list, a=ones()))["new"] == []
    assert list(move(CONTAINERS["OrderedDict"](ones()))) == ["b", "a"]
    found = move(OpenDict(a=ones()))
    found.b = 7
    assert (found.a.tolist(), found["b"]) == (DOUBLED, 7)
    output = move(Output(x=ones()))
    assert output.x is output["x"]


def test_a_named_tuple_of_torch_keeps_its_names():
    """`torch.max` of a batch along a dimension may be a batch itself."""
    found = move(torch.max(torch.ones(2, 2), 0))

    assert isinstance(found, torch.return_types.max)
    assert (found.values.tolist(), found.indices.tolist()) == (DOUBLED, [0, 0])


@pytest.mark.parametrize(
    "value",
    [
        *(torch.Size([2, 3]), "text", b"", 7, 2.5, None, Color.RED, torch.float16),
        *(np.ones(2), {1, 2}, object(), ["a", "b"], ["a", None, 3], ("a", 1), [], ()),
    ],
    ids=lambda value: type(value).__name__ if type(value) is object else repr(value),
)
def test_what_holds_no_tensor_is_handed_through(value):
    """Strings, arrays, sets and lists of plain values are the loader's own objects."""
    found = move({"deep": (value, ones())})["deep"]

    assert found[0] is value or (type(value) is torch.Size and found[0] == value)
    assert type(found[0]) is type(value)


def test_a_mapping_that_cannot_be_rebuilt_is_refused_in_one_line():
    """It is named, and what to use instead."""
    with pytest.raises(gapless.BatchError) as caught:
        move(types.MappingProxyType({"x": ones()}))

    assert str(caught.value) == "cannot rebuild a mappingproxy on the device; use a dict"


class Raising(dict):
    def __setitem__(self, name, value):
        raise RuntimeError("this dict\nis frozen")


class Halving(dict):
    def __getitem__(self, name):
        return super().__getitem__(name) / 2


class Prefixing(collections.UserDict):
    def __setitem__(self, name, value):
        super().__setitem__(name, f"-{value}" if isinstance(value, str) else value)


@pytest.mark.parametrize(
    "batch",
    [Raising(x=ones()), Halving(x=ones()), Prefixing(name="a")],
    ids=lambda b: type(b).__name__,
)
def test_a_mapping_that_changes_its_items_is_refused_in_one_line(batch):
    """What it does to an item that is asked for or set would be done twice."""
    name = type(batch).__name__
    with pytest.raises(gapless.BatchError) as caught:
        move(batch)

    assert str(caught.value) == f"cannot rebuild a {name} on the device; use a dict"


def test_a_dataclass_that_cannot_be_copied_is_refused_in_one_line():
    """It is named, whatever its own methods raise."""

    @dataclasses.dataclass
    class Single:
        x: torch.Tensor

        def __copy__(self):
            raise RuntimeError("there is\nbut one")

    with pytest.raises(
        gapless.BatchError, match=r"^cannot rebuild a .*Single on the device; use .*$"
    ):
        move(Single(ones()))


def test_a_field_that_was_never_set_is_left_alone():
    """A field that the constructor does not set may be missing."""

    @dataclasses.dataclass
    class Later:
        x: torch.Tensor
        mask: torch.Tensor = dataclasses.field(init=False)

    found = move(Later(ones()))

    assert found.x.tolist() == DOUBLED
    assert not hasattr(found, "mask")


class Pair(tuple):
    __slots__ = ()

    def __new__(cls, x, y=None):
        return super().__new__(cls, (x, y))


class Parts(tuple):
    def __new__(cls, *parts):
        return super().__new__(cls, parts)


@pytest.mark.parametrize(
    "batch",
    [
        Pair(ones(), 1),
        with_attribute(Parts(ones(), 1), note="kept"),
        with_attribute(NamedWithMethod(ones()), note="kept"),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_a_tuple_is_rebuilt_past_its_constructor(batch):
    """A constructor may take anything; the parts and the attributes are what counts."""
    found = move(batch)

    assert type(found) is type(batch)
    assert [found[0].tolist(), *found[1:]] == [DOUBLED, *batch[1:]]
    assert getattr(found, "note", None) == getattr(batch, "note", None)


def test_a_tuple_without_tensors_is_handed_through():
    """Some tuples know more than their items, such as the times of a file."""
    batch = Path.cwd().stat()

    assert move(batch) is batch


class Counting(list):
    __slots__ = ("num_appended",)

    def __iter__(self):
        return iter(())

    def append(self, value):
        self.num_appended = getattr(self, "num_appended", 0) + 1
        super().append(value)


def test_a_list_is_rebuilt_past_its_methods():
    """What a list does beside keeping items is not done again."""
    batch = Counting()
    batch.append(ones())

    found = move(batch)

    assert (found[0].tolist(), found.num_appended) == (DOUBLED, 1)


class Slotted(collections.abc.MutableMapping):
    __slots__ = ("items_",)

    def __init__(self, items):
        self.items_ = items

    def __getitem__(self, name):
        return self.items_[name]

    def __setitem__(self, name, value):
        self.items_[name] = value

    def __delitem__(self, name):
        del self.items_[name]

    def __iter__(self):
        return iter(self.items_)

    def __len__(self):
        return len(self.items_)


@pytest.mark.parametrize("make", [dict, collections.UserDict])
def test_a_mapping_around_another_leaves_the_loaders_alone(make):
    """What it is made of is copied with it, wherever it keeps that."""
    batch = Slotted(make(x=ones()))

    found = move(batch)

    assert (found["x"].tolist(), batch["x"].tolist()) == (DOUBLED, [1.0, 1.0])


# --- objects with a `to` ---


class Own:
    """Something that moves itself."""

    def __init__(self, x):
        self.x = x

    def to(self, device, non_blocking=False):
        moved = type(self)(self.x * 2)
        moved.seen = (device, non_blocking)
        return moved


class OwnAny(Own):
    def to(self, *args, **kwargs):
        return super().to(*args, **kwargs)


class OwnBlocking(Own):
    def to(self, device):
        return super().to(device)


class OwnInPlace(Own):
    """Changes itself and returns nothing."""

    def to(self, device):
        self.x = self.x * 2
        self.seen = (device, False)


@dataclasses.dataclass
class OwnDataclass:
    """A dataclass that moves itself: its own way comes before that of its kind."""

    x: object
    seen: object = None

    def to(self, device, non_blocking=False):
        return OwnDataclass(self.x * 2, (device, non_blocking))


@pytest.mark.parametrize(
    ("kind", "takes"),
    [(Own, True), (OwnAny, True), (OwnBlocking, False), (OwnInPlace, False), (OwnDataclass, True)],
)
def test_an_object_moves_itself(kind, takes):
    """Its `to` is called with the device, and with `non_blocking` if it takes it."""
    device = torch.device("cpu")

    (found,) = gapless.prefetch([{"deep": kind(ones())}], "cpu")

    assert type(found["deep"]) is kind
    assert found["deep"].x.tolist() == DOUBLED
    assert found["deep"].seen == (device, takes)
    assert takes_non_blocking(kind) == takes


def test_a_class_in_a_batch_is_no_object_that_moves_itself():
    """A type has the `to` of its values, and is none of them."""
    assert move([Own, ones()])[0] is Own


def test_a_signature_that_python_cannot_read_is_called_without_the_flag():
    """`to` written in C may have none."""

    class OfC:
        to = getattr

    assert not takes_non_blocking(OfC)
    assert takes_non_blocking(PackedSequence)


def test_a_packed_sequence_moves_itself():
    """Torch's own object arrives as the same kind with the same data."""
    batch = pack_sequence([torch.tensor([1.0, 2.0]), torch.tensor([3.0])])

    (found,) = gapless.prefetch([batch], "cpu", depth=1)

    assert isinstance(found, PackedSequence)
    assert found.data.tolist() == batch.data.tolist()


# --- what a batch holds out of sight ---


def test_tensors_are_found_in_attributes_slots_and_containers():
    """Cycles end the search in time, and equal tensors are found once."""

    class Slots:
        __slots__ = ("a", "empty")

    tensors = [torch.tensor([float(number)]) for number in range(5)]
    slots = Slots()
    slots.a = {"deep": (tensors[0],)}
    outer = types.SimpleNamespace(b=tensors[1], slots=slots, frozen=Frozen(tensors[2]))
    outer.again, outer.c = outer, [tensors[3], tensors[3], OpenDict(x=tensors[4])]

    found = sorted(float(tensor) for tensor in tensors_inside(outer))

    assert found == [0.0, 1.0, 2.0, 3.0, 4.0]


class Plain:
    def __init__(self, **attributes):
        vars(self).update(attributes)


def test_an_object_is_moved_by_its_attributes():
    """And the loader's own stays as it was; what has no tensors in it is the very same."""
    note = Plain(words={"a": 1})
    batch = Plain(x=ones(), note=note, inner=[Plain(x=ones())])

    found = move(batch)

    assert type(found) is Plain
    assert [found.x.tolist(), found.inner[0].x.tolist()] == [DOUBLED, DOUBLED]
    assert found.note is note
    assert batch.x.tolist() == ones().tolist()


def test_what_cannot_be_taken_apart_is_left():
    """Whoever moves a batch is told of it."""
    left = []
    batch = {"frames": collections.deque([ones()]), "x": ones()}
    walk = BatchWalk(lambda tensor: tensor * 2, lambda value: value, left.append)

    found = walk.move(batch)

    assert found["frames"] is batch["frames"]
    assert left == [batch["frames"]]
