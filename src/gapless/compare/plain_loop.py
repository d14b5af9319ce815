"""A plain training loop: each batch moved by `to`, each loss read by `item`.

Plans are compared with it, so it shares no code with them: no prefetch, no ring, one stream, and nothing
of `gapless.pipeline` that moves batches.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import torch

from gapless.compare.take_steps import require_batches
from gapless.pipeline.loaders import EpochOf
from gapless.pipeline.step import call_host_part, do_work, loss_of


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gapless.compare.take_steps import OnStep
    from gapless.device.base import Device
    from gapless.pipeline.step import SplitStep, WholeStep


def take_plain_steps(
    batches: Iterable[Any],
    step: SplitStep | WholeStep,
    *,
    device: Device,
    steps: int,
    after_step: OnStep,
) -> tuple[list[float], tuple[int, ...]]:
    """Take steps on the current stream; if the batches end before, pass over them again.

    Args:
        batches: of the workload, on the CPU.
        step: of the workload.
        device: where the step runs.
        steps: number of steps, at least 1.
        after_step: called with the number of steps done, before the loss is read.

    Returns:
        The loss of every step, and the number of batches in each pass.

    Raises:
        UserError: there are no batches, or a step gave no loss.
        Exception: whatever the workload raises; the loader's workers are gone by then.

    Sync: Blocks the host in every step.
    """
    losses: list[float] = []
    passes: list[int] = []
    while len(losses) < steps:
        before = len(losses)
        with EpochOf(batches, steps - before) as epoch:
            for batch in epoch:
                with device.allow_waits():
                    moved = move(batch, device.torch_device)
                call_host_part(step, moved)
                out = loss_of(do_work(step, moved))
                after_step(len(losses) + 1)
                with device.allow_waits():
                    losses.append(float((out.loss if out.logged is None else out.logged).item()))
        passes.append(len(losses) - before)
        require_batches(passes[-1], done=before)
    return losses, tuple(passes)


def move(batch: Any, device: torch.device) -> Any:
    """Return a batch with every tensor, and every object that has a `to`, moved by its own `to`.

    Containers are made anew, a read-only mapping as a dictionary; whatever else is in them stays as
    it is.

    Sync: May block the host, as `to` does for memory that is not page-locked.
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, type):
        return batch
    if callable(getattr(batch, "to", None)):
        moved = batch.to(device)
        # One that moves its own attributes may return nothing.
        return batch if moved is None else moved
    if isinstance(batch, tuple | list):
        make = getattr(type(batch), "_make", type(batch))
        return make([move(part, device) for part in batch])
    if isinstance(batch, Mapping):
        parts = {key: move(part, device) for key, part in batch.items()}
        if not isinstance(batch, MutableMapping):
            return parts
        mapping = copy.copy(batch)
        mapping.update(parts)
        return mapping
    if dataclasses.is_dataclass(batch):
        moved = copy.copy(batch)
        for field in dataclasses.fields(batch):
            # A frozen dataclass lets nobody else set its fields.
            object.__setattr__(moved, field.name, move(getattr(batch, field.name), device))
        return moved
    return batch


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch, those of objects that have a `to` among them.

    Sync: Does not block the host.
    """
    return list(_walk(batch, holders=()))


def _walk(value: Any, *, holders: tuple[int, ...]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    # An object may hold itself.
    elif id(value) not in holders:
        for part in _parts(value):
            yield from _walk(part, holders=(*holders, id(value)))


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, tuple | list):
        return value
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, type):
        return ()
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if callable(getattr(value, "to", None)):
        return getattr(value, "__dict__", {}).values()
    return ()
