"""Batches of all kinds: what public loaders hand out, as data for prefetch and for captures."""

from __future__ import annotations

import collections
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import rnn

from anybody.harness import NUM, REPLAYED, Cases, or_told
from hazards.captured_models import host_batch, kept, sgd, state
from hazards.in_place_models import made


if TYPE_CHECKING:
    from collections.abc import Callable


case = Cases("batches")


# ------------------------------------------------------------------------------------ classes


class Batch:
    """The annotated Transformer's: made of two tensors, with masks and a count."""

    def __init__(self, src, tgt, pad=0):
        self.src = src
        self.src_mask = (src != pad).unsqueeze(-2)
        self.tgt, self.tgt_y = tgt, tgt.clone()
        self.ntokens = (self.tgt_y != pad).sum()
        self.pad, self.names = pad, ("src", "tgt")


class Slotted:
    __slots__ = ("ids", "x", "y")

    def __init__(self, x, y, ids):
        self.x, self.y, self.ids = x, y, ids


class Sample:
    """Holds other objects, in a list and in a dict."""

    def __init__(self, parts, info):
        self.parts, self.info = parts, info


class Child(Batch):
    """A subclass with an attribute of its own and a property."""

    def __init__(self, src, tgt):
        super().__init__(src, tgt)
        self.weight = torch.ones_like(src)

    @property
    def inputs(self):
        return self.src * self.weight


class Graph:
    """The shape of PyG's `Data`: a store behind attributes, `to` in place, iteration over pairs."""

    def __init__(self, **items):
        self.__dict__["_store"] = dict(items)

    def __getattr__(self, name):
        store = self.__dict__.get("_store", {})
        if name not in store:
            raise AttributeError(name)
        return store[name]

    def __setattr__(self, name, value):
        self._store[name] = value

    def __iter__(self):
        return iter(self._store.items())

    def keys(self):
        return list(self._store)

    def to(self, device, non_blocking=False):
        for name, value in self._store.items():
            if isinstance(value, torch.Tensor):
                self._store[name] = value.to(device, non_blocking=non_blocking)
        return self


class Rows(collections.abc.MutableMapping):
    """The shape of a TensorDict: a mapping whose iteration gives rows, not keys."""

    def __init__(self, items, batch_size):
        self.items_, self.batch_size = dict(items), batch_size

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.items_[key]
        return Rows({name: value[key] for name, value in self.items_.items()}, ())

    def __setitem__(self, key, value):
        self.items_[key] = value

    def __delitem__(self, key):
        del self.items_[key]

    def __len__(self):
        return self.batch_size[0]

    def __iter__(self):
        return (self[row] for row in range(len(self)))

    def keys(self):
        return self.items_.keys()

    def to(self, device, non_blocking=False):
        moved = {k: v.to(device, non_blocking=non_blocking) for k, v in self.items_.items()}
        return Rows(moved, self.batch_size)


class NestedTensor:
    """DETR's images with their mask, whose `to` takes the device alone."""

    def __init__(self, tensors, mask):
        self.tensors, self.mask = tensors, mask

    def to(self, device):
        return NestedTensor(self.tensors.to(device), self.mask.to(device))


class Transition(NamedTuple):
    state: torch.Tensor
    info: Any


@dataclass
class Holder:
    inner: Any
    name: str


# -------------------------------------------------------------------------------------- kinds


@dataclass(frozen=True)
class Kind:
    """One kind of batch.

    Attributes:
        make: takes features, classes and what is no tensor; returns the batch.
        tensors: returns the tensors of a batch, the features first.
        others: returns what must be the very same object.
        captures: what is expected of captures; None if no step takes such a batch.
        in_one: whether `to` changes the loader's own object.
        needs_gpu: whether captures can be seen on a GPU alone.
    """

    name: str
    sentence: str
    make: Callable[..., Any]
    tensors: Callable[[Any], list[torch.Tensor]]
    others: Callable[[Any], list[Any]] = lambda batch: []
    captures: Any = REPLAYED
    in_one: bool = False
    needs_gpu: bool = False

    def __str__(self):
        return self.name


