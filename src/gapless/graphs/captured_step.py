"""Launch a whole training step as one piece: a captured graph for each key of batches.

The first batches of a key run eagerly, as warm-up; then the same work is captured, which does not
do it, and from there on it is launched by one call. So nothing has to be put back: what ran was
training. `capture_ahead` does the same ahead of a run, on batches that are not trained on, and
puts back weights, optimizer state and random numbers.

A graph reads its batch from memory that stays where it is. Each batch is copied there on the
device, in order with the step before. What the step returns lies in the graph's memory, and has
to be copied out of it before the next replay overwrites it.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from gapless.device.numerics import random_state, set_random_state
from gapless.graphs.capture_failure import capture_failed
from gapless.graphs.capture_report import CaptureReport
from gapless.graphs.graph_cache import DEFAULT_MAX_GRAPHS, GraphCache
from gapless.graphs.graph_key import GraphKeys
from gapless.graphs.guards import GuardSet
from gapless.graphs.observation import Observer
from gapless.graphs.optimizer_guards import KnownOptimizers, OptimizerMemory, OptimizerNumbers
from gapless.graphs.refusal import Refusal, objection_to_batch
from gapless.graphs.warm_ups import WarmUps
from gapless.graphs.weight_guards import KnownWeights
from gapless.pipeline.step import do_work


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from contextlib import AbstractContextManager

    from gapless.device.base import Device
    from gapless.graphs.graph_cache import StepGraph
    from gapless.graphs.guards import Guard
    from gapless.graphs.snapshot import Snapshot
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.step import SplitStep, WholeStep
    from gapless.pipeline.tree import Tree


DEFAULT_NUM_WARMUP = 2

# Every change of a guarded value drops all graphs. Allow 3; beyond that at most one per 20 steps.
_MAX_CHANGES = 3
_MIN_STEPS_PER_CHANGE = 20


@dataclass(slots=True)
class StepRun:
    """What happened to one batch.

    Attributes:
        out: what the step returned, valid until the next batch.
        way: how it ran: eagerly, as a graph (`replay`), or as a graph that was captured for it
            just now (`capture`).
        key: what the batch shares with others that the same graph can take; None if no graph can
            take it.
    """

    out: Any
    way: Literal["eager", "replay", "capture"]
    key: Hashable | None


def _call(replay: Callable[[], Any]) -> Any:
    return replay()


class CapturedStep:
    """A step that is captured for each key of batches and then launched as one piece.

    Everything the step does on the device is captured; what it does on the host is not done
    again. Whoever runs the step calls its method `on_host(batch)`, if it has one, before every
    batch. Plain values in a batch are part of its key, and plain values that the step returns
    stay as they were when it was captured.

    What else the step reads from Python is watched by guards: see `gapless.graphs.guards`.

    Keys are captured in the order in which their warm-up ends, so what the limits leave out are
    the keys that come last, usually the rare ones.

    Args:
        step: takes a batch on the device, trains on it and returns its loss.
        device: where it runs.
        host_waits: the door for the waits that captures are.
        num_warmup: eager runs of each key before its capture, at least 2: the first makes the
            optimizer's state, the second shows whether the step makes it anew.
        max_graphs: as of `GraphCache`.
        memory_budget_bytes: as of `GraphCache`.
        on_side_stream: returns a context for what is no replay: eager runs and captures.
        launch: calls a function that launches a graph and returns what the step returned, and
            returns what the caller is to have of it.
        work: takes the value of a tree and does the step on it; None: the step takes the value
            as its batch.
        rates: what becomes of rates that change: see `gapless.capture`.

    Attributes:
        step: the step itself.
        rates: as given.
        report: what is captured, and why nothing more is.
    """

    def __init__(
        self,
        step: SplitStep | WholeStep | Callable[[Any], Any],
        *,
        device: Device,
        host_waits: HostWaits,
        num_warmup: int = DEFAULT_NUM_WARMUP,
        max_graphs: int = DEFAULT_MAX_GRAPHS,
        memory_budget_bytes: int | None = None,
        on_side_stream: Callable[[], AbstractContextManager[None]] = nullcontext,
        launch: Callable[[Callable[[], Any]], Any] = _call,
        work: Callable[[Any], Any] | None = None,
        rates: Literal["exact", "tensor"] = "exact",
    ) -> None:
        self.step = step
        self.rates = rates
        self.report = CaptureReport()
        self._device = device
        self._on_side_stream = on_side_stream
        self._launch = launch
        self._work = work or partial(do_work, step)
        self._keys = GraphKeys(step, device=device)
        optimizers = KnownOptimizers()
        self._weights = KnownWeights(optimizers)
        observer = Observer(device, optimizers=optimizers, weights=self._weights)
        self._warm_ups = WarmUps(num_warmup, observer)
        self._graphs = GraphCache(
            device, host_waits, max_graphs=max_graphs, memory_budget_bytes=memory_budget_bytes
        )
        self._guards: list[Guard] = [
            OptimizerNumbers(optimizers, needs_copy=device.needs_copy),
            OptimizerMemory(optimizers),
        ]
        # All from the moment of the first graph.
        self._checks = GuardSet([])
        self._num_changes = 0

    def run(self, tree: Tree) -> StepRun:
        """Train on a batch, by a graph if there is or can be one.

        Sync: Does not block the host, except where a graph is captured ("capture").
        """
        objection = self._objection_to(tree)
        if objection is not None:
            return StepRun(self.run_refused(tree.value, objection), "eager", None)
        key = self._keys.of(tree)
        graph = self._graphs.get(key)
        failed = self._first_failed(graph)
        if failed is not None:
            self._drop_graphs_for(failed)
            graph = None
        if graph is not None:
            return StepRun(self._replay(graph, tree), "replay", key)
        with self._on_side_stream():
            return self._run_without_graph(key, tree)

    def run_eagerly(self, tree: Tree, *, may_come_again: bool = True) -> StepRun:
        """Train on a batch by the step itself.

        Args:
            tree: the batch, on the device.
            may_come_again: count it as a warm-up run of its key.

        Sync: Does not block the host, unless the step does.
        """
        objection = self._objection_to(tree)
        if objection is not None:
            return StepRun(self.run_refused(tree.value, objection), "eager", None)
        key = self._keys.of(tree) if may_come_again else None
        return StepRun(self._run_eagerly(key, tree), "eager", key)

    def run_refused(self, batch: Any, refusal: Refusal) -> Any:
        """Train eagerly on a batch that no graph can take; return what the step returns.

        Sync: Does not block the host, unless the step does.
        """
        self.report.num_eager += 1
        self.report.refuse(refusal)
        with self._on_side_stream():
            return self._work(batch)

    @property
    def has_graphs(self) -> bool:
        """Whether there are graphs now."""
        return len(self._graphs) > 0

    def drop_graphs(self) -> None:
        """Let go of all graphs and their memory; keys that had their warm-up need no other.

        Sync: Does not block the host.
        """
        self._graphs.clear()
        # Checks hold on to weights as graphs do.
        self._checks = GuardSet([])

    def lift_refusal(self) -> None:
        """Try again what was refused, if the reason may be gone."""
        self.report.lift_refusals()

    # --- parts of a run ---

    def _objection_to(self, tree: Tree) -> Refusal | None:
        return objection_to_batch(tree, needs_copy=self._device.needs_copy)

    def _replay(self, graph: StepGraph, tree: Tree) -> Any:
        out = self._launch(lambda: graph.replay(tree.leaves))
        self.report.num_replays += 1
        return out

    def _run_without_graph(self, key: Hashable, tree: Tree) -> StepRun:
        graph = self._capture(key, tree) if self._warm_ups.are_done(key) else None
        if graph is not None:
            return StepRun(self._replay(graph, tree), "capture", key)
        return StepRun(self._run_eagerly(key, tree), "eager", key)

    def _run_eagerly(self, key: Hashable | None, tree: Tree) -> Any:
        self.report.num_eager += 1
        if key is None or self.report.refusal is not None or self._warm_ups.are_done(key):
            return self._work(tree.value)
        return self._warm_up(key, _static(tree) if self._warm_ups.is_last(key) else tree)

    def _warm_up(self, key: Hashable, tree: Tree) -> Any:
        out, refusals = self._warm_ups.run(key, tree, self._work)
        for refusal in refusals:
            self.report.refuse(refusal)
        self.report.note = self._warm_ups.note or self.report.note
        return out

    def _first_failed(self, graph: StepGraph | None) -> Guard | None:
        """Return the guard that forbids to go on with the graphs there are, None if none does."""
        failed = self._checks.first_failed()
        if failed is None and graph is not None:
            failed = graph.guards.first_failed()
        return failed

    def _drop_graphs_for(self, failed: Guard) -> None:
        """Drop all graphs; refuse the step if its guards fail too often."""
        self._num_changes += 1
        self.drop_graphs()
        self.lift_refusal()
        if self._num_changes > self._most_changes(failed):
            self.report.refusal = _too_many_changes(failed, self._num_changes)

    def _most_changes(self, failed: Guard) -> float:
        if failed.on_failure == "refuse":
            return 0
        num_steps = self.report.num_replays + self.report.num_eager
        return max(_MAX_CHANGES, num_steps / _MIN_STEPS_PER_CHANGE)

    def _capture(self, key: Hashable, tree: Tree) -> StepGraph | None:
        """Capture the step for a key; return None if it is refused."""
        if self.report.refusal is None:
            self.report.refusal = self._graphs.limit(key)
        if self.report.refusal is not None:
            return None
        checks = self._checks if self._graphs else GuardSet(self._guards)
        static, gradients = _static(tree), self._weights.gradients()
        start = self._device.now_ms()
        try:
            graph = self._graphs.capture(key, static, self._work, gradients=gradients)
        except RuntimeError as error:
            self.report.refusal = capture_failed(error)
            return None
        finally:
            self.report.seconds += (self._device.now_ms() - start) / 1000.0
        self._checks = checks
        self.report.num_graphs += 1
        return graph

    # --- ahead of a run ---

    def capture_ahead(
        self,
        batches: Iterable[Tree],
        *,
        snapshot: Snapshot,
        only_these: bool = False,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        """Capture the step for the keys of these batches, and train on none of them.

        If the snapshot cannot be restored, nothing is done; the report has a note.

        Args:
            batches: on the device, one of each key; the first are captured first, the last are
                what the limits leave out.
            snapshot: of what the step changes, which is put back afterwards.
            only_these: capture no other keys later.
            on_batch: called with the number of batches done so far.

        Sync: Blocks the host ("capture").
        """
        objection = snapshot.objection()
        if objection is not None:
            self.report.note = f"{objection.text}; graphs are captured as batches come"
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
        self._graphs.only_expected = only_these

    def _capture_one_ahead(self, tree: Tree) -> None:
        key = self._keys.of(tree)
        if self._graphs.get(key) is not None or self.report.refusal is not None:
            return
        self._graphs.expected.add(key)
        tree = _static(tree)
        for _ in range(self._warm_ups.num_warmup):
            self._warm_up(key, tree)
        self._capture(key, tree)


def _static(tree: Tree) -> Tree:
    """Return a batch in memory of its own.

    The last run before a capture takes one as well: compiled code tells views of a ring from
    tensors of their own, and nothing can be compiled during a capture.
    """
    return tree.map(torch.clone)


def _too_many_changes(failed: Guard, num_changes: int) -> Refusal:
    times = "once" if num_changes == 1 else f"{num_changes} times"
    return Refusal(
        "too_many_changes",
        f"{failed.watches}, changed {times}, and a graph keeps what it was captured with; "
        f"{failed.advice}",
    )
