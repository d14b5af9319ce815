"""What a graph of one kind of call is to those who keep and launch it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol


if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from gapless.graphs.reads.read_guards import ReadGuards
    from gapless.graphs.replay.step_guards import StepGuards
    from gapless.pipeline.tree.flatten import Tree


class CallGraph(Protocol):
    """A graph of a step, or of a module.

    Attributes:
        changes_batch: whether it changes what it is given.
    """

    reads: ReadGuards
    changes_batch: bool

    @property
    def guards(self) -> StepGuards:
        """What has to hold before a replay."""

    def can_take(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Return whether a replay on these tensors overwrites nothing that is needed."""

    def why_not(self, tree: Tree) -> str | None:
        """Return why a replay would not do what the call as written does; None if it would."""

    def replay(self, tree: Tree, *, is_own: bool) -> Any:
        """Launch it on the arguments of a call; return what the call returns.

        Args:
            tree: the arguments.
            is_own: whether no replay may overwrite what is returned.
        """

    def replay_on(self, leaves: list[torch.Tensor]) -> Any:
        """Launch it on the tensors of a call; return what the call returns, which is the caller's."""