def of_names(*names):
    return lambda batch: [getattr(batch, name) for name in names]


def of_keys(*keys):
    return lambda batch: [batch[key] for key in keys]


def tensordict_of(x, y, note):
    tensordict = pytest.importorskip("tensordict")
    inner = tensordict.TensorDict({"y": y}, batch_size=[len(x)])
    return tensordict.TensorDict({"x": x, "next": inner}, batch_size=[len(x)])


def tensorclass_of(x, y, note):
    tensordict = pytest.importorskip("tensordict")
    return _tensorclass(tensordict)(x=x, y=y, batch_size=[len(x)])


_classes = {}


def _tensorclass(tensordict):
    if not _classes:

        class Transitions:
            x: torch.Tensor
            y: torch.Tensor

        _classes["made"] = tensordict.tensorclass(Transitions)
    return _classes["made"]


def data_of(x, y, note):
    data = pytest.importorskip("torch_geometric.data")
    return data.Data(x=x, edge_index=_edges(x), y=y)


def batch_of_graphs(x, y, note):
    data = pytest.importorskip("torch_geometric.data")
    graphs = [
        data.Data(x=x[i : i + 2], edge_index=_edges(x)[:, :2] * 0, y=y[i : i + 2])
        for i in (0, 2, 4)
    ]
    return data.Batch.from_data_list(graphs)


def _edges(x):
    return torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]], device=x.device)


def encoding_of(x, y, note):
    transformers = pytest.importorskip("transformers")
    return transformers.BatchEncoding({"x": x, "y": y})


def packed(x, y, note):
    return rnn.pack_padded_sequence(
        x.view(6, 2, 4), torch.tensor([2, 2, 2, 1, 1, 1]), batch_first=True
    )


def packed_unsorted(x, y, note):
    lengths = torch.tensor([1, 2, 1, 2, 2, 1])
    return rnn.pack_padded_sequence(
        x.view(6, 2, 4), lengths, batch_first=True, enforce_sorted=False
    )


def parts_of_packed(batch):
    orders = [batch.sorted_indices, batch.unsorted_indices]
    return [batch.data, *(one for one in orders if one is not None)]


def targets(x, y, note):
    boxes = [
        {"boxes": x[i : i + 1].clone(), "label": y[i : i + 1].clone(), "file": note}
        for i in range(2)
    ]
    return [x, y], boxes


