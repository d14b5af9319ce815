"""What the ranks of a captured step take over from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol


if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from gapless.graphs.audit import Audits
    from gapless.graphs.audited_calls import AuditedCalls
    from gapless.graphs.callee import Callee
    from gapless.graphs.entries import Entries
    from gapless.graphs.entry import Entry, Variant
    from gapless.graphs.fast_path import FastPath
    from gapless.graphs.graph_learning import Learning
    from gapless.graphs.step_run import StepRun
    from gapless.pipeline.tree.flatten import Tree


class RunsAlone(Protocol):
    """A captured step, as it runs without other ranks; attributes as of `CapturedStep`."""

    callee: Callee
    entries: Entries
    learning: Learning
    audits: Audits
    audited: AuditedCalls
    fast_path: FastPath

    def take(self, entry: Entry, tree: Tree) -> StepRun:
        """Run a call of a kind."""

    def find(self, entry: Entry, tree: Tree) -> Variant | None:
        """Return a variant whose graph can take a call, None if there is none."""

    def replay(self, entry: Entry, variant: Variant, tree: Tree) -> StepRun:
        """Run a call by the graph of a variant."""

    def lift_refusal(self) -> None:
        """Try again what was refused, if the reason may be gone."""


class OfRanks(Protocol):
    """Runs the calls of a step with those of other ranks."""

    @property
    def asks(self) -> bool:
        """Whether the step is known to talk to others."""

    @property
    def is_unknown(self) -> bool:
        """Whether it may, and was not seen to."""

    def watch(self) -> AbstractContextManager[None]:
        """See in the body, a run as written, whether the step talks to others."""

    def take(self, entry: Entry, tree: Tree) -> StepRun:
        """Run a call of a kind."""

    def begin_epoch(self) -> None:
        """Let ranks ask each other again."""

    def may_run_ahead(self, *, is_own: bool) -> bool:
        """Return whether the step may run ahead of a run on all ranks.

        Args:
            is_own: whether it may on this one.
        """

    def capture_ahead(
        self, entry: Entry, tree: Tree, watching: Callable[[], AbstractContextManager[object]]
    ) -> None:
        """Capture a kind on all ranks, ahead of a run.

        Args:
            entry: the kind.
            tree: a call of it, nothing of which is kept.
            watching: returns a context for runs as written, which are put back.
        """
