"""The steps of a run that are timed: the device is idle at both ends of them."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.device.base import Device


@dataclass(kw_only=True)
class Window:
    """Times `steps` steps after `warmup` steps.

    A row either calls `after_step` behind each step, or `start` and `stop` itself with an idle
    device. In between nobody but the row waits for the device.

    Args:
        device: where the steps run.
        warmup: steps before the timed ones: loader workers start, queues fill.
        steps: timed steps.
        around: a context that is entered for the timed steps only, such as a profiler.
        meet: waits for the other ranks of the row, just before the timed steps.

    Attributes:
        seconds: wall time of the timed steps.
        seconds_before: from the making of the window to the timed steps: loaders and trainers
            start, warm-up steps run.
        loss: of the last step, to show that the row trains.
        facts: what else the row knows of the timed steps.
    """

    device: Device
    warmup: int
    steps: int
    around: Callable[[], AbstractContextManager[Any]] | None = None
    meet: Callable[[], None] | None = None
    seconds: float = 0.0
    seconds_before: float = 0.0
    loss: float = float("nan")
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._num_done = 0
        self._made_at = perf_counter()
        self._started_at = 0.0
        self._context = ExitStack()

    @property
    def total(self) -> int:
        """Steps to run, timed or not."""
        return self.warmup + self.steps

    @property
    def is_over(self) -> bool:
        """Whether the last step was queued."""
        return self._num_done >= self.total

    def after_step(self, loss: torch.Tensor) -> None:
        """Count a step that was queued; its loss is read only after the last one.

        Sync: Blocks the host where the timed steps begin and where they end.
        """
        self._num_done += 1
        if self._num_done == self.warmup:
            self.start()
        elif self._num_done == self.total:
            self.stop()
            self.loss = float(loss)

    def start(self) -> None:
        """Begin the timed steps.

        Sync: Blocks the host until the device is idle.
        """
        synchronize(self.device)
        if self.around is not None:
            self._context.enter_context(self.around())
        if self.meet is not None:
            self.meet()
        self._started_at = perf_counter()
        self.seconds_before = self._started_at - self._made_at

    def stop(self) -> None:
        """End the timed steps.

        Sync: Blocks the host until the device is idle.
        """
        synchronize(self.device)
        self.seconds = perf_counter() - self._started_at
        self._context.close()


def start_device(device: Device) -> None:
    """Make this process known to the device; memory statistics, for one, ask for that.

    Some frameworks do so only when training begins.

    Sync: Blocks the host.
    """
    if device.is_accelerator:
        torch.zeros(1, device=device.torch_device)
    synchronize(device)


def synchronize(device: Device) -> None:
    """Wait until the device has done all work, of every stream.

    Sync: Blocks the host.
    """
    if device.is_accelerator:
        torch.cuda.synchronize(device.torch_device)
