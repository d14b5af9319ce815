"""Capture all of an update but the operations that take its rate, which each replay calls.

Adadelta and RMSprop without `capturable=True` count their steps on the host, but no formula of theirs reads
the count, and their rate is a number of the last operation alone, which writes to the weights. So a graph
holds all that comes before, and is cut there: every replay counts on the host, and calls the last operation
of torch's own `step()` with the rate of that moment. Numbers and operations are those of the update as
written, whatever a schedule does, and a rate that changes changes no graph.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import TorchDispatchMode, schema_of
from gapless.graphs.updates.noted_calls import tensors_in


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.optim import Optimizer


_optim: Any = torch.optim
_KINDS = frozenset({_optim.Adadelta, _optim.RMSprop})

# Torch forbids to capture updates that count on the host; here their counts are no part of the graph.
_CHECKS = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")


def takes_rate_last(optimizer: Optimizer) -> bool:
    """Return whether an update needs nothing of the host but its rate, at its end, and counts there."""
    return type(optimizer) in _KINDS and not any(
        group["capturable"]
        or type(group["lr"]) not in (float, int)
        or any(map(torch.is_complex, group["params"]))
        for group in optimizer.param_groups
    )


class RateOutside(TorchDispatchMode):
    """Keeps from the capture in its body what each replay has to call.

    Args:
        optimizer: whose step the body calls.
        gradients: that its weights have: they may go elsewhere after the step, so copies are kept.
    """

    def __init__(self, optimizer: Optimizer, gradients: list[torch.Tensor | None]) -> None:
        super().__init__()
        groups = optimizer.param_groups
        self._groups = {id(weight): group for group in groups for weight in group["params"]}
        self._counts = {id(state["step"]) for state in optimizer.state.values() if "step" in state}
        self._gradients = set(map(id, gradients))
        self._calls: list[Callable[[], object]] = []
        self._written: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, or keep it for the replays."""
        kwargs = kwargs or {}
        if schema_of(func).is_mutable:
            written = list(map(id, tensors_in(args[0])))
            if self._counts.issuperset(written):
                self._calls.append(partial(func, *args, **kwargs))
                return _result(args[0])
            if self._groups.keys() >= set(written):
                self._keep_with_rate(func, args, kwargs, self._groups[written[0]])
                self._written.update(written)
                return _result(args[0])
        if not self._written.isdisjoint(map(id, tensors_in((args, kwargs)))):
            raise RuntimeError("an update reads a weight that it has written")
        return func(*args, **kwargs)

    def call(self) -> None:
        """Call what was kept, with the rates of now."""
        with torch.no_grad():
            for call in self._calls:
                call()

    def _keep_with_rate(self, func: Any, args: Any, kwargs: Any, group: dict[str, Any]) -> None:
        numbers = list(filter(_is_number, (*args, *kwargs.values())))
        if numbers != [-group["lr"]]:
            raise RuntimeError("an update writes to its weights with other numbers than its rate")
        args = [args[0], *map(self._own, args[1:])]

        def call() -> None:
            rate = -float(group["lr"])
            func(
                *[rate if _is_number(one) else one for one in args],
                **{name: rate if _is_number(one) else one for name, one in kwargs.items()},
            )

        self._calls.append(call)

    def _own(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return list(map(self._own, value))
        return value.clone() if id(value) in self._gradients else value


def _result(written: Any) -> Any:
    """Return what an operation returns that writes to a tensor, or to several."""
    return written if isinstance(written, torch.Tensor) else None


def _is_number(value: object) -> bool:
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
