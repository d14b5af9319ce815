"""What is captured, and how it is called as written: a step, or a module or an optimizer in place."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from gapless.graphs.objections import objection_to_autocast, objection_to_batch, objection_to_modes
from gapless.graphs.step_call import work_of_batch


if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from gapless.device.base import Device
    from gapless.graphs.graph_pool import GraphPool
    from gapless.graphs.modules.module_trial import ModuleTrial
    from gapless.graphs.reads.host_watch import HostWatch
    from gapless.graphs.refusal import Refusal
    from gapless.graphs.side_stream import SideStream
    from gapless.pipeline.step import SplitStep, WholeStep
    from gapless.pipeline.tree.flatten import Tree


def _call(replay: Callable[..., Any], *args: Any) -> Any:
    return replay(*args)


class Callee:
    """A step, or what takes its place.

    Args:
        step: takes a batch on the device, trains on it and returns its loss.
        work: takes the value of a tree and does the step on it; None: the step takes the value
            as its batch.
        plain_work: the same in calls of which nothing is learnt; None: as `work`.
        compares_replays: whether calls run as written where replays do not pay.
        objection: says why no graph can take a batch; None: as for a whole step.
        make_trial: returns what captures and proves; None: for graphs of the whole step.
        on_side_stream: returns a context for what is no replay: eager runs and captures.
        side: whose `launch` that is, if it is one's.
        launch: calls a function that launches a graph, with the arguments that follow, and
            returns what it returns.
        returns_copies: whether replays return tensors that no later replay overwrites.
        may_cut: whether a graph may be cut at an update: see `Updates`.
        gradients_are_given: as of `Trial`.

    Attributes:
        others: as given.
    """

    def __init__(
        self,
        step: SplitStep | WholeStep | Callable[[Any], Any],
        *,
        work: Callable[[Any], Any] | None = None,
        plain_work: Callable[[Any], Any] | None = None,
        compares_replays: bool = False,
        objection: Callable[[Tree], Refusal | None] | None = None,
        make_trial: Callable[[GraphPool, HostWatch], ModuleTrial] | None = None,
        on_side_stream: Callable[[], AbstractContextManager[None]] = nullcontext,
        side: SideStream | None = None,
        launch: Callable[..., Any] = _call,
        returns_copies: bool = False,
        may_cut: bool = True,
        gradients_are_given: bool = False,
    ) -> None:
        self.step = step
        self.work = work or work_of_batch(step)
        self.plain_work = plain_work or self.work
        self.compares_replays = compares_replays
        self.make_trial = make_trial
        self.on_side_stream = on_side_stream
        self.side = side
        self.launch = launch
        self.returns_copies = returns_copies
        self.may_cut = may_cut
        self.gradients_are_given = gradients_are_given
        self._objection = objection

    def objection_to(self, tree: Tree, device: Device) -> Refusal | None:
        """Return why no graph can take a call, None if one can.

        What a graph takes is asked less: its kind and guards say that nothing else has changed.

        Sync: Does not block the host.
        """
        if self._objection is not None:
            return self._objection(tree)
        return (
            objection_to_batch(tree, needs_copy=device.needs_copy)
            or objection_to_autocast(device.torch_device.type)
            or objection_to_modes()
        )
