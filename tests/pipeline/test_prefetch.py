"""Prefetching any batch in anybody's loop."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import types
from collections import ChainMap
from collections.abc import MutableMapping
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import DataLoader, TensorDataset

import gapless
from gapless.errors import BatchError
from gapless.testing import SimulatedDevice


class Named(NamedTuple):
    x: torch.Tensor
    label: str


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    inner: dict
    count: int = 3


DTYPES = [torch.float32, torch.float64, torch.int64, torch.int8, torch.bool, torch.bfloat16]

tensors = st.builds(
    lambda shape, dtype, seed: torch.randint(
        0, 2, shape, generator=torch.Generator().manual_seed(seed)
    ).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 9),
)
batches = st.recursive(
    tensors | st.integers() | st.text(max_size=3) | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.builds(Named, tensors, st.text(max_size=2))
        | st.builds(Frozen, tensors, st.dictionaries(st.text(max_size=2), inner, max_size=2))
    ),
    max_leaves=8,
)


def same(a, b):
    """Whether two batches have the same structure, types and values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return a == b


@settings(deadline=None, max_examples=30)
@given(st.lists(batches, max_size=7), st.integers(0, 4))
def test_batches_of_any_structure_come_out_as_they_went_in(data, depth):
    """Structure, types, values and order are kept, even when every batch is kept."""
    found = list(gapless.prefetch(data, "cpu", depth=depth))

    assert all(map(same, data, found))
    assert len(data) == len(found)


