"""What all graphs of a module share: its calls as written, and the memory of their forward passes."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from gapless.device.torch_private import current_graph_task
from gapless.graphs.modules.backward_settings import Settings
from gapless.graphs.replay.versions import version_of
from gapless.graphs.step_call import within_a_step


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import nn

    from gapless.device.base import Device
    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.side_stream import SideStream
    from gapless.pipeline.host_waits import HostWaits


_version_of = attrgetter("_version")


@dataclass(eq=False)
class Runs:
    """The runs of one module: as written, and by all of its graphs.

    Attributes:
        host_waits: the door for the waits of captures, and of calls that run again.
        forward: the module's own, or another method of it, bound to it.
    """

    module: nn.Module
    forward: Callable[..., Any]
    device: Device
    host_waits: HostWaits
    side: SideStream
    report: CaptureReport
    _newest: weakref.ref[Run] | None = None

    def __post_init__(self) -> None:
        self.settings = Settings(self.device.torch_device.type)

    def as_written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call as written."""
        with within_a_step():
            return self.forward(*args, **kwargs)

    def is_free(self) -> bool:
        """Return whether no backward pass can come that reads the memory as it is now."""
        run = self._newest_run()
        return run is None or run.is_done or run.is_left()

    def holds(self, run: Run) -> bool:
        """Return whether the memory is as the forward pass of a run has left it."""
        return not run.is_done and self._newest_run() is run

    def is_newest(self, run: Run) -> bool:
        """Return whether no forward pass came after that of a run."""
        return self._newest_run() is run

    def begin(self, run: Run) -> None:
        """Let a run have the memory."""
        self._newest = weakref.ref(run)

    def _newest_run(self) -> Run | None:
        return None if self._newest is None else self._newest()


class Run:
    """One forward pass by a graph, whose backward pass may come.

    Args:
        versions_of_unsaved: returns the versions of what the graph reads and nobody keeps for a run.
        random: the state of random numbers before it, None if it draws none.
        written: copies of what it has changed, from before.

    Attributes:
        is_done: whether its memory is used up.
        pass_number: of the backward pass that an audit sees, None before it.
    """

    def __init__(
        self,
        inputs: list[torch.Tensor],
        versions_of_unsaved: Callable[[], list[int]],
        *,
        random: dict[str, Any] | None,
        written: list[torch.Tensor],
    ) -> None:
        self.inputs = inputs
        self.random = random
        self.written = written
        self.is_done = False
        self.pass_number: int | None = None
        self.num_backwards = 0
        self._outs: list[tuple[weakref.ref[torch.Tensor], int]] = []
        self._versions_now = versions_of(inputs)
        self._versions = self._versions_now()
        self._unsaved_now = versions_of_unsaved
        self._unsaved = versions_of_unsaved()

    def is_left(self) -> bool:
        """Return whether the backward pass that an audit sees is over in this thread."""
        return self.pass_number not in (None, current_graph_task())

    def note_outs(self, outs: Sequence[torch.Tensor]) -> None:
        """Remember what it has returned, as long as somebody else holds that."""
        self._outs = [(weakref.ref(out), version_of(out)) for out in outs]

    def outs(self) -> list[torch.Tensor | None]:
        """Return what it has returned; None for what is gone or was changed in place."""
        pairs = [(reference(), version) for reference, version in self._outs]
        return [
            out if out is not None and version_of(out) == version else None
            for out, version in pairs
        ]

    def changed(self) -> str:
        """Return what was changed since, "" if nothing."""
        if self._versions_now() != self._versions:
            return "an argument"
        if self._unsaved_now() != self._unsaved:
            return "a weight or buffer"
        return ""


def versions_of(tensors: Sequence[torch.Tensor]) -> Callable[[], list[int]]:
    """Return a function that returns the versions of tensors; those of inference mode have none."""
    counted = [tensor for tensor in tensors if not tensor.is_inference()]
    return lambda: list(map(_version_of, counted))
