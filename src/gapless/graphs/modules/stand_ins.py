"""Other parameters that stand in a module for a while, in the memory of its own."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from gapless.graphs.modules.module_refusals import MOVES_WEIGHTS
from gapless.graphs.refusal import Refused


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch


@contextmanager
def with_stand_ins(
    module: nn.Module, weights: Sequence[torch.Tensor]
) -> Iterator[list[torch.Tensor]]:
    """Let other parameters in the same memory stand in the module in the body.

    Weights that are no parameters of the module stay themselves.
    """
    made = {id(weight): _stand_in(weight) for weight in weights}
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    known: set[int] = set()
    for part in module.modules():
        table = vars(part).get("_parameters") or {}
        for name, weight in list(table.items()):
            if id(weight) in made:
                replaced.append((table, name, weight))
                known.add(id(weight))
                table[name] = made[id(weight)]
        replaced += _replace_flat_weights(part, made)
    try:
        yield [made[id(weight)] if id(weight) in known else weight for weight in weights]
    finally:
        for table, name, value in replaced:
            table[name] = value
    if any(made[id(weight)].data_ptr() != weight.data_ptr() for weight in weights):
        raise Refused(MOVES_WEIGHTS)


def _replace_flat_weights(
    part: nn.Module, made: dict[int, torch.Tensor]
) -> list[tuple[dict[str, Any], str, Any]]:
    """Let a recurrent module find the same parameters in its list of them; return what was there.

    Otherwise it would copy them to other memory.
    """
    kept = vars(part)
    flat, refs = kept.get("_flat_weights"), kept.get("_flat_weight_refs")
    if not isinstance(flat, list) or not isinstance(refs, list):
        return []
    others = [made.get(id(weight), weight) for weight in flat]
    kept["_flat_weights"] = others
    kept["_flat_weight_refs"] = [None if one is None else weakref.ref(one) for one in others]
    return [(kept, "_flat_weights", flat), (kept, "_flat_weight_refs", refs)]


def _stand_in(weight: torch.Tensor) -> torch.Tensor:
    made = weight.data.requires_grad_(weight.requires_grad)
    if isinstance(weight, nn.Parameter):
        made = nn.Parameter(weight.data, requires_grad=weight.requires_grad)
    vars(made).update(vars(weight))
    return made
