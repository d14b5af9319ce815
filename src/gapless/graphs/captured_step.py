"""Launch a whole training step as one piece: a captured graph for each shape of batch.

The first batches of a shape run as always; then the same work is captured, which does not do it,
and from there on it is launched by one call. So nothing has to be restored: what ran was training.
`capture_ahead` does the same ahead of a run, on batches that are not trained on, and puts back weights,
optimizer state and random numbers.

A captured step reads its batch from memory that stays where it is. Each batch is copied there on
the device, in order with the step before. What the step returns lies in the graph's memory, and
has to be copied out of it before the next replay overwrites it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from gapless.device.numerics import random_state, set_random_state
from gapless.graphs.capture_report import (
    GRADIENTS,
    MEMORY,
    NUMBERS,
    CaptureReport,
    objection_to,
    refusal_of,
)
from gapless.graphs.modes import Modes
from gapless.graphs.refusal import Refusal
from gapless.graphs.updates import Trained, Updates, Watched
from gapless.pipeline.step import do_work
from gapless.pipeline.tree import flatten


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from gapless.device.base import Device, Graph
    from gapless.graphs.snapshot import Snapshot
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.step import SplitStep, WholeStep
    from gapless.pipeline.tree import Tree


# Runs of a shape before it is captured: kernels are loaded and chosen, workspaces are made.
NUM_WARM_UPS = 2

# More graphs than this are a sign of shapes that hardly come again; each takes memory.
_MAX_GRAPHS = 100

# So many are counted; a plain value that is new in every batch makes each of them a shape.
_MAX_SHAPES = 10_000

# Batches of which no two are alike, after which the report says so.
_NUM_UNLIKE = 200

# Without a budget of the caller's own: what is left is for libraries and fragments.
_BUDGET_SHARE = 0.8

# Changes of what graphs hold on to cost new captures each: a schedule may make this many, or one
# in so many steps.
_MAX_CHANGES = 3
_MIN_STEPS_A_CHANGE = 20


@dataclass(frozen=True, slots=True)
class StepRun:
    """What happened to one batch.

    Attributes:
        out: what the step returned, valid until the next batch.
        way: how it ran: as its Python says (`eager`), as a graph (`replay`), or as a graph that
            was made for it just now (`capture`).
        key: what the batch shares with others that the same graph can take; None if no graph can
            take it.
    """

    out: Any
    way: Literal["eager", "replay", "capture"]
    key: Hashable | None


@dataclass(frozen=True, kw_only=True)
class _Captured:
    graph: Graph
    inputs: list[torch.Tensor]
    out: Any
    trained: Trained


class CapturedStep:
    """A step that is captured for each shape of batch and then launched as one piece.

    Everything the step does on the device is captured; what it does on the host is not done
    again. Whoever runs the step calls its method `on_host(batch)`, if it has one, before every
    batch. Plain values in a batch count as part of its shape, and plain values that the step returns
    stay as they were when it was captured. Numbers and memory of torch's optimizers are watched:
    when a learning rate on the host changes, or a checkpoint replaces state, shapes are
    captured anew; so they are when gradients are not where captured work looks for them.

    Shapes are captured in the order in which they come for the third time, so what the budget
    leaves out are the shapes that come last, usually the rare ones.

    Args:
        step: takes a batch on the device, trains on it and returns its loss.
        device: where it runs.
        host_waits: the door for the waits that captures are.
        memory_budget_bytes: device memory of the process that captures may lead to; None: four
            fifths of the device's. A capture that is expected to need more, going by the largest
            so far, is not made; one that turns out to need more is the last.

    Attributes:
        step: the step itself.
        report: what is captured.
        only_ahead: whether shapes that `capture_ahead` did not capture run as written.
    """

    def __init__(
        self,
        step: SplitStep | WholeStep | Callable[[Any], Any],
        *,
        device: Device,
        host_waits: HostWaits,
        memory_budget_bytes: int | None = None,
    ) -> None:
        self.step = step
        self.report = CaptureReport()
        self.only_ahead = False
        self._device = device
        self._host_waits = host_waits
        self._budget = memory_budget_bytes
        total = device.total_memory_bytes()
        if self._budget is None and total is not None:
            self._budget = int(total * _BUDGET_SHARE)
        self._largest_bytes = 0
        self._graphs: dict[Hashable, _Captured] = {}
        self._num_seen: Counter[Hashable] = Counter()
        self._newest: Graph | None = None
        self._updates = Updates(needs_copy=device.needs_copy)
        self._held = self._holds_on_to()
        self._num_changes = 0
        self._calls: dict[Hashable, list[int]] = {}
        self._ahead: set[Hashable] = set()
        self._former: Tree | None = None
        self._modes: Modes | None = None

    def run(self, tree: Tree) -> StepRun:
        """Train on a batch, by a graph if there is or can be one.

        Sync: Does not block the host, but where a shape is captured ("capture").
        """
        if not self._can_be_kept(tree):
            return StepRun(do_work(self.step, tree.value), "eager", None)
        key = self._kind_of(tree)
        self._forget_if_changed(key)
        captured, is_new = self._graphs.get(key), False
        if captured is None and self._num_seen[key] >= NUM_WARM_UPS:
            captured = self._capture(key, tree)
            is_new = captured is not None
        if captured is None:
            return StepRun(self._run_eagerly(key, tree), "eager", key)
        # A step may have made its input require gradients, and autograd is not to keep batches.
        with torch.no_grad():
            for target, source in zip(captured.inputs, tree.leaves, strict=True):
                target.copy_(source)
        captured.graph.replay()
        captured.trained.hand_out()
        self.report.num_replays += 1
        return StepRun(captured.out, "capture" if is_new else "replay", key)

    def run_eagerly(self, tree: Tree, *, may_come_again: bool = True) -> StepRun:
        """Train on a batch by the step itself.

        Args:
            tree: the batch, on the device.
            may_come_again: count it as one of the runs before a capture of its shape.

        Sync: Does not block the host, unless the step does.
        """
        if not self._can_be_kept(tree):
            return StepRun(do_work(self.step, tree.value), "eager", None)
        key = self._kind_of(tree) if may_come_again else None
        return StepRun(self._run_eagerly(key, tree), "eager", key)

    def run_unknown(self, batch: Any, problem: str) -> Any:
        """Train on a batch that cannot be taken apart; return what the step returns.

        Sync: Does not block the host, unless the step does.
        """
        self._note_refused_batch(Refusal("unknown_batch", problem))
        return do_work(self.step, batch)

    @property
    def has_graphs(self) -> bool:
        """Whether any shape is captured now."""
        return bool(self._graphs)

    def forget(self) -> None:
        """Let go of all graphs and their memory; shapes can be captured again at once.

        Sync: Does not block the host.
        """
        self._graphs = {}
        self._newest = None

    def _kind_of(self, tree: Tree) -> Hashable:
        """Return what batches share that the same graph can take."""
        if self._modes is None:
            self._modes = Modes(self.step, device_type=self._device.torch_device.type)
        return (tree.key(), self._modes.now())

    def _can_be_kept(self, tree: Tree) -> bool:
        """Return whether memory of ours can take a batch's place; count it as eager if not."""
        objection = objection_to(tree.leaves, needs_copy=self._device.needs_copy)
        if objection is None:
            return True
        self._note_refused_batch(objection)
        return False

    def _note_refused_batch(self, refusal: Refusal) -> None:
        self.report.num_eager += 1
        if self.report.refusal is None:
            self.report.refusal = refusal

    def _run_eagerly(self, key: Hashable | None, tree: Tree) -> Any:
        self.report.num_eager += 1
        is_known = self._num_seen[key] >= NUM_WARM_UPS
        if key is None or is_known or self.report.refusal is not None:
            return do_work(self.step, tree.value)
        if self._num_seen[key] == NUM_WARM_UPS - 1:
            tree = _static(tree)
        return self._run_watched(key, tree)

    def _run_watched(self, key: Hashable, tree: Tree) -> Any:
        is_first, is_last = self._num_seen[key] == 0, self._num_seen[key] == NUM_WARM_UPS - 1
        state, reads = self._updates.state(), list[str]()
        with (
            self._updates.watched(finds_leaves=is_first) as seen,
            self._device.watch_reads(reads.append) if is_last else nullcontext(),
        ):
            out = do_work(self.step, tree.value)
        # In its first run a step makes state that it keeps.
        is_replaced = not is_first and state != self._updates.state()
        self.report.refusal = self._objection(key, seen, replaces_state=is_replaced)
        if reads and self.report.refusal is None:
            # Not tried: a capture that fails there has done half of the step's work on the host.
            self.report.refusal = Refusal.host_read(reads[0])
        self._num_seen[key] += 1
        self._calls[key] = seen.calls
        self._note_unlike(tree)
        return out

    def _objection(self, key: Hashable, seen: Watched, *, replaces_state: bool) -> Refusal | None:
        """Return why work that did this cannot be done again by a graph, None if it can."""
        if self._calls.get(key, seen.calls) != seen.calls:
            return Refusal(
                "optimizer_calls_differ",
                "the step calls optimizers in some runs and not in others, as its own code on the "
                "host decides; let the batch say so by a plain value",
            )
        if seen.schedulers:
            return Refusal(
                "scheduler",
                f"the step calls {seen.schedulers[0]}.step(), which counts on the host; call it "
                "after the step, or in a method on_host of the step",
            )
        if replaces_state:
            return Refusal(
                "replaced_state",
                "the step's optimizer replaces its state, or counts on the host, and captured work "
                "keeps the state it has",
            )
        if len(self._num_seen) > _MAX_SHAPES:
            return Refusal(
                "too_many_keys", f"more than {_MAX_SHAPES:,} shapes or plain values in batches"
            )
        return None

    def _note_unlike(self, tree: Tree) -> None:
        """Say so if no two batches of the first many are alike."""
        if len(self._num_seen) == _NUM_UNLIKE - 1:
            self._former = tree
        elif self._former and len(self._num_seen) == _NUM_UNLIKE == self._num_seen.total():
            self.report.note = (
                f"no two of {_NUM_UNLIKE} batches are alike, so nothing is captured: "
                f"{self._former.difference(tree)} differs; pad tensors to fewer shapes, and keep "
                "other values out of the batch"
            )
            self._former = None

    def capture_ahead(
        self,
        batches: Iterable[Tree],
        *,
        snapshot: Snapshot,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        """Capture the shapes of these batches, which are on the device, and train on none.

        Args:
            batches: one of each shape; the first ones are captured first, the last ones are what
                a budget leaves out.
            snapshot: of what the step changes, which is put back afterwards.
            on_batch: called with the number of shapes done so far.

        Sync: Blocks the host ("capture").
        """
        if snapshot.refusal is not None:
            self.report.note = f"shapes are captured as they come: {snapshot.refusal.text}"
            return
        random = random_state(self._device)
        try:
            for number, tree in enumerate(batches, start=1):
                self._capture_one_ahead(tree)
                if on_batch is not None:
                    on_batch(number)
        finally:
            snapshot.restore()
            set_random_state(self._device, random)

    def _capture_one_ahead(self, tree: Tree) -> None:
        key = self._kind_of(tree)
        if key in self._graphs or self.report.refusal is not None:
            return
        self._ahead.add(key)
        tree = _static(tree)
        for _ in range(NUM_WARM_UPS):
            self._run_watched(key, tree)
        self._held = self._holds_on_to()
        self._capture(key, tree)

    def _holds_on_to(self) -> dict[str, Hashable]:
        """Return what graphs keep as it was, by what to say when it changes too often."""
        return {NUMBERS: self._updates.settings(), MEMORY: self._updates.memory()}

    def _forget_if_changed(self, key: Hashable) -> None:
        """Drop all graphs when something that they hold on to has changed."""
        if self.report.refusal is not None and not self._graphs:
            return
        held = self._holds_on_to()
        what = next((what for what, value in held.items() if value != self._held[what]), None)
        captured = self._graphs.get(key)
        if what is None and captured is not None:
            if not captured.trained.are_in_place():
                what = MEMORY
            elif not captured.trained.have_gradients_in_place():
                what = GRADIENTS
        if what is None:
            return
        if self._graphs:
            self._num_changes += 1
        self._held = held
        # The first time, the optimizers have only become known.
        self.forget()
        if self.report.refusal is not None and not self.report.refusal.is_final:
            self.report.refusal = None
        if self._num_changes > max(_MAX_CHANGES, self._num_steps() / _MIN_STEPS_A_CHANGE):
            self.report.refusal = Refusal("too_many_changes", what.format(self._num_changes))

    def _num_steps(self) -> int:
        return self.report.num_replays + self.report.num_eager

    def _capture(self, key: Hashable, tree: Tree) -> _Captured | None:
        if self.report.refusal is None:
            self.report.refusal = self._limit(key)
        if self.report.refusal is not None:
            return None
        static = _static(tree)
        outs: list[Any] = []
        before: list[int] = []
        gradients = self._updates.gradients()
        start = self._device.now_ms()

        def work() -> None:
            # Read here: torch gives back free memory before a capture begins.
            before.append(self._device.reserved_memory_bytes())
            # Without its graph of gradients, which would hold on to more of the memory.
            outs.append(flatten(do_work(self.step, static.value)).map(torch.detach).value)

        try:
            with self._host_waits.blocking("capture"):
                graph = self._device.capture(work, like=self._newest)
        except BaseException as error:
            # The backward pass did not run: gradients that it made hold nothing.
            for weight, gradient in gradients:
                weight.grad = gradient
            if not isinstance(error, RuntimeError):
                raise
            self.report.refusal = refusal_of(error)
            return None
        finally:
            self.report.seconds += (self._device.now_ms() - start) / 1000.0
        self._largest_bytes = max(
            self._largest_bytes, self._device.reserved_memory_bytes() - before[0]
        )
        self._newest = graph
        self.report.num_graphs += 1
        captured = self._graphs[key] = _Captured(
            graph=graph, inputs=static.leaves, out=outs[0], trained=Trained(gradients)
        )
        return captured

    def _limit(self, key: Hashable) -> Refusal | None:
        """Return why no further shape can be captured, None if one can."""
        if self.only_ahead and key not in self._ahead:
            return Refusal("not_ahead", "a batch has the shape of no bucket", is_final=False)
        if len(self._graphs) >= _MAX_GRAPHS:
            return Refusal(
                "graph_limit",
                f"{_MAX_GRAPHS} shapes are captured already; pad batches to fewer shapes",
                is_final=False,
            )
        held = self._device.reserved_memory_bytes()
        if self._budget is not None and held + self._largest_bytes > self._budget:
            return Refusal(
                "memory_budget",
                f"the process holds {held:,} bytes and a capture took up to "
                f"{self._largest_bytes:,}, which is over its budget of {self._budget:,}",
                is_final=False,
            )
        return None


def _static(tree: Tree) -> Tree:
    """Return a batch in memory of its own.

    The last run before a capture takes one as well: compiled code tells views of a ring from
    tensors of their own, and nothing can be compiled during a capture.
    """
    return tree.map(torch.clone)
