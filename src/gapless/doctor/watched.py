"""Everything that was noted while a script was watched: what a diagnosis is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.doctor.seen import SeenWait
    from gapless.doctor.trace import Trace
    from gapless.records.finding import Site

# A node of a backward pass: its name, such as "IndexBackward0", and its place among the nodes of that
# name of one step, in the order in which the forward pass made them.
NodeKey = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What the windows of a run left.

    Attributes:
        has_device: whether there is an accelerator that the script uses.
        step_ms: of each step of the plain window, in order; nothing was installed in it.
        seen: waits of the sites window.
        num_seen_steps: of that window.
        host_ms: that the host works in a step of that window, its waits for the device left out; None
            where that is not known.
        timed: waits of the times window, in the order of their marks.
        trace: of the times window; None where there was no profiler.
        forward_lines: lines of the forward pass whose nodes of the backward pass were seen.
        recompilations: of torch.compile in the watched windows.
        num_shapes_steps: steps in which they were counted; 0 where they were not.
        num_batches: that loaders gave in the sites window.
        num_batch_shapes: different shapes among them.
        notes: what could not be seen or measured, and why.
    """

    has_device: bool
    step_ms: tuple[float, ...] = ()
    seen: tuple[SeenWait, ...] = ()
    num_seen_steps: int = 0
    host_ms: float | None = None
    timed: tuple[SeenWait, ...] = ()
    trace: Trace | None = None
    forward_lines: Mapping[NodeKey, Site] = field(default_factory=dict)
    recompilations: int = 0
    num_shapes_steps: int = 0
    num_batches: int = 0
    num_batch_shapes: int = 0
    notes: tuple[str, ...] = ()
