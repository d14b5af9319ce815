"""What is captured, where it runs, and how it is called as written: a step, or a module or an optimizer in place."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from gapless.graphs.account import account_of
from gapless.graphs.capture_report import CaptureReport
from gapless.graphs.consent import Alone
from gapless.graphs.objections import objection_to_autocast, objection_to_batch, objection_to_modes
from gapless.graphs.reads.gradient_order import order_of
from gapless.graphs.step_call import work_of_batch


if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import torch

    from gapless.device.base import Device
    from gapless.graphs.consent import Consent
    from gapless.graphs.refusal import Refusal
    from gapless.graphs.side_stream import SideStream
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.step import SplitStep, WholeStep
    from gapless.pipeline.tree.flatten import Tree


def _call(replay: Callable[..., Any], *args: Any) -> Any:
    return replay(*args)


class Callee:
    """A step, or what takes its place.

    Args:
        step: takes a batch on the device, trains on it and returns its loss.
        host_waits: the door for the waits that captures are.
        report: to write to; None: a new one.
        consent: of the ranks that run the same steps. With several of them each kind is captured
            once or never, and the host waits for the proof.
        work: takes the value of a tree and does the step on it; None: the step takes the value
            as its batch.
        plain_work: the same in calls of which nothing is learnt; None: as `work`.
        objection: says why no graph can take a batch; None: as for a whole step.
        make_trial: takes the pool of graphs and the watch of the host, and returns what captures and
            proves, for a step that goes to the side stream itself; None: for graphs of the whole step.
        side: on which everything but replays runs, whose results are then copies that no later
            replay overwrites; None: all runs on the caller's stream.
        is_update: whether the step is the update of an optimizer, which finds the gradients of its
            weights in its batch, and at which no graph is cut.

    Attributes:
        launch: calls a function that launches a graph, with the arguments that follow, and
            returns what it returns.
    """

    def __init__(
        self,
        step: SplitStep | WholeStep | Callable[[Any], Any],
        *,
        device: Device,
        host_waits: HostWaits,
        report: CaptureReport | None = None,
        consent: Consent | None = None,
        work: Callable[[Any], Any] | None = None,
        plain_work: Callable[[Any], Any] | None = None,
        objection: Callable[[Tree], Refusal | None] | None = None,
        make_trial: Callable[..., Any] | None = None,
        side: SideStream | None = None,
        is_update: bool = False,
    ) -> None:
        self.step = step
        self.device = device
        self.host_waits = host_waits
        self.account, self.order = account_of(device), order_of(device)
        self.report = CaptureReport() if report is None else report
        self.consent = Alone() if consent is None else consent
        self.work = work or work_of_batch(step)
        self.plain_work = plain_work or self.work
        self.make_trial = make_trial
        self.side = side
        self._side_stream: Callable[[], AbstractContextManager[object]] = nullcontext
        if side is not None and make_trial is None:
            self._side_stream = side.use
        self.launch: Callable[..., Any] = _call if side is None else side.launch
        self.is_update = is_update
        self._objection = objection

    def on_side_stream(self) -> AbstractContextManager[object]:
        """Return a context for what is no replay: eager runs and captures.

        Sync: Does not block the host.
        """
        self.order.hold()
        return self._side_stream()

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies on the device."""
        return not self.device.needs_copy(tensor)

    def objection_to(self, tree: Tree) -> Refusal | None:
        """Return why no graph can take a call, None if one can.

        What a graph takes is asked less: its kind and guards say that nothing else has changed.
        """
        if self._objection is not None:
            return self._objection(tree)
        return (
            objection_to_batch(tree, needs_copy=self.device.needs_copy)
            or objection_to_autocast(self.device.torch_device.type)
            or objection_to_modes()
        )
