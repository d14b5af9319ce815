"""A training step: the user's function, whole or in two parts, with an optional host part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import torch

from gapless.errors import LossError
from gapless.pipeline.losses.loss_numbers import described, has_one_number


if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, kw_only=True)
class StepLoss:
    """The loss of one batch, on the device.

    Attributes:
        loss: one number: a tensor of one real element, whose gradient the step follows.
        logged: the loss to keep in the history, one number; `loss` itself if None.
        weight: of this batch in the mean, such as its number of target tokens: one number.
    """

    loss: torch.Tensor
    logged: torch.Tensor | None = None
    weight: torch.Tensor | float = 1.0


@dataclass(slots=True)
class Call:
    """What a step is called with, where a loop may call it with anything.

    Attributes:
        args: by position.
        kwargs: by name.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@runtime_checkable
class SplitStep(Protocol):
    """A step in two parts, which a plan can put on two streams."""

    def forward(self, batch: Any) -> StepLoss:
        """Compute the loss of a batch."""

    def backward(self, out: Any) -> None:
        """Compute gradients from what `forward` returned, and update the weights."""


@runtime_checkable
class HostPart(Protocol):
    """Work of a step on the host for each batch, for example counting or setting a rate.

    A replay runs none of the step's Python code, so what must happen for each batch belongs here.
    """

    def on_host(self, batch: Any) -> None:
        """Do this work; called before the batch's work is queued, on the compute stream."""


WholeStep: TypeAlias = "Callable[[Any], StepLoss | torch.Tensor]"


def host_part_of(step: object) -> Callable[..., Any] | None:
    """Return what a step does on the host for each batch, None if it does nothing there.

    That is its `on_host`, or, of a method, the `on_host` of its object.
    """
    if isinstance(step, partial):
        part = host_part_of(step.func)
        return None if part is None else partial(part, *step.args, **step.keywords)
    # Not isinstance, which takes microseconds for a protocol.
    part = getattr(step, "on_host", None)
    if part is None and isinstance(step, MethodType):
        part = getattr(step.__self__, "on_host", None)
        # Of a class it may be a method of its objects; of an object, something else of that name.
        is_its_own = not isinstance(step.__self__, type) or isinstance(part, MethodType)
        return part if is_its_own and callable(part) else None
    return part


def call_host_part(step: object, /, *args: Any, **kwargs: Any) -> None:
    """Do what a step does on the host for each batch, if it does anything."""
    part = host_part_of(step)
    if part is not None:
        part(*args, **kwargs)


def do_work(step: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Queue both parts of a step, or the whole, on the current stream; return what it returns."""
    # Not isinstance, which takes microseconds for a protocol.
    if hasattr(step, "forward") and hasattr(step, "backward"):
        out = step.forward(*args, **kwargs)
        step.backward(out)
        return out
    return step(*args, **kwargs)


def loss_of(out: Any) -> StepLoss:
    """Return what a step returned as the record that the loop keeps of it.

    Raises:
        LossError: its loss is not a tensor with one number.
    """
    found = out if isinstance(out, StepLoss) else StepLoss(loss=out)
    loss: object = found.loss if found.logged is None else found.logged
    if not (isinstance(loss, torch.Tensor) and has_one_number(loss)):
        raise LossError(
            f"a loss must be a tensor with one number, but is {described(loss)}; let the step "
            "return its loss, still on the device, or a gapless.StepLoss"
        )
    return found
