"""Capture all of an update but the operations that take its rate, which each replay calls.

Without `capturable=True` an update counts its steps on the host. No formula of Adadelta or RMSprop reads the
count, and their rate is a number of the last operation alone. Adam over lists of weights has three operations
whose numbers follow from the rate and the count. So a graph holds all that has other numbers, and is cut
behind that: every replay counts on the host, and calls the rest of torch's own `step()` with the numbers of
that moment. Operations and numbers are those of the update as written, whatever a schedule does, and a rate
that changes changes no graph. Likewise SGD, and fused updates, once a schedule has changed their rate.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import TorchDispatchMode, schema_of
from gapless.graphs.updates.update_numbers import (
    corrections_of_adam,
    decay_of_adam,
    is_foreach_adam,
    sizes_of_adam,
    values_of,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.optim import Optimizer


_optim: Any = torch.optim


# The numbers of a fused update by their names there.
_OF_FUSED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "lr": itemgetter("lr"),
    "beta1": lambda group: group["betas"][0],
    "beta2": lambda group: group["betas"][1],
    "weight_decay": itemgetter("weight_decay"),
    "eps": itemgetter("eps"),
}


def _numbers_of_fused(group: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    return {name: of(group) for name, of in _OF_FUSED.items() if name in named}


def _minus_rate(group: dict[str, Any], _: object) -> float:
    return -float(group["lr"])


# What each replay computes anew, of a group and the counts of its weights: a number of an operation that writes
# to weights or to others, and is one for all or one for each.
_OF_RATE: dict[tuple[str, str], Callable[..., Any]] = {("weights", "one"): _minus_rate}
_OF_ADAM: dict[tuple[str, str], Callable[..., Any]] = {
    ("weights", "one"): decay_of_adam,
    ("others", "each"): corrections_of_adam,
    ("weights", "each"): sizes_of_adam,
}
_NUMBERS: dict[type, dict[tuple[str, str], Callable[..., Any]]] = {
    _optim.Adadelta: _OF_RATE,
    _optim.RMSprop: _OF_RATE,
    _optim.SGD: _OF_RATE,
    _optim.Adam: _OF_ADAM,
    _optim.AdamW: _OF_ADAM,
}

# Torch forbids to capture updates that count on the host; here their counts are no part of the graph.
_CHECKS = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")


def takes_rate_last(optimizer: Optimizer) -> bool:
    """Return whether an update needs nothing of the host but numbers of its last operations."""
    if type(optimizer) not in (_optim.Adadelta, _optim.RMSprop) and not is_foreach_adam(optimizer):
        return False
    return _has_plain_rates(optimizer)


def may_take_rate_last(optimizer: Optimizer) -> bool:
    """Return whether an update that could be inside can as well leave operations with its rate to replays."""
    return (type(optimizer) is _optim.SGD or _is_fused_adam(optimizer)) and _has_plain_rates(
        optimizer
    )


def numbers_read_anew(optimizer: Optimizer) -> tuple[str, ...]:
    """Return the numbers of a group that replays read, if an update leaves those of its last operations to them."""
    if _is_fused_adam(optimizer):
        return "lr", "betas", "weight_decay", "eps"
    is_decoupled = all(group.get("decoupled_weight_decay") for group in optimizer.param_groups)
    return ("lr", "weight_decay") if is_decoupled else ("lr",)


def _is_fused_adam(optimizer: Optimizer) -> bool:
    is_adam = type(optimizer) in (_optim.Adam, _optim.AdamW)
    return is_adam and all(group["fused"] for group in optimizer.param_groups)


def _has_plain_rates(optimizer: Optimizer) -> bool:
    return not any(
        group.get("capturable")
        or type(group["lr"]) not in (float, int)
        or any(map(torch.is_complex, group["params"]))
        for group in optimizer.param_groups
    )


class RateOutside(TorchDispatchMode):
    """Keeps from the capture in its body what each replay has to call.

    Args:
        optimizer: whose step the body calls.
        gradients: that its weights have: they may go elsewhere after the step, so places in this list are kept.

    Attributes:
        gradients: the same list.
        reads_gradients: whether what is kept reads any.
    """

    def __init__(self, optimizer: Optimizer, gradients: list[torch.Tensor | None]) -> None:
        super().__init__()
        self._numbers = _NUMBERS[type(optimizer)]
        # By the count of a weight, and by the weight.
        self._groups: dict[int, dict[str, Any]] = {}
        self._weights: dict[int, dict[str, Any]] = {}
        for group in optimizer.param_groups:
            for weight in group["params"]:
                self._weights[id(weight)] = group
                self._groups[id(optimizer.state.get(weight, {}).get("step"))] = group
        self.gradients = gradients
        self._places = {id(gradient): place for place, gradient in enumerate(gradients)}
        self.reads_gradients = False
        self._kept: list[_Kept] = []
        # Of the weights that are updated now.
        self._group: dict[str, Any] = {}
        self._counts: list[torch.Tensor] = []
        self._written: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, or keep it for the replays."""
        kwargs = kwargs or {}
        if schema_of(func).is_mutable:
            written = list(tensors_in(args[0]))
            ids = set(map(id, written))
            if self._groups.keys() >= ids:
                self._group, self._counts = self._groups[id(written[0])], written
                # Fused updates count on the device.
                if not self._group.get("fused") or self._written:
                    self._kept.append(_Kept(func, args, kwargs))
                    return _result(args[0])
            if "lr" in kwargs and self._weights.keys() >= ids:
                self._keep_fused(func, args, kwargs, self._weights[id(written[0])])
                return None
            if self._keeps(func, args, kwargs, ids):
                self._written |= ids
                return _result(args[0])
        if not self._written.isdisjoint(map(id, tensors_in((args, kwargs)))):
            raise RuntimeError("an update reads what it has written with its rate")
        return func(*args, **kwargs)

    def call(self) -> None:
        """Call what was kept, with the numbers of now."""
        with torch.no_grad():
            known: dict[int, list[float]] = {}
            for one in self._kept:
                one.call(known)

    def _keeps(self, func: Any, args: Any, kwargs: Any, written: set[int]) -> bool:
        """Keep an operation whose numbers change, or which goes on with what such a one has written."""
        numbers = list(filter(_is_number, (*args, *kwargs.values())))
        to = "weights" if self._weights.keys() >= written else "others"
        each = "each" if any(isinstance(one, list) for one in numbers) else "one"
        goes_on = not self._written.isdisjoint(written)
        if (to, each) == ("others", "one") and not goes_on:
            return False
        kept = _Kept(func, [args[0], *map(self._own, args[1:])], kwargs)
        if (to, each) != ("others", "one"):
            # SGD has no counts.
            (first, *_) = written
            kept.group, kept.counts = self._weights.get(first, self._group), self._counts
            kept.number_of = self._numbers.get((to, each))
            if kept.number_of is None or numbers != [kept.number({})]:
                raise RuntimeError("an update has numbers that are not known")
        self._kept.append(kept)
        return True

    def _keep_fused(self, func: Any, args: Any, kwargs: Any, group: dict[str, Any]) -> None:
        """Keep an update that is one operation."""
        kept = _Kept(func, list(map(self._own, args)), kwargs, group=group, is_fused=True)
        if kwargs != {**kwargs, **_numbers_of_fused(group, kwargs)}:
            raise RuntimeError("an update has numbers that are not known")
        self._kept.append(kept)
        self._written |= set(map(id, tensors_in(args)))

    def _own(self, value: Any) -> Any:
        """Return an argument to keep: of gradients their places, so that nobody else holds the graph's."""
        tensors = list(tensors_in(value))
        if self._places.keys().isdisjoint(map(id, tensors)):
            return value
        self.reads_gradients = True
        places = [self._places[id(tensor)] for tensor in tensors]
        return _Gradients(self.gradients, places, is_list=isinstance(value, list | tuple))