KINDS = [
    Kind(
        "annotated",
        "A plain class with tensors as attributes: the annotated Transformer's batch.",
        lambda x, y, note: Batch(x, y),
        of_names("src", "tgt_y", "src_mask", "tgt", "ntokens"),
        of_names("names"),
    ),
    Kind(
        "child",
        "A subclass of a plain class, with a property.",
        lambda x, y, note: Child(x, y),
        of_names("src", "tgt_y", "weight", "src_mask"),
    ),
    Kind(
        "slotted",
        "A class with slots.",
        lambda x, y, note: Slotted(x, y, note),
        of_names("x", "y"),
        of_names("ids"),
    ),
    Kind(
        "nested_objects",
        "An object holds objects in a list and in a dict.",
        lambda x, y, note: Sample([Slotted(x, y, note)], {"tgt": Batch(x * 2, y.clone())}),
        lambda batch: [batch.parts[0].x, batch.parts[0].y, batch.info["tgt"].src],
        lambda batch: [batch.parts[0].ids],
    ),
    Kind(
        "object_in_a_tuple",
        "A plain object stands in a tuple beside a tensor.",
        lambda x, y, note: (x, Slotted(x * 2, y, note)),
        lambda batch: [batch[0], batch[1].y, batch[1].x],
        lambda batch: [batch[1].ids],
    ),
    Kind(
        "object_in_a_named_tuple",
        "A replay buffer's transition holds a plain object.",
        lambda x, y, note: Transition(x, Slotted(x * 2, y, note)),
        lambda batch: [batch.state, batch.info.y, batch.info.x],
        lambda batch: [batch.info.ids],
    ),
    Kind(
        "object_in_a_dataclass",
        "A dataclass holds a plain object.",
        lambda x, y, note: Holder(Batch(x, y), note),
        lambda batch: [batch.inner.src, batch.inner.tgt_y],
        of_names("name"),
    ),
    Kind(
        "like_a_graph",
        "An object of PyG's shape, whose `to` moves it in place.",
        lambda x, y, note: Graph(x=x, y=y, edge_index=_edges(x), name=note),
        of_names("x", "y", "edge_index"),
        of_names("name"),
        in_one=True,
    ),
    Kind(
        "like_a_tensordict",
        "A mapping whose iteration gives rows.",
        lambda x, y, note: Rows({"x": x, "y": y}, (len(x),)),
        of_keys("x", "y"),
        of_names("batch_size"),
    ),
    Kind(
        "tensordict",
        "A TensorDict with another one within.",
        tensordict_of,
        lambda batch: [batch["x"], batch["next", "y"]],
    ),
    Kind("tensorclass", "A tensorclass.", tensorclass_of, of_names("x", "y")),
    Kind("pyg_data", "PyG's Data.", data_of, of_names("x", "y", "edge_index"), in_one=True),
    Kind(
        "pyg_batch",
        "PyG's Batch of three graphs.",
        batch_of_graphs,
        of_names("x", "y", "edge_index", "batch", "ptr"),
        in_one=True,
        # Of tensors elsewhere it asks `is_cuda`, or makes `batch` and `ptr` on the host.
        needs_gpu=True,
    ),
    Kind(
        "pyg_batch_moved",
        "PyG's Batch, made on the host and moved by its own `to`.",
        lambda x, y, note: batch_of_graphs(x.cpu(), y.cpu(), note).to(x.device),
        of_names("x", "y", "edge_index", "batch", "ptr"),
        in_one=True,
    ),
    Kind("encoding", "A tokenizer's BatchEncoding.", encoding_of, of_keys("x", "y"), in_one=True),
    Kind(
        "nested_tensor",
        "DETR's NestedTensor and a list of targets.",
        lambda x, y, note: (NestedTensor(x, x > 0), [{"labels": y, "file": note}]),
        lambda batch: [batch[0].tensors, batch[1][0]["labels"], batch[0].mask],
        lambda batch: [batch[1][0]["file"]],
    ),
    Kind(
        "targets",
        "Images and a list of dicts of boxes: torchvision's detection.",
        targets,
        lambda batch: [*batch[0], *(one[key] for one in batch[1] for key in ("boxes", "label"))],
        lambda batch: [one["file"] for one in batch[1]],
    ),
    Kind("packed", "A packed sequence.", packed, parts_of_packed),
    Kind(
        "packed_unsorted",
        "A packed sequence that was not sorted.",
        packed_unsorted,
        parts_of_packed,
    ),
    Kind(
        "nested_lengths",
        "Nested lists of lengths stand beside the tensors, in one of two values.",
        lambda x, y, note: (x, y, [[3, 2], [1, [4, int(x[0, 0] > 0)]]], {"lengths": [6, 6]}),
        lambda batch: [batch[0], batch[1]],
    ),
    Kind(
        "numpy",
        "Arrays of numpy stand beside tensors: ids that no device takes.",
        lambda x, y, note: {"x": x, "y": y, "ids": _IDS},
        of_keys("x", "y"),
        of_keys("ids"),
        captures=or_told("numpy|ids", "tensor|from_numpy"),
    ),
]

_IDS = np.arange(6)

