"""What code reached when guards were made for it: as long as these hold, it reaches the same.

To find it anew costs some plain calls of the step. What code reaches follows from the code and from what
stands in the places that it reads, and guards compare these. So a further kind of calls, which runs the same
code, needs no search. No object is held that can be referred to weakly; guards hold all others themselves.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from gapless.device.torch_gpu import STREAM_TYPES


if TYPE_CHECKING:
    from types import FunctionType

    import torch
    from torch import nn

    from gapless.graphs.reads.chains import Chain
    from gapless.graphs.reads.executed import Executed
    from gapless.graphs.reads.reach import Reach
    from gapless.graphs.reads.read_guards import ReadGuards
    from gapless.graphs.reads.value_places import Place


_Ref: TypeAlias = Callable[[], Any]


@dataclass(frozen=True)
class Reached:
    """What code reaches, as `gapless.graphs.reads.reach.Reach` has it."""

    places: dict[tuple[str, int, Any], Place]
    stored: set[tuple[str, int, Any]]
    whole: dict[int, tuple[Any, str, str]]
    objects: dict[int, tuple[Any, str]]
    modules: dict[int, tuple[nn.Module, str]]
    tensors: dict[int, tuple[torch.Tensor, str, str]]
    states: dict[object, tuple[Any, Callable[[], Any], str, str]]
    functions: dict[int, list[FunctionType]]
    codes: dict[int, Executed]

    def values_of(self, executed: Executed, chain: Chain) -> list[Any]:
        """Return nothing: what names stand for is asked where something has changed, of a new search."""
        del executed, chain
        return []


class KeptReach:
    """What code reached when guards were made, to be had again while they hold.

    Args:
        reach: the search.
        guards: that were made of it.
        num_codes: how much code had run by then.
    """

    def __init__(self, reach: Reach, guards: ReadGuards, num_codes: int) -> None:
        self._num_codes = num_codes
        self._guards = weakref.ref(guards, lambda _: self._forget())
        # Of a place that is not an attribute, there is no holder.
        self._places = [
            (place.without_holder(), None if place.holder is None else _ref_of(place.holder))
            for place in reach.places.values()
        ]
        self._stored = set(reach.stored)
        self._whole = dict(reach.whole)
        self._objects = _refs_of(reach.objects)
        self._modules = _refs_of(reach.modules)
        self._tensors = _refs_of(reach.tensors)
        self._states = dict(reach.states)
        self._functions = {key: list(map(_ref_of, each)) for key, each in reach.functions.items()}
        self._codes = dict(reach.codes)

    def guards(self, num_codes: int) -> ReadGuards | None:
        """Return the guards, if they hold and no other code has run since."""
        guards = self._guards()
        if guards is None or num_codes != self._num_codes or not guards.holds():
            return None
        return guards

    def as_known(self, skip: set[int]) -> Reached | None:
        """Return what the code reaches, None if some of it is gone, or is to be left out.

        Args:
            skip: ids of objects that are left out, such as the batch.
        """
        tables = (self._whole, self._objects, self._modules, self._tensors)
        if any(not skip.isdisjoint(table) for table in tables):
            return None
        objects, modules, tensors = map(_alive, (self._objects, self._modules, self._tensors))
        functions = {key: [ref() for ref in refs] for key, refs in self._functions.items()}
        holders = [None if ref is None else ref() for _, ref in self._places]
        is_gone = any(
            ref is not None and holder is None
            for (_, ref), holder in zip(self._places, holders, strict=True)
        )
        is_gone |= any(one is None for each in functions.values() for one in each)
        if is_gone or objects is None or modules is None or tensors is None:
            return None
        places = [
            place if holder is None else place.of(holder)
            for (place, _), holder in zip(self._places, holders, strict=True)
        ]
        return Reached(
            {place.id: place for place in places},
            self._stored,
            self._whole,
            objects,
            modules,
            tensors,
            self._states,
            functions,
            self._codes,
        )

    def _forget(self) -> None:
        self._places = []
        self._whole, self._states, self._functions, self._codes = {}, {}, {}, {}
        self._objects, self._modules, self._tensors = {}, {}, {}


def _ref_of(value: Any) -> _Ref:
    has_refs = type(value).__weakrefoffset__ and not isinstance(value, STREAM_TYPES)
    return weakref.ref(value) if has_refs else lambda: value


def _refs_of(table: dict[int, Any]) -> dict[int, tuple[_Ref, tuple[str, ...]]]:
    return {key: (_ref_of(value), words) for key, (value, *words) in table.items()}


def _alive(table: dict[int, tuple[_Ref, tuple[str, ...]]]) -> Any:
    """Return a table with its objects, None if one of them is gone."""
    found = {key: (ref(), *words) for key, (ref, words) in table.items()}
    return None if any(value is None for value, *_ in found.values()) else found