@dataclass
class _Gradients:
    """An argument of gradients."""

    gradients: list[torch.Tensor | None]
    places: list[int]
    is_list: bool

    def now(self) -> Any:
        """Return those of now."""
        found = [self.gradients[place] for place in self.places]
        return found if self.is_list else found[0]


@dataclass
class _Kept:
    """An operation that replays call, and how its number is computed, if that changes."""

    func: Callable[..., object]
    args: Any
    kwargs: dict[str, Any]
    number_of: Callable[..., Any] | None = None
    group: Any = None
    counts: Any = ()
    is_fused: bool = False

    def call(self, known: dict[int, list[float]]) -> None:
        """Call it; `known` are the counts that were read since they changed."""
        args = [one.now() if isinstance(one, _Gradients) else one for one in self.args]
        if self.is_fused:
            self.func(*args, **{**self.kwargs, **_numbers_of_fused(self.group, self.kwargs)})
            return
        if self.number_of is None:
            self.func(*args, **self.kwargs)
            return
        number = self.number(known)
        self.func(
            *[number if _is_number(one) else one for one in args],
            **{name: number if _is_number(one) else one for name, one in self.kwargs.items()},
        )

    def number(self, known: dict[int, list[float]]) -> Any:
        """Return its number of now."""
        assert self.number_of is not None
        if self.number_of is not _minus_rate and id(self.counts) not in known:
            known[id(self.counts)] = values_of(self.counts)
        return self.number_of(self.group, known.get(id(self.counts)))


def _result(written: Any) -> Any:
    """Return what an operation returns that writes to a tensor, or to several."""
    return written if isinstance(written, torch.Tensor) else None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among the arguments of an operation."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def _is_number(value: Any) -> bool:
    """Return whether an argument is a number, or one for each weight."""
    if isinstance(value, list | tuple):
        return bool(value) and isinstance(value[0], float | int)
    return isinstance(value, float | int)


@contextmanager
def unchecked(optimizer: Optimizer) -> Iterator[None]:
    """Let torch run a step in a capture as if there was none."""
    vars(optimizer).update(dict.fromkeys(_CHECKS, _do_nothing))
    try:
        yield
    finally:
        for name in _CHECKS:
            del vars(optimizer)[name]


def _do_nothing() -> None:
    pass
