"""The plain records of a verification: do plans compute the same as a plain loop?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from gapless.records.wait_stats import WaitStats


# How the names of a batch's tensors begin; those of the training state begin otherwise.
BATCH_TENSOR = "batch tensor"

# Stands for the name of a plan where a loop ran that neither prefetches nor uses rings.
PLAIN_LOOP = "a plain loop"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run of a workload under one plan, or in a plain loop.

    Attributes:
        plan: name of the plan, or `PLAIN_LOOP`.
        losses: loss of every step.
        waits: host waits of the steps, by reason; those of a plain loop are not counted.
        passes: number of batches in each pass over the workload's batches.
        num_replays: steps that ran as a replay of a captured graph.
        not_captured: why steps ran eager under a plan that captures every step; None under
            other plans.
    """

    plan: str
    losses: list[float]
    waits: WaitStats
    passes: tuple[int, ...]
    num_replays: int = 0
    not_captured: tuple[str, ...] | None = None

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return len(self.losses)

    @property
    def shows_nothing(self) -> bool:
        """Whether the plan's own part never ran: it captures every step, and none was replayed."""
        return self.not_captured is not None and not self.num_replays


@dataclass(frozen=True, kw_only=True)
class LossDifference:
    """Two losses of one step.

    Attributes:
        step: number of the step, counted from 1.
        ours: loss in the run in question.
        theirs: loss in the reference.
    """

    step: int
    ours: float
    theirs: float

    @property
    def size(self) -> float:
        """Distance of the two losses; NaN if one of them is NaN."""
        return abs(self.ours - self.theirs)


@dataclass(frozen=True, kw_only=True)
class ElementDifference:
    """How the elements of two tensors of one shape and dtype differ.

    Attributes:
        num_differing: elements whose bits differ.
        num_elements: elements of the tensor.
        max_abs: largest distance of two elements; NaN if one of a pair is NaN.
    """

    num_differing: int
    num_elements: int
    max_abs: float


