"""A workload: model, optimizer, batches and step, which any plan can run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gapless.errors import UserError
from gapless.pipeline.step import SplitStep, StepLoss


if TYPE_CHECKING:
    from gapless.plans import Plan


WorkloadStep: TypeAlias = SplitStep | Callable[[Any], StepLoss | torch.Tensor]

# Builds a workload anew on a device. The plan may say how many processes make the batches.
WorkloadFunction: TypeAlias = "Callable[[torch.device], Workload]"
PlanWorkloadFunction: TypeAlias = "Callable[[torch.device, Plan], Workload]"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A training task that can be run under any plan.

    Attributes:
        model: the model, on the device.
        optimizer: optimizer of the model's parameters.
        batches: batches on the CPU: a list, a loader or anything else that allows several passes.
        step: takes a batch on the device, trains on it and returns its loss (one number, still
            on the device) or a `gapless.StepLoss`; or an object with `forward` and `backward`.
            It must not wait for the device.
        unit: what the weights of a `gapless.StepLoss` count, such as "images", to report a speed
            in it; empty if they count nothing.

    Raises:
        UserError: a field has the wrong type, or the batches allow only one pass.

    Example:
        def make_workload(device):
            model = torch.nn.Linear(8, 1).to(device)
            optimizer = torch.optim.Adam(model.parameters())

            def step(batch):
                loss = model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                return loss

            batches = [torch.randn(4, 8) for _ in range(10)]
            return gapless.Workload(
                model=model, optimizer=optimizer, batches=batches, step=step
            )
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    batches: Iterable[Any]
    step: WorkloadStep
    unit: str = ""

    def __post_init__(self) -> None:
        """Check the type of every field."""
        _require(
            isinstance(self.model, torch.nn.Module),
            field="model",
            value=self.model,
            expected="a torch.nn.Module; put several into a torch.nn.ModuleDict",
        )
        _require(
            isinstance(self.optimizer, torch.optim.Optimizer),
            field="optimizer",
            value=self.optimizer,
            expected="a torch.optim.Optimizer",
        )
        _require(
            isinstance(self.batches, Iterable) or hasattr(self.batches, "__getitem__"),
            field="batches",
            value=self.batches,
            expected="a list of batches or a loader",
        )
        _require(
            not isinstance(self.batches, Iterator),
            field="batches",
            value=self.batches,
            expected="a list or a loader, which allow several passes",
        )
        _require(
            isinstance(self.step, SplitStep) or callable(self.step),
            field="step",
            value=self.step,
            expected="a function of a batch, or an object with forward and backward",
        )
        _require(isinstance(self.unit, str), field="unit", value=self.unit, expected="text")


def _require(holds: bool, *, field: str, value: object, expected: str) -> None:
    if not holds:
        found = type(value).__name__
        raise UserError(f"{field} of the workload is of type {found}, expected {expected}")


def checked_workload_function(function: WorkloadFunction) -> WorkloadFunction:
    """Return a function that calls this one and checks what it returns.

    Args:
        function: takes a `torch.device` and builds a workload on it.

    Raises:
        UserError: it is no function. The function that is returned raises one if no workload is
            built.
    """
    if not callable(function):
        raise UserError(
            f"`workload` must be a function of a torch.device, but is of type "
            f"{type(function).__name__}; each run needs a workload of its own, so pass the "
            "function that builds it"
        )

    def make(device: torch.device) -> Workload:
        made = function(device)
        require_workload(made, of=getattr(function, "__qualname__", repr(function)))
        return made

    return make


def require_float32(precision: str) -> None:
    """Refuse a precision that only the step of a workload can choose.

    Raises:
        UserError: it is a half precision.
    """
    if precision in ("bf16", "fp16"):
        raise UserError(
            f'`precision="{precision}"` is up to the step of a workload, which can use '
            "torch.autocast; choose fp32 or tf32"
        )


def require_workload(made: object, *, of: str) -> None:
    """Refuse what a function returned if it is no workload.

    Raises:
        UserError: it is none.
    """
    if not isinstance(made, Workload):
        raise UserError(
            f"{of} returned an object of type {type(made).__name__}, expected a workload; return "
            "gapless.Workload(model=..., optimizer=..., batches=..., step=...)"
        )
