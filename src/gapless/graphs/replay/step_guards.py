"""All that has to hold before one graph of a step is replayed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.graphs.reads.failed_look import text_of
from gapless.graphs.reads.guard_rows import GuardRows


if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from gapless.graphs.reads.read_check import Change
    from gapless.graphs.reads.read_guards import ReadGuards
    from gapless.graphs.reads.weight_guards import Guard
    from gapless.graphs.replay.kept_tensors import KeptTensors
    from gapless.graphs.updates.update_outside import CapturedUpdates


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a graph cannot be replayed now.

    Attributes:
        text: what changed, in one line.
        is_memory: whether the graph reads memory that is not used any more; it is then dropped.
        advice: what to do if it happens too often.
        optimizer: whose number it is, if it is one.
        number: its name.
    """

    text: str
    is_memory: bool
    advice: str
    optimizer: torch.optim.Optimizer | None = None
    number: str = ""

    @property
    def what(self) -> str:
        """What changed, without its values."""
        return self.text.partition(" changed ")[0]


class StepGuards:
    """The guards of one graph, all from the moment of its capture.

    Args:
        memory: guards on weights and gradients.
        updates: of optimizers that are captured with the step; None: there are none.
        kept: tensors that the step keeps from call to call; None: there are none.

    Attributes:
        hold: returns whether all of them hold; it does not block the host, and raises nothing.
    """

    def __init__(
        self,
        reads: ReadGuards,
        memory: Sequence[Guard],
        updates: CapturedUpdates | None = None,
        kept: KeptTensors | None = None,
    ) -> None:
        self._reads = reads
        self._updates = updates
        self._checks = [(guard.check(), guard) for guard in memory]
        self._kept = kept
        self.rows = GuardRows(reads.rows.asked)
        self.rows.add_all(reads.rows)
        for check, guard in self._checks:
            self.rows.hold_too(guard.watches, [check])
        if updates is not None:
            updates.compare_in(self.rows)
        if kept:
            self.rows.hold_too("shapes of kept tensors", [kept.are_alike])
        self.hold = self.rows.hold

    def failure(self) -> Failure | None:
        """Return the first that does not hold, None if all do."""
        failure = failure_of_reads(self._reads)
        if failure is not None:
            return failure
        for check, guard in self._checks:
            if not check():
                return Failure(guard.watches, guard.is_memory, guard.advice)
        changed = None if self._updates is None else self._updates.changed()
        if changed is not None:
            return Failure(
                f"{changed.name} of {type(changed.optimizer).__name__} changed from "
                f"{changed.before} to {changed.after}",
                is_memory=not changed.is_number,
                advice="copy new values into the tensors that are there",
                optimizer=changed.optimizer if changed.is_number else None,
                number=changed.name,
            )
        if self._kept and not self._kept.are_alike():
            names = ", ".join(path.name for path in self._kept.paths)
            return Failure(f"the shapes in {names}", is_memory=False, advice="keep one shape")
        return None


def failure_of_reads(reads: ReadGuards, *, in_environment: bool = True) -> Failure | None:
    """Return what a step's code reads otherwise now, None if nothing."""
    change = reads.first_changed(in_environment=in_environment)
    if change is None:
        return None
    advice = _WRITE_INTO_IT if change.is_memory else _MAKE_A_TENSOR
    return Failure(_text_of(change), change.is_memory, advice)


def failure_of_error(error: Exception) -> Failure:
    """Return the failure that it is if a guard raises, as objects of the user's may when they are compared."""
    text = f"what the step reads changed into something that raises {text_of(error)}"
    return Failure(text, is_memory=False, advice="let it raise nothing when it is read")


_WRITE_INTO_IT = "write new values into what is there, into a tensor by `copy_()`"
_MAKE_A_TENSOR = (
    "pass it to the step as a tensor on the device, or keep it in one that is filled in place"
)


def _text_of(change: Change) -> str:
    values = "" if change.is_memory else f" from {change.before} to {change.after}"
    where = f" ({change.site})" if change.site else ""
    return f"{change.name}{where} changed{values}"
