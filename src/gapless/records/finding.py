"""What `gapless doctor` found in a script."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Literal, get_args


if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.records.comparison import Spread
    from gapless.records.timeline import Timeline


# How sure a finding is: it was seen while the script ran; the syntax shows it; the syntax cannot show
# whether a value is on a device.
Certainty = Literal["seen", "surely", "maybe"]

# The part of a program that a line belongs to, in the order in which they count.
Part = Literal["step", "called", "evaluation", "saving", "set-up"]
PARTS: tuple[Part, ...] = get_args(Part)

# Parts of a step are means; what differs from the median by more than rounding is said.
_SKEWED = 0.005


@dataclass(frozen=True, kw_only=True)
class Site:
    """A line of the user's own code.

    Attributes:
        path: of the file; as short as it can be from the working directory.
        line: from 1.
        function: that holds the line; "<module>" outside of one.
        source: the line itself without its indentation; empty where it cannot be read.
    """

    path: str
    line: int
    function: str = ""
    source: str = ""

    def __str__(self) -> str:
        """Return it as people and editors write it."""
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One reason for which a script is slower than it could be. Times are milliseconds a step.

    Attributes:
        code: stable name of the kind, such as "GAP001"; `gapless explain` says what it means.
        site: the user's line; None where nobody knows: the finding is unattributed.
        thread: "main", "autograd" or the name of another thread.
        call: what was called there, such as "Tensor.item".
        per_step: how often in a step; None where it is known from the syntax alone.
        waited_ms: that the host waited there; None where it was not measured.
        exposed_ms: of idle time of the device that goes back to it, an upper bound of what mending
            it can gain; None where it was not measured.
        gain_ms: that a step is predicted to become shorter by if this alone is mended, from playing
            what was recorded again without it: 0 to `exposed_ms`. Less than exposed where the idle
            time only moves on to the next wait. None where it cannot be predicted.
        share: of the step that `exposed_ms` is, 0 to 1; None likewise.
        certainty: how sure it is.
        cause: what happens there, in one sentence.
        mend: what to write instead: a sentence, and code where there is some.
        part: of the program: the training step, what it calls, evaluation and so on.
        forward: the line whose backward pass waits, where the site is in it and one is known.
        rank: of the process that it was seen in; None where there is only one, or in all of them.
    """

    code: str
    site: Site | None
    thread: str = "main"
    call: str
    per_step: float | None
    waited_ms: float | None = None
    exposed_ms: float | None = None
    gain_ms: float | None = None
    share: float | None = None
    certainty: Certainty = "seen"
    cause: str
    mend: str
    part: Part = "step"
    forward: Site | None = None
    rank: int | None = None


def by_part(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings part by part, the training step first; within one in the order that they have."""
    return sorted(findings, key=lambda one: PARTS.index(one.part))


@dataclass(frozen=True, kw_only=True)
class PartTimes:
    """What the host does in a step, in milliseconds; together they are the step.

    Attributes:
        data: batches are made and brought over: all before the first node of autograd.
        forward: nodes of autograd are made.
        backward: backward passes.
        update: of optimizers.
        other: the rest.
    """

    data: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    update: float = 0.0
    other: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Where the time of a step went, in milliseconds; a field is None where it was not measured.

    The parts of the host, `data_ms`, `wait_ms` and `launch_ms`, and the rest of its time make up `wall_ms`.

    Attributes:
        num_steps: that were watched.
        wall_ms: from one step to the next, with nothing of the profiler.
        data_ms: the host waited for the loader, or the loop's own iterator made batches.
        wait_ms: the host waited for the device.
        launch_ms: the host queued work.
        busy_ms: the device had work, copies included.
        compute_ms: the device had work other than copies to and from the host.
        collective_ms: of that, kernels of NCCL, in which it also waits for other processes.
        idle_ms: the device had none.
        num_launches: kernels, copies and graphs that the host queued.
        parts_ms: what the host did; None where that was not measured.
        has_loader: whether a loader of torch was seen.
    """

    num_steps: int
    wall_ms: Spread
    data_ms: float | None = None
    wait_ms: float | None = None
    launch_ms: float | None = None
    busy_ms: float | None = None
    compute_ms: float | None = None
    collective_ms: float | None = None
    idle_ms: float | None = None
    num_launches: float | None = None
    parts_ms: PartTimes | None = None
    has_loader: bool = False

    @property
    def mean_ms(self) -> float:
        """The mean of all steps, which the parts make up; the median where that is all there is."""
        return mean(self.wall_ms.rounds) if self.wall_ms.rounds else self.wall_ms.median

    @property
    def is_skewed(self) -> bool:
        """Whether a few long steps keep the mean from the median."""
        return abs(self.mean_ms - self.wall_ms.median) > _SKEWED * self.wall_ms.median

    @property
    def busy_share(self) -> float | None:
        """Share of the step in which the device had work, 0 to 1; None where not measured."""
        if self.busy_ms is None or self.idle_ms is None:
            return None
        return self.busy_ms / max(1e-9, self.busy_ms + self.idle_ms)


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """A step of one process of several, in milliseconds.

    Attributes:
        rank: of the process.
        step_ms: from one step to the next.
        data_ms: as in `StepTimes`.
        own_ms: without its backward pass and its waits for the device, in which it may wait for the others.
        collective_ms: as in `StepTimes`.
    """

    rank: int
    step_ms: float
    data_ms: float
    own_ms: float
    collective_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One variant of the script that was measured against the script as written.

    Attributes:
        name: for example "recorded batches".
        change: what it changes, in one sentence.
        steps_per_second: over the windows; None where it could not run.
        baseline: the script as written, in windows between those of the variant.
        refusal: why it could not run; empty where it did.
        details: what else was seen while it ran, one sentence each.
    """

    name: str
    change: str
    steps_per_second: Spread | None
    baseline: Spread | None
    refusal: str = ""
    details: tuple[str, ...] = ()

    @property
    def gain(self) -> float | None:
        """Steps a second over those of the script as written; None where it did not run."""
        if self.steps_per_second is None or self.baseline is None or not self.baseline.median:
            return None
        return self.steps_per_second.median / self.baseline.median


@dataclass(frozen=True, kw_only=True)
class Session:
    """What was seen of one run of a script: everything that a report shows.

    Attributes:
        command: the script and its arguments, as they were typed.
        device: its name, such as "NVIDIA H200"; "cpu" without one.
        versions: of python, torch, gapless and the driver, by name.
        step: what a step is here, in a few words: "a call of AdamW.step".
        steps: where their time went; None where no step was seen.
        findings: part by part of the program, those that cost most first.
        verdict: one sentence: what holds the script back, and whether mending the findings will help.
        notes: what could not be seen or measured, and why; one sentence each.
        trials: variants that were measured.
        timeline: of the watched steps; None where there was no profiler.
        num_ranks: processes that are reported here.
        ranks: a step of each of them, where there are several and their steps were split.
    """

    command: tuple[str, ...]
    device: str
    versions: dict[str, str]
    step: str = ""
    steps: StepTimes | None = None
    findings: tuple[Finding, ...] = ()
    verdict: str = ""
    notes: tuple[str, ...] = ()
    trials: tuple[Trial, ...] = ()
    timeline: Timeline | None = None
    num_ranks: int = 1
    ranks: tuple[RankTimes, ...] = ()
