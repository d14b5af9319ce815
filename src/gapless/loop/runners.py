"""How the steps of an epoch run: eagerly, or as captured graphs.

A runner takes one batch at a time, calls the step's host part and then runs the step. Plan `auto`
has its runner in `gapless.loop.auto`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from gapless.pipeline.step import SplitStep, call_host_part, do_work


if TYPE_CHECKING:
    from gapless.graphs.captured_step import CapturedStep
    from gapless.loop.engine import Engine
    from gapless.pipeline.prefetch import Pass, Prefetcher
    from gapless.pipeline.step import WholeStep
    from gapless.pipeline.tree.flatten import Tree
    from gapless.records.bottleneck import Diagnosis, Launch


class StepRunner(Protocol):
    """Runs the steps of an epoch."""

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What plan `auto` found out last; None before, and under other plans."""

    def begin_epoch(self, prefetcher: Prefetcher[Any], batches: object) -> None:
        """Learn where the batches of the next epoch come from.

        Sync: With several ranks, may block the host until all are here ("agreement").
        """

    def start_pass(self, prefetcher: Prefetcher[Any]) -> Pass[Any]:
        """Start the pass over the epoch's batches, each as `run` takes it."""

    def run(self, batch: Any) -> tuple[Any, Launch | None]:
        """Train on a batch; return what the step returned, and how the host launched it.

        What the step returned is valid until the next batch. The launch is None where nobody
        measures.
        """

    def observe(self, launch: Launch, busy_ms: float, period_ms: float | None) -> None:
        """Take in the device's times of a step that `run` launched.

        Args:
            launch: of the step.
            busy_ms: from its first kernel to its last.
            period_ms: from the end of the step before to its end; None if none came before.
        """


class EagerSteps:
    """Run a step as its Python says; its second part on the backward stream of the plan."""

    def __init__(
        self, step: SplitStep | WholeStep, engine: Engine, *, diagnosis: Diagnosis | None = None
    ) -> None:
        self.diagnosis = diagnosis
        self._step = step
        self._engine = engine

    def begin_epoch(self, prefetcher: Prefetcher[Any], batches: object) -> None:
        """Nothing is measured."""

    def start_pass(self, prefetcher: Prefetcher[Any]) -> Pass[Any]:
        """Start a pass over batches as they are: no graph needs their tensors listed."""
        batches: Pass[Any] = iter(prefetcher)
        return batches

    def run(self, batch: Any) -> tuple[Any, None]:
        """Train on a batch."""
        step, streams = self._step, self._engine.streams
        call_host_part(step, batch)
        if streams.backward is streams.compute or not isinstance(step, SplitStep):
            return do_work(step, batch), None
        out = step.forward(batch)
        self._engine.chain(streams.compute, streams.backward)
        with self._engine.device.use_stream(streams.backward):
            step.backward(out)
        self._engine.chain(streams.backward, streams.compute)
        return out, None

    def observe(self, launch: Launch, busy_ms: float, period_ms: float | None) -> None:
        """Nothing is measured."""


class GraphSteps:
    """Run a step as a graph for each signature of batches."""

    diagnosis: Diagnosis | None = None

    def __init__(self, captured: CapturedStep) -> None:
        self._captured = captured

    def begin_epoch(self, prefetcher: Prefetcher[Any], batches: object) -> None:
        """Nothing is measured; ranks that lost a graph capture again."""
        self._captured.begin_epoch()

    def start_pass(self, prefetcher: Prefetcher[Any]) -> Pass[Tree]:
        """Start a pass over batches with their tensors listed, by which a graph is found."""
        return prefetcher.trees()

    def run(self, batch: Tree) -> tuple[Any, None]:
        """Train on a batch."""
        call_host_part(self._captured.step, batch.value)
        return self._captured.run(batch).out, None

    def observe(self, launch: Launch, busy_ms: float, period_ms: float | None) -> None:
        """Nothing is measured."""
