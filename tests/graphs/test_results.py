"""What replays return: copies, in the structure of what the step returned."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, strategies as st

from gapless.graphs.replay.results import Results, not_made_anew
from gapless.graphs.replay.tensor_copies import TensorCopies
from gapless.pipeline.tree.flatten import flatten


class Point(NamedTuple):
    x: object
    y: object = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: object
    y: object = "text"


BASE = torch.arange(24.0).view(4, 6)

# Views of one storage in all forms, and tensors of their own.
VIEWS = {
    "whole": lambda base: base,
    "row": lambda base: base[1],
    "column": lambda base: base[:, 2],
    "transposed": lambda base: base.t(),
    "expanded": lambda base: base[0].expand(3, 6),
    "windows": lambda base: base.view(-1).unfold(0, 4, 2),
    "every second": lambda base: base[::2, ::3],
    "empty": lambda base: base[:0],
    "zero": lambda base: base[2, 3],
    "channels last": lambda base: base.new_ones(2, 3, 2, 2).to(memory_format=torch.channels_last),
    "integers": lambda base: base.long(),
    "bits": lambda base: base.view(torch.int32)[0],
    "complex": lambda base: torch.complex(base, base),
    "conjugate": lambda base: torch.complex(base, base).conj(),
    "imaginary part": lambda base: torch.complex(base, base).conj().imag,
    "sparse": lambda base: base.to_sparse(),
    "weight": lambda base: torch.nn.Parameter(base.clone()),
}
views = st.sampled_from(list(VIEWS.values())).map(lambda view: view(BASE))
structures = st.recursive(
    views | st.sampled_from([1, "text", None, 2.5]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Frozen, inner, inner),
    ),
    max_leaves=8,
)


def outline(value):
    """Return a value as plain data: types, values, shapes and strides."""
    if isinstance(value, torch.Tensor):
        strides = None if value.is_sparse else value.stride()
        is_lazy = value.is_conj(), value.is_neg()
        return (value.dtype, tuple(value.shape), strides, is_lazy, value.to_dense().tolist())
    if isinstance(value, Point | Frozen):
        return (type(value), outline(value.x), outline(value.y))
    if isinstance(value, tuple | list):
        return (type(value), *map(outline, value))
    if isinstance(value, dict):
        return (dict, *((name, outline(part)) for name, part in value.items()))
    return value


def results_of(value, *, inputs=(), others=()):
    """Return a function that makes copies of a value."""
    results = Results(flatten(value), inputs=inputs, others=others)
    batch = [tensor.clone() for tensor in inputs]
    return lambda: results.own(batch)


@given(structures)
def test_copies_are_equal_in_structure_values_and_strides(value):
    """Any number of times, whatever shares memory."""
    own = results_of(value)

    assert outline(own()) == outline(own()) == outline(value)


@pytest.mark.parametrize("name", VIEWS)
def test_a_copy_has_memory_of_its_own(name):
    """Nothing that happens to the original, or to another copy, happens to it."""
    original = VIEWS[name](BASE.clone())
    own = results_of((original, 1))
    one, _ = own()
    other, _ = own()
    expected = outline(original)

    original.detach().zero_() if name not in ("expanded", "windows") else original[0, 0].zero_()
    if name not in ("expanded", "windows", "sparse"):
        with torch.no_grad():
            other.add_(1)

    assert outline(one) == expected
    assert one.requires_grad == original.requires_grad


def test_a_copy_of_a_loss_requires_gradients_and_has_none():
    """As the loss of a step that has run its backward pass."""
    weight = torch.nn.Parameter(torch.ones(3))
    loss = weight.square().sum()
    loss.backward()
    own = results_of({"loss": loss, "log": loss.detach()})()

    assert own["loss"].requires_grad
    assert own["loss"].grad_fn is not None
    assert not own["log"].requires_grad
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        (2 * own["loss"]).backward()


def test_what_shares_memory_shares_it_in_the_copies():
    """A tensor, the same once more, a view of it, and the view alone."""
    base = torch.zeros(3, 2)
    own = results_of({"base": base, "again": base, "row": base[1], "other": torch.zeros(2)})

    found = own()
    found["row"].fill_(7.0)
    found["again"][0] = 5.0

    assert found["base"].tolist() == [[5.0, 5.0], [7.0, 7.0], [0.0, 0.0]]
    assert found["other"].tolist() == base[1].tolist() == [0.0, 0.0]


def test_what_was_there_before_and_the_batch_are_returned_as_they_are():
    """A weight is the weight, and a tensor of the batch is that of the replay's batch."""
    weight, one, new = torch.nn.Parameter(torch.ones(1)), torch.zeros(1), torch.zeros(2)
    results = Results(flatten([weight, one, new, weight]), inputs=[one], others=[weight])
    batch = [torch.ones(1)]

    found = results.own(batch)

    assert found[0] is found[3] is weight
    assert found[1] is batch[0]
    assert found[2] is not new
    assert results.own(batch)[2] is not found[2]


def test_tensors_of_one_dtype_are_copied_in_one_launch():
    """Five tensors, of two dtypes."""
    calls = []

    class Counts(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            calls.append(function)
            return function(*args, **(kwargs or {}))

    copies = TensorCopies([torch.ones(2), torch.ones(3), torch.ones(1).int(), torch.ones(1)])
    with Counts():
        copies.make()

    launches = (torch._foreach_copy_, torch._foreach_clamp_max, torch.Tensor.clone)
    assert sum(map(calls.count, launches)) == 2


def test_a_gradient_is_the_one_that_its_weight_has_then():
    """Also if the loop has put another there since, and nobody holds the captured one here."""
    weight, other = torch.nn.Parameter(torch.ones(2)), torch.zeros(1)
    weight.grad = torch.ones(2)
    results = Results(
        flatten({"grads": [weight.grad], "loss": other}),
        inputs=(),
        others=[weight],
        gradients=[(weight, weight.grad)],
    )
    weight.grad = torch.full((2,), 3.0)

    found = results.own(())

    assert results.has_gradients
    assert found["grads"][0] is weight.grad
    assert found["loss"] is not other


class Labelled(list):
    """A list with an attribute."""

    label = None


def labelled(label):
    made = Labelled([torch.ones(1)])
    made.label = label
    return made


def with_attribute(tensor):
    tensor.label = 1
    return tensor


ONE_LIST = [torch.ones(1)]


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ([torch.ones(1), {"a": (1, torch.ones(2))}], None),
        (labelled("text"), None),
        (labelled(torch.ones(1)), Labelled),
        ({"a": [labelled([torch.ones(1)])]}, Labelled),
        ([ONE_LIST, ONE_LIST], list),
        ([with_attribute(torch.ones(1))], torch.Tensor),
    ],
)
def test_what_results_have_beside_their_parts_is_found(value, part):
    """Tensors in attributes, tensors with attributes, and one list that stands there twice."""
    found = not_made_anew(flatten(value), others=())

    assert part is None if found is None else type(found) is part
