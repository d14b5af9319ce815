"""The calls of an optimizer's `step` in a capture, and between the segments of a graph."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from gapless.graphs.step_call import within_a_step
from gapless.graphs.updates.step_replaced import step_as_written
from gapless.graphs.updates.update_rules import (
    OF_A_SCALER,
    gradients_of,
    gradients_replaced,
    same_objects,
    weights_of,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.optim import Optimizer


class UpdateAsWritten:
    """The update of an optimizer as a replay calls it between two segments.

    It is made in the capture, and keeps what the update finds there: gradients, what a scaler has
    handed over, and the modes of torch.
    """

    def __init__(self, optimizer: Optimizer, args: Any, kwargs: Any, *, device_type: str) -> None:
        self._optimizer = optimizer
        self._args = args
        self._kwargs = kwargs
        self._weights = weights_of(optimizer)
        self.gradients = gradients_of(optimizer)
        self._of_a_scaler = _of_a_scaler(optimizer)
        self._device_type, self._modes = device_type, _modes(device_type)

    def __call__(self) -> None:
        """Call `step` as it is now: with hooks and schedulers that came after the capture."""
        before = gradients_of(self._optimizer)
        are_there = same_objects(before, self.gradients)
        placed = gradients_replaced(self._weights, self.gradients, before)
        with (
            within_a_step(),
            _modes_again(self._device_type, self._modes),
            nullcontext() if are_there else placed,
        ):
            vars(self._optimizer).update(self._of_a_scaler)
            try:
                step_as_written(self._optimizer)(*self._args, **self._kwargs)
            finally:
                for name in self._of_a_scaler:
                    vars(self._optimizer).pop(name, None)


def _of_a_scaler(optimizer: Optimizer) -> dict[str, Any]:
    """Return what a scaler has handed to an optimizer."""
    return {name: vars(optimizer)[name] for name in OF_A_SCALER if name in vars(optimizer)}


def _modes(device_type: str) -> tuple[Any, ...]:
    """Return the modes of torch, those of autocast for a type of device."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled(device_type),
        torch.get_autocast_dtype(device_type),
        torch.is_autocast_cache_enabled(),
    )


@contextmanager
def _modes_again(device_type: str, modes: tuple[Any, ...]) -> Iterator[None]:
    """Set modes again in the body."""
    if _modes(device_type) == modes:
        yield
        return
    grad, inference, autocast, dtype, cache = modes
    with (
        torch.inference_mode(inference),
        torch.set_grad_enabled(grad),
        torch.autocast(device_type, dtype=dtype, enabled=autocast, cache_enabled=cache),
    ):
        yield


@contextmanager
def capturable(optimizer: Optimizer) -> Iterator[None]:
    """Let torch capture an update in the body that counts on the device.

    The fused kernels count there also without `capturable`, which changes nothing for them; but
    torch refuses to capture them without.
    """
    groups = [group for group in optimizer.param_groups if group.get("capturable") is False]
    for group in groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group in groups:
            group["capturable"] = False


@contextmanager
def optimizer_restored_on_failure(optimizer: Optimizer) -> Iterator[None]:
    """Take back what a scaler has handed to an optimizer in the body, if that raises."""
    own = _of_a_scaler(optimizer)
    try:
        yield
    except BaseException:
        for name in OF_A_SCALER:
            vars(optimizer).pop(name, None)
        vars(optimizer).update(own)
        raise


@contextmanager
def scalers_restored_on_failure() -> Iterator[None]:
    """Put back what the body has changed of gradient scalers on the host, if it raises.

    A scaler that has been asked for a step refuses the next one until it has been updated.
    """
    touched: dict[int, tuple[torch.amp.GradScaler, dict[str, Any]]] = {}

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def note_and_call(scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> Any:
            touched.setdefault(id(scaler), (scaler, _copied(vars(scaler))))
            return method(scaler, *args, **kwargs)

        return note_and_call

    kind = torch.amp.GradScaler
    with ExitStack() as stack:
        for name in ("scale", "unscale_", "step", "update"):
            method = noting(getattr(kind, name))
            stack.enter_context(mock.patch.object(kind, name, method))
        try:
            yield
        except BaseException:
            for scaler, attributes in touched.values():
                vars(scaler).update(attributes)
                for name in vars(scaler).keys() - attributes:
                    delattr(scaler, name)
            raise


def _copied(value: Any) -> Any:
    """Return a copy of dicts within dicts, with their own values."""
    if isinstance(value, defaultdict):
        return defaultdict(value.default_factory, _copied(dict(value)))
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    return value