@dataclass(frozen=True, kw_only=True)
class TensorDifference:
    """The first tensor that differs between two runs.

    Attributes:
        step: the step after which it differs, counted from 1; 0 is before the first step.
        name: the tensor's name, such as "parameter 0.weight".
        detail: how shape, dtype or presence differ; None if only values do.
        num_tensors: tensors that differ after this step.
        num_compared: tensors that were compared after this step.
    """

    step: int
    name: str
    detail: str | None
    num_tensors: int
    num_compared: int


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first step at which two runs differ, bit by bit.

    Attributes:
        step: counted from 1; 0 is before the first step.
        loss: the first loss that differs, at this step or later; None if none does.
        tensor: the first tensor that differs, at this step or later; None if none does.
        elements: how that tensor differed at its step when both were run again; None if it did not
            differ then.
        is_repeated: whether the runs differed anywhere when both were run again.
    """

    step: int
    loss: LossDifference | None
    tensor: TensorDifference | None
    elements: ElementDifference | None
    is_repeated: bool


@dataclass(frozen=True, kw_only=True)
class Closeness:
    """How far two runs are apart, relative to the size of their numbers.

    Attributes:
        tolerance: largest relative difference that is allowed.
        first_loss: the first loss outside the tolerance; None if there is none.
        largest_loss: largest relative difference of two losses.
        largest_tensor: largest relative difference of a tensor after the last step, and the
            tensor's name.
        num_tensors_beyond: tensors outside the tolerance after the last step.
        num_tensors: tensors that were compared after the last step.
    """

    tolerance: float
    first_loss: LossDifference | None
    largest_loss: float
    largest_tensor: tuple[float, str]
    num_tensors_beyond: int
    num_tensors: int

    @property
    def is_within(self) -> bool:
        """Whether all losses and tensors are within the tolerance."""
        return self.first_loss is None and not self.num_tensors_beyond


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came out when two runs of one workload were compared.

    Attributes:
        ours: the run in question.
        theirs: the reference.
        num_tensors: tensors that were compared after the last step.
        is_identical: whether all bits of all losses and tensors agree.
        difference: where they do not; None if they do, or if a tolerance was given.
        closeness: how far the runs are apart; None without a tolerance.
    """

    ours: RunSummary
    theirs: RunSummary
    num_tensors: int
    is_identical: bool
    difference: Difference | None
    closeness: Closeness | None

    @property
    def is_of_one_plan(self) -> bool:
        """Whether both runs are of one kind, which shows if the workload is reproducible."""
        return self.ours.plan == self.theirs.plan

    @property
    def agrees(self) -> bool:
        """Whether the runs agree, bit by bit or within the tolerance."""
        return self.is_identical or (self.closeness is not None and self.closeness.is_within)

    @property
    def first_nonfinite_step(self) -> int | None:
        """The first step whose loss is NaN or infinite in the reference; None if there is none.

        NaN spreads to every weight, and two NaNs are equal whatever was computed before them.
        """
        losses = enumerate(self.theirs.losses, start=1)
        return next((step for step, loss in losses if not math.isfinite(loss)), None)

    @property
    def holds(self) -> bool:
        """Whether the runs agree in finite numbers, so that their agreement shows something."""
        return self.agrees and self.first_nonfinite_step is None


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Whether plans compute the same as a plain loop, and as a plan of reference.

    Attributes:
        itself: the plain loop compared with itself.
        plans: each plan compared with the plain loop, and with the plan of reference if there is
            one; empty if `itself` does not hold.
    """

    itself: Verdict
    plans: tuple[Verdict, ...]

    @property
    def holds(self) -> bool:
        """Whether the workload is reproducible and every plan computes the same."""
        return self.itself.holds and all(verdict.holds for verdict in self.plans)

    @property
    def show_nothing(self) -> tuple[RunSummary, ...]:
        """The runs of plans that capture every step in which no step was replayed."""
        runs = {verdict.ours.plan: verdict.ours for verdict in self.plans}
        return tuple(run for run in runs.values() if run.shows_nothing)

    @property
    def is_reproducible(self) -> bool | None:
        """Whether the plain loop equals itself; None if it gives no finite losses to tell by."""
        if self.itself.agrees and not self.itself.holds:
            return None
        return self.itself.holds

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """All verdicts, in the order in which they were found."""
        return (self.itself, *self.plans)

    def is_same(self, plan: str) -> bool | None:
        """Return whether a plan computes the same as what it was compared with.

        None if that is not known.
        """
        found = [verdict.holds for verdict in self.plans if verdict.ours.plan == plan]
        return all(found) if found else None


@dataclass(frozen=True, kw_only=True)
class SecondOpinion:
    """What a step reads and writes of Python, as TorchDynamo and gapless name it.

    Attributes:
        both: reads that both name, by the names of TorchDynamo, as are all but those of gapless alone.
        only_dynamo: reads that gapless does not compare, and that none of the next two explain.
        only_gapless: reads that TorchDynamo does not name.
        of_updates: gradients, and reads of optimizers, which are compared by themselves.
        of_libraries: functions and values of libraries, which are taken not to be replaced; an audit tells
            where one is.
        written: places that gapless saw the step write to.
        written_only_by_dynamo: side effects that TorchDynamo names, and gapless saw none of.
        failures: why TorchDynamo stopped, each in a line.
    """

    both: tuple[str, ...]
    only_dynamo: tuple[str, ...]
    only_gapless: tuple[str, ...]
    of_updates: tuple[str, ...]
    of_libraries: tuple[str, ...]
    written: tuple[str, ...]
    written_only_by_dynamo: tuple[str, ...]
    failures: tuple[str, ...]

    @property
    def has_traced(self) -> bool:
        """Whether TorchDynamo has named anything."""
        reads = (self.both, self.only_dynamo, self.of_updates, self.of_libraries)
        return any(reads) or bool(self.written_only_by_dynamo)
