"""What the ranks of a captured step need of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol


if TYPE_CHECKING:
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
