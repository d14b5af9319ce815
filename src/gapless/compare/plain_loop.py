"""A training loop as people write it: each batch moved by `to`, each loss read by `item`.

Plans are compared with it, so nothing of theirs is in it: no prefetch, no rings, one stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.compare.plain_batch import move
from gapless.compare.rounds import require_batches
from gapless.pipeline.loaders import EpochOf
from gapless.pipeline.step import call_host_part, do_work, loss_of


if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.compare.rounds import OnStep
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
