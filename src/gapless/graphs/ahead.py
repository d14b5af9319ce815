"""Captures ahead of a run: on examples that nobody trains on, and all is put back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gapless.graphs.proof.trial import Proved
from gapless.graphs.ranks.consent_of_ranks import ConsentOfRanks
from gapless.graphs.refusal import ON_ANOTHER_RANK
from gapless.graphs.replay.step_graph import StepGraph
from gapless.graphs.sharded import refusal_of_step


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.graphs.entry import Entry
    from gapless.graphs.proof.snapshot import Snapshot
    from gapless.graphs.ranks.together import RunsAlone
    from gapless.graphs.reads.weight_guards import Gradients
    from gapless.pipeline.tree.flatten import Tree


class AheadOfRun:
    """Captures a step for the kinds of some batches, and trains on none of them.

    Args:
        snapshot: of what it changes, which is put back afterwards.
    """

    def __init__(self, step: RunsAlone, snapshot: Snapshot) -> None:
        self._callee, self._report = step.callee, step.callee.report
        self._snapshot = snapshot
        self._entries = step.entries
        self._learning = step.learning
        consent = step.callee.consent
        self._ranks = consent if isinstance(consent, ConsentOfRanks) else None
        # Of the first kind, whose proof is a whole one, and what was compared with one run of the step.
        self._like: Proved | None = None
        self._compared: list[tuple[Entry, Tree]] = []

    def capture(self, batches: Iterable[Tree], on_batch: Callable[[int], None] | None) -> None:
        """Capture the step for these batches, if it can be captured ahead.

        Sync: Blocks the host ("capture").
        """
        try:
            objection = self._objection()
            if objection is not None:
                self._report.note = f"{objection}; graphs are captured as batches come"
                return
            with self._callee.order.kept():
                for number, tree in enumerate(batches, start=1):
                    self._capture_one(tree)
                    if on_batch is not None:
                        on_batch(number)
                if self._compared:
                    self._prove_anew_what_differs()
        except torch.OutOfMemoryError:
            if self._ranks is not None:  # the other ranks would wait for this one
                raise
            self._report.note = _NO_MEMORY
        finally:
            self._snapshot.restore(self._gradients_added_to())
        self._take_verdicts()
        if self._ranks is None:
            self._forget_what_was_put_back()

    def _objection(self) -> str | None:
        """Return why the step cannot run ahead, here or on another rank; None if it can."""
        refusal = refusal_of_step(self._callee.step)
        objection = self._snapshot.keep(self._callee) if refusal is None else refusal.text
        if self._ranks is None or self._ranks.may_run_ahead(is_own=objection is None):
            return objection
        return objection or ON_ANOTHER_RANK.text

    def _gradients_added_to(self) -> Gradients:
        """Return weights with the gradients that graphs add to, and so have to find."""
        graphs = [
            one.graph if one.pending is None else one.pending.graph
            for entry in self._entries
            for one in entry.variants
        ]
        return [
            (weight, gradient)
            for graph in graphs
            for weight, gradient in (
                graph.gradients.expected if isinstance(graph, StepGraph) else ()
            )
            if gradient is not None
        ]

    def _forget_what_was_put_back(self) -> None:
        """Let go of graphs that read what the first call makes: each kind is captured when it comes."""
        for entry in self._entries:
            if all(one.failure() is not None for one in entry.variants):
                self._entries.forget(entry)
                self._learning.once_more(entry)
                self._report.note = _MADE_BY_THE_FIRST

    def _take_verdicts(self) -> None:
        stream = self._callee.device.current_stream()
        self._callee.host_waits.wait_stream(stream, reason="capture")
        for entry in self._entries:
            self._learning.take_verdicts(entry)

    def _capture_one(self, tree: Tree) -> None:
        tree = tree.map(torch.clone)
        entry = self._entries.of_call(tree)
        if self._ranks is not None:
            self._ranks.together.capture_ahead(entry, tree, self._snapshot.watching)
            return
        if entry.variants or self._report.forbids_all:
            return
        while not (self._learning.has_seen(entry) or entry.is_refused or self._report.forbids_all):
            self._learning.warm_up(entry, tree, first_uses=self._snapshot.first_uses)
            self._snapshot.forget_freed()
            if self._callee.order.is_open:
                self._report.note = _UNSETTLED
                return
        if self._learning.may_capture(entry):
            self._capture_seen(entry, tree)
        if not (entry.variants or entry.is_refused or self._report.forbids_all):
            # Values of it belong to its kind by now.
            self._capture_one(tree)

    def _capture_seen(self, entry: Entry, tree: Tree) -> None:
        """Capture a kind that was watched, with a whole proof if it is the first."""
        variant = entry.variants[0]
        self._learning.capture(entry, variant, tree, like=self._like)
        if self._like is not None:
            self._compared.append((entry, tree))
            return
        self._take_verdicts()
        if variant.graph is not None and self._report.proved:
            self._like = Proved(variant.exactness, variant.watched.touched)

    def _prove_anew_what_differs(self) -> None:
        """Capture anew, with a whole proof, what one run of the step has differed from."""
        self._take_verdicts()
        for entry, tree in self._compared:
            for variant in entry.variants:
                if not variant.has_graph and self._learning.may_capture(entry):
                    self._learning.capture(entry, variant, tree)


_NO_MEMORY = (
    "the device has no memory to run the step ahead and put back what it changes; graphs are captured as "
    "batches come"
)
_UNSETTLED = "gradients are differentiated, in an order that calls may still change; graphs are captured as batches come"
_MADE_BY_THE_FIRST = "graphs read what the step makes in its first call, which was put back; they are captured as batches come"