def test_everything_arrives_as_to_makes_it():
    """Strides, flags, subclasses, sparse and nested tensors are what `to` on the device gives."""
    data = {
        "transposed": torch.arange(12.0).view(3, 4).t(),
        "strided": torch.arange(10)[::3],
        "expanded": torch.ones(1).expand(4, 5),
        "tracked": torch.ones(3, requires_grad=True),
        "sparse": torch.eye(2).to_sparse(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }

    ((here,), (ahead,)) = (gapless.prefetch([data], "cpu", depth=depth) for depth in (0, 1))

    for name, tensor in data.items():
        wanted = tensor.to("cpu", copy=True)
        assert here[name] is tensor
        assert type(ahead[name]) is type(wanted)
        assert ahead[name] is not tensor
        assert ahead[name].requires_grad == wanted.requires_grad
        assert ahead[name].layout == wanted.layout
        if wanted.layout == torch.strided:
            assert ahead[name].stride() == wanted.stride()
            assert torch.equal(ahead[name], wanted)


@pytest.mark.parametrize("depth", [0, 2])
def test_what_has_no_place_on_a_device_is_handed_through(depth):
    """Arrays, sets, objects and lists of text come out as the loader's own."""
    parts = [np.ones(2), object(), {1, 2}, ["a", "b"], ("a", None)]

    ((found, moved),) = gapless.prefetch([(parts, torch.ones(1))], "cpu", depth=depth)

    assert [a is b for a, b in zip(parts, found, strict=True)] == [True] * 5
    assert moved.tolist() == [1.0]


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
@pytest.mark.parametrize("taken", [1, 4, 10])
def test_leaving_a_loop_early_closes_the_loader(depth, taken):
    """After a break the loader's iterator is closed, and the next pass starts at the front."""
    closed = []

    class Loader:
        def __iter__(self):
            try:
                yield from (torch.tensor(n) for n in range(10))
            finally:
                closed.append(True)

    prefetcher = gapless.prefetch(Loader(), "cpu", depth=depth)
    for number, batch in enumerate(prefetcher, 1):
        assert number - 1 == int(batch)
        if number == taken:
            break
    gc.collect()

    assert closed == [True]
    assert list(range(10)) == [int(batch) for batch in prefetcher]


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
@pytest.mark.parametrize("good", [0, 1, 3, 9])
def test_a_failure_comes_after_the_last_good_batch(depth, good):
    """However deep the prefetch, what came before a failure is yielded once, in order."""

    def loader():
        yield from (torch.tensor(n) for n in range(good))
        raise LookupError("gone")

    found = []
    with pytest.raises(LookupError, match="gone"):
        for batch in gapless.prefetch(loader(), "cpu", depth=depth):
            found.append(int(batch))

    assert list(range(good)) == found


@pytest.mark.parametrize(("depth", "ahead"), [(0, [1] * 20), (3, [4] * 17 + [3, 2, 1])])
def test_no_more_is_taken_from_the_loader_than_the_depth_asks_for(depth, ahead):
    """When batch n is handed out, n + depth + 1 have been taken, the one in use counted."""
    taken = []

    def loader():
        for number in range(20):
            taken.append(number)
            yield torch.tensor(number)

    prefetcher = gapless.prefetch(loader(), "cpu", depth=depth)

    assert ahead == [len(taken) - int(batch) for batch in prefetcher]


def test_the_wait_for_the_loader_is_measured():
    """Time in the loader grows over the epochs."""
    prefetcher = gapless.prefetch([torch.ones(2)] * 5, "cpu")
    times = [prefetcher.data_wait_ms]
    for _epoch in range(2):
        list(prefetcher)
        times.append(prefetcher.data_wait_ms)

    assert 0.0 == times[0] < times[1] < times[2]


@pytest.mark.parametrize("depth", [0, 3])
def test_a_batch_that_cannot_be_moved_waits_its_turn(depth):
    """The batches before a bad one are yielded, then it is refused."""
    bad = types.MappingProxyType({"x": torch.ones(1)})
    found = []
    with pytest.raises(gapless.BatchError, match="cannot rebuild a mappingproxy"):
        for batch in gapless.prefetch([*map(torch.tensor, range(3)), bad], "cpu", depth=depth):
            found.append(int(batch))

    assert found == [0, 1, 2]


@pytest.mark.parametrize("depth", [0, 3])
def test_an_object_that_fails_to_move_waits_its_turn(depth):
    """Its own error is raised, after the batches before it."""

    class Broken:
        def to(self, device):
            raise LookupError("no memory left")

    found = []
    with pytest.raises(LookupError, match="no memory left"):
        for batch in gapless.prefetch(
            [*map(torch.tensor, range(3)), Broken()], "cpu", depth=depth
        ):
            found.append(int(batch))

    assert found == [0, 1, 2]


# --- what is shared with the loader ---


@pytest.mark.parametrize("depth", [1, 4])
def test_a_pass_that_looks_ahead_shares_no_memory_with_the_loader(depth):
    """A loader that fills its memory again does not change the batches ahead of the loop."""
    memory = torch.zeros(3)

    def loader():
        for number in range(9):
            yield memory.fill_(float(number))

    found = [batch.tolist() for batch in gapless.prefetch(loader(), "cpu", depth=depth)]

    assert [[float(number)] * 3 for number in range(9)] == found


def test_the_loop_may_change_what_the_loader_reads():
    """A batch is read when it is asked for: what a step wrote before it is in it."""
    data = [torch.zeros(1) for _ in range(5)]
    found = []
    for number, batch in enumerate(gapless.prefetch(iter(data), "cpu")):
        found.append(float(batch))
        if number < 4:
            data[number + 1] += number + 1.0

    assert found == [0.0, 1.0, 2.0, 3.0, 4.0]


# --- passes ---


def numbers(count):
    yield from map(torch.tensor, range(count))


@pytest.mark.parametrize("depth", [0, 2])
def test_a_generator_of_the_callers_own_can_be_gone_on_with(depth):
    """A pass that ends early leaves it open; what was read ahead is lost to the next pass."""
    own = numbers(12)
    found = []
    for batch in gapless.prefetch(own, "cpu", depth=depth):
        found.append(int(batch))
        if len(found) == 3:
            break
    found += [int(batch) for batch in gapless.prefetch(own, "cpu", depth=depth)]

    assert found == [0, 1, 2, *range(3 + depth, 12)]


# --- like the loader ---


class Sampler:
    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch


class Loader(list):
    """A loader with what others have around their batches."""

    def __init__(self, batches):
        super().__init__(batches)
        self.sampler = Sampler()
        self.dataset = "the data"
        self.num_batches = 17


def test_a_prefetcher_shows_what_its_loader_has():
    """Code that asks a loader for its length, sampler or dataset can ask the prefetcher."""
    prefetcher = gapless.prefetch(Loader([torch.ones(1)] * 3), "cpu")

    prefetcher.sampler.set_epoch(7)

    assert (len(prefetcher), bool(prefetcher), prefetcher.dataset) == (3, True, "the data")
    assert (prefetcher.sampler.epoch, prefetcher.num_batches) == (7, 17)
    assert not gapless.prefetch([], "cpu")
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = prefetcher.no_such_name


class Shuffled:
    """A loader that shuffles by its epoch, as users write them."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        order = torch.randperm(8, generator=torch.Generator().manual_seed(self.epoch))
        return iter(list(order))


def orders(loader):
    """Set the epoch, as trainers do, and return the order of each."""
    found = []
    for epoch in range(3):
        loader.epoch = epoch
        found.append([int(batch) for batch in loader])
    return found


def test_what_a_loop_sets_on_a_prefetcher_is_set_on_its_loader():
    """An epoch, a batch size: the loader reads its own."""
    loader = Shuffled()
    prefetcher = gapless.prefetch(loader, "cpu")

    assert orders(prefetcher) == orders(Shuffled())
    assert loader.epoch == prefetcher.epoch == 2
    del prefetcher.epoch
    assert not hasattr(loader, "epoch")


def test_what_a_loader_does_not_let_a_loop_set_is_refused_as_without_a_prefetcher():
    """A DataLoader keeps its batch size; a list has no attributes."""
    data = DataLoader(TensorDataset(torch.arange(4)), batch_size=2)
    with pytest.raises(ValueError, match="batch_size"):
        gapless.prefetch(data, "cpu").batch_size = 3
    with pytest.raises(AttributeError, match="list"):
        gapless.prefetch([torch.ones(1)], "cpu").epoch = 1


def test_a_pass_is_as_long_as_the_iterator_of_its_loader():
    """Of a DataLoader it has a length, of a list none."""
    data = DataLoader(TensorDataset(torch.arange(10)), batch_size=4)

    assert len(iter(gapless.prefetch(data, "cpu"))) == len(iter(data)) == 3
    found = iter(gapless.prefetch([torch.ones(1)], "cpu"))
    assert found
    with pytest.raises(TypeError, match="has no len"):
        len(found)


def test_a_pass_that_is_closed_before_its_first_batch_ends_its_loader():
    """A generator is closed with it."""
    ended = []

    class Ends:
        def __iter__(self):
            try:
                yield torch.ones(1)
            finally:
                ended.append(True)

    opened = iter(Ends())
    next(opened)

    class Given:
        def __iter__(self):
            return opened

    iter(gapless.prefetch(Given(), "cpu")).close()

    assert ended == [True]


def test_a_prefetcher_is_pickled_or_refused_without_recursion():
    """Neither `pickle` nor `deepcopy` asks an empty object for its loader's attributes for ever."""
    prefetcher = gapless.prefetch([torch.tensor(n) for n in range(3)], "cpu")

    for attempt in (
        lambda: pickle.loads(pickle.dumps(prefetcher)),
        lambda: copy.deepcopy(prefetcher),
    ):
        try:
            found = [int(batch) for batch in attempt()]
        except TypeError as error:
            found = str(error)
        assert found == [0, 1, 2] or "cannot pickle" in found


class Flaky:
    """A loader whose iterator raises for one batch, and can go on."""

    def __init__(self, *bad, count=6):
        self._bad = bad
        self._numbers = iter(range(count))

    def __iter__(self):
        return self

    def __next__(self):
        number = next(self._numbers)
        if number in self._bad:
            raise OSError(f"batch {number}")
        return torch.tensor(number)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("bad", [(0,), (3,), (5,), (2, 3)])
def test_a_loop_that_goes_on_after_an_error_gets_the_other_batches(depth, bad):
    """Nothing is cut off: the loop asks again, as it would ask the loader's own iterator."""
    batches, found = iter(gapless.prefetch(Flaky(*bad), "cpu", depth=depth)), []
    while True:
        try:
            found.append(int(next(batches)))
        except OSError as error:
            found.append(str(error))
        except StopIteration:
            break

    assert found == [f"batch {n}" if n in bad else n for n in range(6)]


def test_an_error_that_is_held_does_not_keep_the_pass():
    """What the loader made for the pass is closed when the loop is over, whoever holds the error."""
    closed = []

    class Immovable:
        def to(self, device):
            raise OSError("it stays here")

    class Loader:
        def __iter__(self):
            try:
                while True:
                    yield Immovable()
            finally:
                closed.append("generator")

    with pytest.raises(OSError, match="it stays here") as held:
        for _ in gapless.prefetch(Loader(), "cpu"):
            pass

    assert closed == ["generator"]
    assert held.value.__traceback__ is not None


def test_a_batch_that_leads_to_itself_is_refused():
    """In one line, after the batches before it."""
    batch = {"x": torch.ones(1)}
    batch["self"] = batch
    batches = iter(gapless.prefetch([torch.zeros(1), batch], "cpu"))

    next(batches)
    with pytest.raises(BatchError, match="leads to itself"):
        next(batches)


class Layered(MutableMapping):
    """A mapping of two layers, which it keeps in a list."""

    def __init__(self, top, base):
        self.layers = [top, base]

    def __getitem__(self, key):
        return self.layers[0].get(key, self.layers[1].get(key))

    def __setitem__(self, key, value):
        self.layers[0][key] = value

    def __delitem__(self, key):
        del self.layers[0][key]

    def __iter__(self):
        return iter({**self.layers[1], **self.layers[0]})

    def __len__(self):
        return len({**self.layers[1], **self.layers[0]})


class Hidden:
    """Holds the items of a mapping where a copy of the mapping does not look."""

    def __init__(self, items):
        self.items = items


class Delegating(Layered):
    """A mapping whose items lie in an object."""

    def __init__(self, top, base):
        self.hidden = Hidden([top, base])

    @property
    def layers(self):
        return self.hidden.items


@pytest.mark.parametrize("kind", [ChainMap, Layered])
def test_a_mapping_of_layers_stays_as_the_loader_made_it(kind):
    """What is moved to the device is put into no layer of the loader's own."""
    top, base = {"x": torch.full((2,), 1.0)}, {"scale": torch.full((2,), 2.0)}
    on_host = top["x"], base["scale"]

    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        (batch,) = gapless.prefetch([kind(top, base)], device)
        found = [value.tolist() for value in (batch["x"], batch["scale"])]

    assert found == [[1.0, 1.0], [2.0, 2.0]]
    assert list(top) == ["x"]
    assert list(base) == ["scale"]
    assert (top["x"], base["scale"]) == on_host


def test_a_mapping_whose_copy_shares_its_items_is_refused_and_left_as_it_was():
    top = {"x": torch.full((2,), 1.0)}
    on_host = top["x"]

    with (
        SimulatedDevice(scheduler="asap") as device,
        pytest.raises(BatchError, match="cannot rebuild a Delegating"),
    ):
        list(gapless.prefetch([Delegating(top, {})], device))

    assert top["x"] is on_host


@pytest.mark.parametrize("num_batches", [1, 3])
def test_a_pass_that_was_asked_keeps_the_draw_of_its_loader(num_batches):
    """Random numbers go on as without prefetch, whether the pass came to its end or not."""

    def orders(wrapped):
        torch.manual_seed(0)
        loader = DataLoader(TensorDataset(torch.arange(12)), batch_size=4)
        found = []
        for _ in range(2):
            batches = wrapped(loader)
            found.append(
                [batch[0].tolist() for batch, _ in zip(batches, range(num_batches), strict=False)]
            )
            del batches
            gc.collect()
        return found, torch.get_rng_state().tolist()

    assert orders(lambda loader: gapless.prefetch(loader, "cpu")) == orders(iter)
