"""Modules and weights that lie across several ranks: what of them no graph can take.

They are known by the names of their classes, so that nothing of torch.distributed is loaded for them.
"""

from __future__ import annotations

from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.reads.module_parts import named_parts
from gapless.graphs.reads.value_places import entries_of
from gapless.graphs.refusal import Refusal


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_GATHERS = (
    " gathers weights into other memory in each call, and frees it, where a graph keeps addresses; train it as "
    "written, or use DistributedDataParallel if the model fits on a GPU"
)
_DTENSOR = Refusal(
    "weights",
    "a weight is a DTensor, as of fully_shard (FSDP2) or tensor parallelism, of which a rank holds a part "
    "that a graph cannot find; train it as written",
    name="DTensor",
)
_DDP = Refusal(
    "weights",
    "DistributedDataParallel gets its sums of gradients ready on the host in each call, which a replay "
    "would leave out; capture the module within, gapless.capture(model.module), or the whole step",
    name="DistributedDataParallel",
)
_DP = Refusal(
    "weights",
    "DataParallel copies the module to its GPUs in each call, and calls the copies in threads; train with "
    "DistributedDataParallel, or capture the module within if there is one GPU",
    name="DataParallel",
)
_SHARDED = {
    "FSDPModule": Refusal("weights", "fully_shard (FSDP2)" + _GATHERS, name="fully_shard"),
    "FullyShardedDataParallel": Refusal(
        "weights", "FullyShardedDataParallel (FSDP)" + _GATHERS, name="FullyShardedDataParallel"
    ),
}


def refusal_of_module(module: torch.nn.Module) -> Refusal | None:
    """Return why a module cannot be captured where it stands, None if it may."""
    for _, part in named_parts(module):
        found = _by_class(part, _SHARDED | {"DistributedDataParallel": _DDP, "DataParallel": _DP})
        if found is not None:
            return found
        refusal = refusal_of_weights(part._parameters.values())
        if refusal is not None:
            return refusal
    return None


def refusal_of_step(step: Any) -> Refusal | None:
    """Return why a step cannot be captured with the modules that it names, None if it may."""
    for module in _modules_of(step):
        for _, part in named_parts(module):
            found = _by_class(part, _SHARDED)
            if found is not None:
                return found
    return None


def refusal_of_weights(weights: Iterable[Any]) -> Refusal | None:
    """Return why these weights cannot be in a graph, None if they may."""
    for weight in weights:
        if any(kind.__name__ == "DTensor" for kind in type(weight).__mro__):
            return _DTENSOR
    return None


def _by_class(part: torch.nn.Module, refusals: dict[str, Refusal]) -> Refusal | None:
    for kind in type(part).__mro__:
        if kind.__name__ in refusals and kind.__module__.startswith("torch."):
            return refusals[kind.__name__]
    return None


def _modules_of(step: Any) -> Iterator[torch.nn.Module]:
    """Yield the modules that a step holds, closes over or finds by a global name."""
    while isinstance(step, partial):
        yield from _modules_among([*step.args, *step.keywords.values()])
        step = step.func
    if isinstance(step, MethodType):
        yield from _modules_among([step.__self__, *_attributes(step.__self__)])
        step = step.__func__
    if isinstance(step, FunctionType):
        cells = [cell.cell_contents for cell in step.__closure__ or () if _is_filled(cell)]
        names = step.__code__.co_names
        found = [step.__globals__[name] for name in names if name in step.__globals__]
        yield from _modules_among([*cells, *found])
    else:
        yield from _modules_among([step, *_attributes(step)])


def _modules_among(values: Iterable[Any]) -> Iterator[torch.nn.Module]:
    for value in values:
        # What an object says of its class is code of the user's, which may raise.
        if issubclass(type(value), torch.nn.Module):
            yield value


def _attributes(value: Any) -> list[Any]:
    return list((entries_of(value) or {}).values())


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # raises where nothing is in it yet
    except ValueError:
        return False
    return True
