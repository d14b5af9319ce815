"""The parts of a training step, whichever way it is written."""

from __future__ import annotations

from typing import Any

from gapless.pipeline.records import HostPart, SplitStep, StepLoss


def call_host_part(step: object, batch: Any) -> None:
    """Do what a step does on the host for each batch, if it does anything."""
    if isinstance(step, HostPart):
        step.on_host(batch)


def do_work(step: Any, batch: Any) -> Any:
    """Queue both parts of a step, or the whole, on the current stream; return what it returns."""
    if isinstance(step, SplitStep):
        out = step.forward(batch)
        step.backward(out)
        return out
    return step(batch)


def loss_of(out: Any) -> StepLoss:
    """Return what a step returned as the record that the loop keeps of it."""
    return out if isinstance(out, StepLoss) else StepLoss(loss=out)