# Tensors where prefetch may not find them: moved, or said.
HIDDEN = [
    Kind(name, sentence, make, tensors, captures=None)
    for name, sentence, make, tensors in [
        (
            "deque",
            "Frames of a game in a deque.",
            lambda x, y, note: collections.deque([x, y]),
            list,
        ),
        (
            "namespace",
            "A simple namespace.",
            lambda x, y, note: types.SimpleNamespace(x=x, y=y),
            of_names("x", "y"),
        ),
        (
            "mapping_proxy",
            "A read-only view of a dict.",
            lambda x, y, note: types.MappingProxyType({"x": x, "y": y}),
            of_keys("x", "y"),
        ),
        (
            "set",
            "A set of tensors.",
            lambda x, y, note: {x, y},
            lambda batch: sorted(batch, key=lambda one: -one.dim()),
        ),
        (
            "array_of_tensors",
            "An array of numpy whose items are tensors, as a collate of one's own makes it.",
            lambda x, y, note: _array(x, y),
            list,
        ),
        (
            "deep_object",
            "An object in a deque in an object.",
            lambda x, y, note: Sample(collections.deque([Slotted(x, y, note)]), None),
            lambda batch: [batch.parts[0].x, batch.parts[0].y],
        ),
    ]
]


def _array(x, y):
    array = np.empty(2, dtype=object)
    array[0], array[1] = x, y
    return array


def batch_of(kind, number, put=lambda tensor: tensor):
    """Return the batch of this number, its tensors put somewhere."""
    x, y = host_batch(number)
    return kind.make(put(x), put(y), "a text")


# ------------------------------------------------------------------------------------ captures


class OfBatch(nn.Module):
    """Takes a batch whole, as models of graphs do."""

    def __init__(self, kind, width):
        super().__init__()
        self.kind, self.net = kind, nn.Linear(width, 4)

    def forward(self, batch):
        first, *rest = self.kind.tensors(batch)
        return self.net(first.float()), [one.sum() for one in rest]


def loss_of(outputs):
    out, rest = outputs
    return out.square().mean() + F.softplus(out).mean() + 0.001 * sum(one.float() for one in rest)


def _model(place, kind):
    width = 4 if kind.name.startswith("packed") else 8
    return made(place, lambda: OfBatch(kind, width))


def _as_step(place, kind):
    model = _model(place, kind)
    optimizer = sgd(model, lr=0.05)

    def step(batch):
        optimizer.zero_grad()
        loss = loss_of(model(batch))
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = place.capture(step)
    losses = [kept(step(batch_of(kind, number, place.moved))) for number in range(NUM)]
    return losses, state(model, optimizer)


def _in_place(place, kind):
    model = _model(place, kind)
    place.capture(model)
    optimizer, losses = sgd(model, lr=0.05), []
    for number in range(NUM):
        optimizer.zero_grad()
        loss = loss_of(model(batch_of(kind, number, place.moved)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


def _arrays_as_step(place):
    """The step makes tensors of arrays, as scripts around gym do."""
    model = made(place, lambda: nn.Linear(8, 4))
    optimizer = sgd(model)

    def step(observations, actions):
        x = torch.from_numpy(observations).to(place.torch_device)
        y = torch.as_tensor(actions, device=place.torch_device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = place.capture(step)
    pairs = (host_batch(number) for number in range(NUM))
    return [kept(step(x.numpy(), y.numpy())) for x, y in pairs], state(model, optimizer)


for _kind in KINDS:
    for _way, _train in (("step", _as_step), ("in_place", _in_place)):
        case.register(
            f"{_kind.name}-{_way}",
            _kind.sentence,
            lambda place, kind=_kind, train=_train: train(place, kind),
            _kind.captures,
            needs_gpu=_kind.needs_gpu,
        )
case.register(
    "arrays-step",
    "A step gets arrays of numpy, and makes tensors of them.",
    _arrays_as_step,
    or_told("numpy", "tensor|from_numpy"),
)
