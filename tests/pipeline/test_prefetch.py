"""Prefetching any batch in anybody's loop."""

from __future__ import annotations

import collections
import dataclasses
import gc
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn.utils.rnn import pack_padded_sequence

import gapless
from gapless.pipeline.tree import flatten


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


@settings(deadline=None, max_examples=60)
@given(st.lists(batches, max_size=7), st.integers(1, 4))
def test_batches_of_any_structure_come_out_as_they_went_in(data, depth):
    """Structure, types, values and order are kept, even when every batch is kept."""
    found = list(gapless.prefetch(data, "cpu", depth=depth))

    assert all(map(same, data, found))
    assert len(data) == len(found)


def test_strided_and_tracked_tensors_are_copied_densely():
    """A transposed tensor and one that requires gradients arrive with their values."""
    data = [(torch.arange(12.0).view(3, 4).t(), torch.ones(3, requires_grad=True))]

    ((moved, tracked),) = gapless.prefetch(data, "cpu")

    assert torch.equal(data[0][0], moved)
    assert not tracked.requires_grad


def test_mappings_keep_their_kind():
    """An ordered or user-defined mapping comes back as the same kind."""
    ordered = collections.OrderedDict(b=torch.ones(2), a=1)
    user = collections.UserDict(x=torch.zeros(1))

    moved = flatten([ordered, user]).map(lambda tensor: tensor + 1).value

    assert [collections.OrderedDict, collections.UserDict] == [type(part) for part in moved]
    assert list(moved[0]) == ["b", "a"]
    assert [tensor.numel() for tensor in flatten(moved).leaves] == [2, 1]


@pytest.mark.parametrize(
    "value",
    [
        np.ones(2),
        object(),
        {1, 2},
        pack_padded_sequence(torch.ones(2, 1), torch.tensor([2]), batch_first=False),
    ],
)
def test_an_unknown_value_is_refused_by_name(value):
    """What cannot be moved is named, instead of staying behind silently."""
    with pytest.raises(gapless.BatchError, match=type(value).__qualname__):
        list(gapless.prefetch([{"x": value}], "cpu"))


def test_a_sparse_tensor_is_refused():
    """A layout that has no flat memory is named."""
    with pytest.raises(gapless.BatchError, match="sparse"):
        list(gapless.prefetch([torch.eye(2).to_sparse()], "cpu"))


def test_a_failing_loader_loses_no_batch():
    """The batches before a failure are yielded, then the failure is raised."""

    def loader():
        yield from (torch.tensor(n) for n in range(5))
        raise OSError("disk gone")

    found = []
    with pytest.raises(OSError, match="disk gone"):
        for batch in gapless.prefetch(loader(), "cpu", depth=3):
            found.append(int(batch))

    assert found == [0, 1, 2, 3, 4]


def test_a_prefetcher_serves_many_epochs_also_after_a_break():
    """Each pass starts the loader anew; leaving one early harms nothing."""
    prefetcher = gapless.prefetch([torch.tensor(n) for n in range(6)], "cpu")
    for batch in prefetcher:
        if batch == 2:
            break

    assert [int(batch) for batch in prefetcher] == [0, 1, 2, 3, 4, 5]
    assert len(prefetcher) == 6
    assert prefetcher.data_wait_ms >= 0


def test_a_depth_below_one_is_refused():
    """Prefetching nothing is a mistake, and is said so."""
    with pytest.raises(ValueError, match="depth must be at least 1, but is 0"):
        gapless.prefetch([], "cpu", depth=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 7)])
def test_any_dtype_and_shape_is_staged(dtype, shape):
    """Scalars and tensors without elements come out as they are, beside others in one batch."""
    tensor = torch.ones(shape).to(dtype)
    data = [(torch.ones(3, dtype=torch.int8), tensor, torch.zeros(1))] * 3

    found = list(gapless.prefetch(data, "cpu"))

    assert all(map(same, data, found))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24).view(2, 3, 4).permute(2, 0, 1),
        torch.arange(10)[::3],
        torch.ones(1).expand(4, 5),
        torch.randn(3, dtype=torch.complex64).conj(),
    ],
    ids=["permuted", "strided", "expanded", "conjugated"],
)
def test_views_arrive_with_their_values(tensor):
    """How a tensor lies in the loader's memory does not matter."""
    assert all(torch.equal(tensor, found) for found in gapless.prefetch([tensor] * 4, "cpu"))


@pytest.mark.parametrize("depth", range(1, 6))
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
    assert taken + 10 == prefetcher.num_batches


@pytest.mark.parametrize("depth", range(1, 6))
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


def test_no_more_is_taken_from_the_loader_than_the_depth_asks_for():
    """When batch n is handed out, n + depth + 1 have been taken, the one in use counted."""
    taken = []

    def loader():
        for number in range(20):
            taken.append(number)
            yield torch.tensor(number)

    ahead = [len(taken) - int(batch) for batch in gapless.prefetch(loader(), "cpu", depth=3)]

    assert ahead == [4] * 17 + [3, 2, 1]


def test_the_wait_for_the_loader_is_measured():
    """Time in the loader grows over the epochs."""
    prefetcher = gapless.prefetch([torch.ones(2)] * 5, "cpu")
    times = [prefetcher.data_wait_ms]
    for _epoch in range(2):
        list(prefetcher)
        times.append(prefetcher.data_wait_ms)

    assert 0.0 == times[0] < times[1] < times[2]


def test_a_loader_without_length_has_none():
    """`len` is the loader's own, and so is its absence."""
    with pytest.raises(TypeError):
        len(gapless.prefetch(iter([]), "cpu"))


def test_batches_without_tensors_pass_through():
    """A batch of plain values needs no transfer and keeps its place in the order."""
    data = ["first", 2, {"x": torch.ones(1)}, None, ()]

    found = list(gapless.prefetch(data, "cpu", depth=1))

    assert all(map(same, data, found))


def test_a_batch_that_cannot_be_moved_waits_its_turn():
    """The batches before a bad one are yielded, then it is refused."""
    found = []
    with pytest.raises(gapless.BatchError):
        for batch in _failing_at_three():
            found.append(int(batch))

    assert found == [0, 1, 2]


def _failing_at_three():
    return gapless.prefetch([*map(torch.tensor, range(3)), object()], "cpu", depth=3)
