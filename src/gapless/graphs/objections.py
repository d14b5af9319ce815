"""Why no graph can take a call: rules on its batch, and on the modes of torch that it stands in."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING

import torch

from gapless.device.torch_modes import watching_modes
from gapless.device.torch_private import is_transformed, keeps_parametrizations
from gapless.graphs.refusal import Refusal
from gapless.pipeline.tree.containers import why_left_alone
from gapless.pipeline.tree.tensor_layout import has_address


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.pipeline.tree.flatten import Tree


def objection_to_batch(
    tree: Tree, *, needs_copy: Callable[[torch.Tensor], bool]
) -> Refusal | None:
    """Return why no graph can take a batch, None if one can."""
    objection = objection_to_tensors(tree, needs_copy=needs_copy)
    if objection is not None:
        return objection
    wanted = [tensor for tensor in tree.leaves if tensor.requires_grad]
    return _requires_gradients(wanted[0]) if wanted else None


def objection_to_tensors(
    tree: Tree, *, needs_copy: Callable[[torch.Tensor], bool]
) -> Refusal | None:
    """Return why no graph can take a batch, None if one can that brings it its gradients."""
    # A weak reference leads nowhere in a capture.
    unknown = [one for one in tree.unknown if type(one) is not weakref.ref]
    if unknown:
        return _is_unknown(unknown[0])
    for tensor in tree.leaves:
        if not has_address(tensor):
            return _has_no_address(tensor)
        if needs_copy(tensor):
            return _is_on_the_host(tensor)
    return None


def objection_to_autocast(device_type: str) -> Refusal | None:
    """Return why no graph can take a call in the modes of now, None if one can.

    Autocast keeps its casts of weights until its outermost block ends, so what a step computes
    depends on what ran in the block before, which nobody can see.
    """
    if not (torch.is_autocast_enabled(device_type) and torch.is_autocast_cache_enabled()):
        return None
    return Refusal(
        "inside_autocast",
        "the step is called inside autocast, whose cached casts of weights a graph does not "
        "renew; enter autocast within the step, call a captured optimizer behind it, or give it "
        "cache_enabled=False",
        name="autocast",
    )


def objection_to_modes() -> Refusal | None:
    """Return why no graph can take a call in the modes that watch operations, None if one can."""
    if torch.is_anomaly_enabled():
        return _watched("torch.autograd.set_detect_anomaly")
    if keeps_parametrizations():
        return _inside_cached()
    modes = watching_modes()
    return _watched(type(modes[0]).__name__) if modes else None


def objection_to_profiler() -> Refusal | None:
    """Return why the next call cannot be watched, None if it can.

    A graph needs one call that is seen, function by function, and only one profiler can see a thread.
    """
    profiler = sys.getprofile()
    if profiler is None or callable(profiler) or hasattr(profiler, "disable"):
        return None
    kind = type(profiler)
    return Refusal(
        "watched_by_mode",
        f"a profiler ({kind.__module__}.{kind.__qualname__}) watches this thread, and the calls before "
        "a capture have to be watched too; start it when graphs have been captured",
        is_final=False,
        name=f"{kind.__module__}.{kind.__qualname__}",
    )


def objection_to_transforms() -> Refusal | None:
    """Return why no graph can take a call within a transform of tensors, None outside of any.

    Asked before all else: such tensors have no memory of their own to look at.
    """
    return _watched("a transform of torch.func") if is_transformed() else None


def _watched(name: str) -> Refusal:
    return Refusal(
        "watched_by_mode",
        f"the step is called inside {name}, which sees operations that a replay does not run "
        "again; leave it before the call",
        name=name,
    )


def _inside_cached() -> Refusal:
    return Refusal(
        "inside_cached",
        "the step is called inside torch.nn.utils.parametrize.cached(), whose weights a graph does "
        "not renew; enter it within the step",
        name="torch.nn.utils.parametrize.cached()",
    )


def _is_unknown(value: object) -> Refusal:
    why = why_left_alone(value)
    if why is not None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        return Refusal(
            "unknown_batch",
            f"a batch holds a {kind}, which {why}; pass a dict, list or tuple of what the step needs",
            name=f"a {type(value).__qualname__} in a batch",
        )
    return Refusal(
        "unknown_batch",
        f"a batch holds a {type(value).__module__}.{type(value).__qualname__}, whose values a "
        "graph would keep; it may hold tensors, numbers, strings, tuples, lists, mappings, "
        "dataclasses and objects of them: convert it in the loader's collate_fn, or bind it to the step with "
        "functools.partial",
        name=f"a {type(value).__qualname__} in a batch",
    )


def _has_no_address(tensor: torch.Tensor) -> Refusal:
    kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
    return Refusal(
        "unknown_batch",
        f"a batch holds a {kind} tensor, whose memory is of several pieces and new ones each time; "
        "pass its parts, and put them together in the step",
        name=f"a {kind} tensor in a batch",
    )


def _is_on_the_host(tensor: torch.Tensor) -> Refusal | None:
    return Refusal(
        "batch_on_host",
        f"a batch holds {_named(tensor)}, whose values a graph would keep; move it to the device, "
        "or make it a plain value",
        name="a batch",
    )


def _requires_gradients(tensor: torch.Tensor) -> Refusal | None:
    return Refusal(
        "batch_requires_grad",
        f"a batch holds {_named(tensor)} that requires gradients, which a graph would not bring "
        "to it; detach it, or call requires_grad_() in the step",
        name="a batch",
    )


def _named(tensor: torch.Tensor) -> str:
    return f"a tensor on {tensor.device} ({tensor.dtype}, shape {tuple(tensor.shape)})"
