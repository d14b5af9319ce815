"""What holds a loop back, and what helps: decided from measured steps, without a device.

A step is bound by what takes longest between the end of one step and the end of the next. The
device is it when it is still busy as the host begins to queue the next step. Otherwise the host is
late, and the largest part of its time is the bottleneck: waiting for data, launching, waiting for
the device inside the step, or code between the steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from math import ceil
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal


if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


Bottleneck = Literal["data", "launch", "host wait", "host code", "device", "none"]

# The host is late if it finds the device idle before steps that take more than this share of time.
_LATE_SHARE = 0.5

# A device that is busy for this share of the time leaves nothing to gain by faster loading.
_BUSY_SHARE = 0.95

# Time that a device loses now and then is the loader's if the host waited for so much of it.
_LOADERS_SHARE = 0.5

# A step has to be faster as a graph by this share: graphs take memory.
_GAIN_SHARE = 0.02

# A step in which the host takes so many times as long as in most is one that compiled something.
_OUTLIER = 5.0

# A plan that has settled is measured again when its figures change by more than this share.
_CHANGE_SHARE = 0.3


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One step, as the host knows it when it has queued the step.

    Attributes:
        round: number of the stretch of steps that it belongs to.
        way: how it ran: eagerly, as a graph, or as a graph that was captured for it just now.
        key: what its batch shares with others that the same graph can take.
        host_ms: time the host spent in the step.
        data_wait_ms: time the host waited for the loader before it.
        found_idle: whether the device had nothing to do when the host began with it.
        waits: file:line of every wait of the host inside the step that was seen.
    """

    round: int = 0
    way: Literal["eager", "replay", "capture"]
    key: Hashable
    host_ms: float
    data_wait_ms: float
    found_idle: bool
    waits: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One step, as the host and the device saw it.

    Attributes:
        launch: what the host knows of it.
        busy_ms: from its first kernel to its last.
        period_ms: from the end of the step before to its end, on the device.
    """

    launch: Launch
    busy_ms: float
    period_ms: float

    @property
    def own_ms(self) -> float:
        """What the step would have taken with its batch at hand, in milliseconds."""
        return max(self.busy_ms, self.period_ms - self.launch.data_wait_ms)


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Steps that ran as written, on average; times in milliseconds a step.

    Attributes:
        step_ms: from the end of one step to the end of the next.
        host_ms: of the host inside the step.
        data_wait_ms: of the host, for the loader.
        busy_ms: of the device, from a step's first kernel to its last.
        idle_share: share of the time that is of steps before which the device was idle, 0 to 1.
            Not of their number: workers deliver as many batches at once as there are workers, and
            the host is late with the first of them alone.
        waits: how often a step the host waits inside it, by file:line.
        num_workers: processes that make batches, None if that is not known.
        num_cores: of this machine, None if that is not known.
    """

    step_ms: float
    host_ms: float
    data_wait_ms: float
    busy_ms: float
    idle_share: float
    waits: dict[str, float]
    num_workers: int | None = None
    num_cores: int | None = None

    @classmethod
    def of(
        cls, samples: Sequence[Sample], *, num_workers: int | None, num_cores: int | None = None
    ) -> Readings:
        """Return the averages of at least one sample, without steps that compiled something."""
        samples = _typical(samples)
        sites = Counter(site for sample in samples for site in sample.launch.waits)
        return cls(
            step_ms=fmean(sample.period_ms for sample in samples),
            host_ms=fmean(sample.launch.host_ms for sample in samples),
            data_wait_ms=fmean(sample.launch.data_wait_ms for sample in samples),
            busy_ms=fmean(sample.busy_ms for sample in samples),
            idle_share=_idle_share(samples),
            waits={site: count / len(samples) for site, count in sites.most_common()},
            num_workers=num_workers,
            num_cores=num_cores,
        )


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What came of launching steps as graphs.

    Attributes:
        eager_ms: of a step as written, on the shapes that were tried, the time the host waited
            for data left out; None if none was.
        captured_ms: of the same steps as graphs.
        captured_busy_ms: of the device in them.
        refusal: why steps cannot be captured, None if they can.
    """

    eager_ms: float | None = None
    captured_ms: float | None = None
    captured_busy_ms: float | None = None
    refusal: str | None = None

    @property
    def pays(self) -> bool:
        """Whether steps are faster as graphs, by enough to be worth their memory."""
        return (
            self.eager_ms is not None
            and self.captured_ms is not None
            and self.captured_ms < (1.0 - _GAIN_SHARE) * self.eager_ms
        )


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What holds a loop back, and what was done about it.

    Attributes:
        bottleneck: the device, or what takes most of a host's time that is late; `none` on a CPU.
        captures: whether steps are launched as graphs from here on.
        reason: why, with the numbers.
        workers_needed: processes that would make batches fast enough, if data is the bottleneck
            and it is known how many there are.
    """

    bottleneck: Bottleneck
    captures: bool
    reason: str
    workers_needed: int | None = None

    @property
    def line(self) -> str:
        """One line that says all of it."""
        return f"auto: {self.reason}"


ON_A_CPU = Diagnosis(
    bottleneck="none",
    captures=False,
    reason="a CPU runs its work itself, so there are no gaps to close; runs as gapless",
)


def nothing_measured(num_steps: int) -> Diagnosis:
    """Return what is said where no step follows another, as with one batch an epoch."""
    return Diagnosis(
        bottleneck="none",
        captures=False,
        reason=(
            f"none of {num_steps} steps followed another without an end of an epoch between them, "
            "so there is nothing to measure; runs as gapless"
        ),
    )


def _idle_share(samples: Sequence[Sample]) -> float:
    total_ms = sum(sample.period_ms for sample in samples)
    idle_ms = sum(sample.period_ms for sample in samples if sample.launch.found_idle)
    return idle_ms / total_ms if total_ms else 0.0


def _typical(samples: Sequence[Sample]) -> Sequence[Sample]:
    # Medians would not do: a loader with workers makes few steps wait, and those for long.
    limit = _OUTLIER * median(sample.launch.host_ms for sample in samples)
    return [sample for sample in samples if sample.launch.waits or sample.launch.host_ms <= limit]


def trial_of(eager: Sequence[Sample], replays: Sequence[Sample]) -> Trial:
    """Return the time of a step as written and as a graph, on the shapes that ran as both.

    Each shape counts by its median, and as often as it came in both; shapes that ran in one way
    only say nothing. Waiting for data is the loader's time, and varies more than a graph can gain.
    """
    times: dict[Hashable, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for sample in (*eager, *replays):
        times[sample.launch.key][sample.launch.way == "replay"].append(sample.own_ms)
    both = [pair for pair in times.values() if all(pair)]
    if not both:
        return Trial()
    weights = [len(first) + len(second) for first, second in both]
    means = [
        sum(weight * median(pair[way]) for weight, pair in zip(weights, both, strict=True))
        / sum(weights)
        for way in (False, True)
    ]
    return Trial(
        eager_ms=means[0],
        captured_ms=means[1],
        captured_busy_ms=median(sample.busy_ms for sample in replays),
    )


def diagnose(readings: Readings, trial: Trial) -> Diagnosis:
    """Name the bottleneck of steps as written, and choose how they run from here on."""
    bottleneck = find_bottleneck(readings)
    needed = workers_needed(readings, trial) if bottleneck == "data" else None
    parts = [_found(bottleneck, readings, trial), _advice(bottleneck, readings, needed)]
    parts.append(_done(bottleneck, trial))
    return Diagnosis(
        bottleneck=bottleneck,
        captures=trial.pays,
        reason="; ".join(part for part in parts if part),
        workers_needed=needed,
    )


def find_bottleneck(readings: Readings) -> Bottleneck:
    """Return what the others wait for."""
    is_busy = readings.busy_ms >= _BUSY_SHARE * readings.step_ms
    if readings.idle_share <= _LATE_SHARE:
        lost_ms = readings.step_ms - readings.busy_ms
        is_loaders = readings.data_wait_ms >= _LOADERS_SHARE * lost_ms
        return "data" if is_loaders and not is_busy else "device"
    between_ms = readings.step_ms - readings.host_ms - readings.data_wait_ms
    # How much of the step is the wait is not known; but as long as there is one, the host cannot
    # be ahead.
    inside: Bottleneck = "host wait" if readings.waits else "launch"
    parts: dict[Bottleneck, float] = {
        inside: readings.host_ms,
        "data": readings.data_wait_ms,
        "host code": between_ms,
    }
    largest = max(parts, key=lambda name: parts[name])
    return "device" if is_busy and largest in ("data", "host code") else largest


def workers_needed(readings: Readings, trial: Trial) -> int | None:
    """Return the processes that make batches as fast as steps take them; None if unknown.

    Without worker processes the host waits for as long as a batch takes to make. With some, each
    makes one in the time in which all of them deliver their number of steps.
    """
    if readings.num_workers is None:
        return None
    making_ms = readings.num_workers * readings.step_ms or readings.data_wait_ms
    return max(readings.num_workers + 1, ceil(making_ms / _without_data_ms(readings, trial)))


def _without_data_ms(readings: Readings, trial: Trial) -> float:
    """Return what a step would take if every batch were there in time."""
    if trial.pays and trial.captured_ms is not None:
        # Also what the host needs to launch it, which may be more than the device's part.
        found = max(trial.captured_ms, trial.captured_busy_ms or 0.0)
    else:
        found = max(readings.busy_ms, readings.step_ms - readings.data_wait_ms)
    return max(found, 1e-3)


def _found(bottleneck: Bottleneck, readings: Readings, trial: Trial) -> str:
    step, host = _ms(readings.step_ms), _ms(readings.host_ms)
    if bottleneck == "device":
        share = min(1.0, readings.busy_ms / readings.step_ms) if readings.step_ms else 1.0
        return (
            f"device-bound: the device is busy {share:.0%} of the time, "
            f"{_ms(readings.busy_ms)} of {step} ms a step"
        )
    if bottleneck == "data":
        waited = _ms(readings.data_wait_ms)
        return f"data-bound: the host waits {waited} of {step} ms a step for the loader"
    if bottleneck == "host wait":
        sites = ", ".join(f"{site} {_times(count)}" for site, count in readings.waits.items())
        return (
            f"host wait: the host waits for the device inside the step ({sites}) and is there for "
            f"{host} of {step} ms, so it cannot launch ahead"
        )
    if bottleneck == "host code":
        between = _ms(readings.step_ms - readings.host_ms - readings.data_wait_ms)
        return f"host-bound: the code between two steps takes {between} of {step} ms"
    runs = "the device waits for it"
    if trial.captured_busy_ms is not None:
        runs = f"the device {_ms(trial.captured_busy_ms)} ms to run it"
    return f"launch-bound: the host needs {host} ms to launch a step and {runs}"


def _advice(bottleneck: Bottleneck, readings: Readings, needed: int | None) -> str:
    if bottleneck != "data":
        return ""
    if needed is None:
        rest_ms = max(readings.busy_ms, readings.step_ms - readings.data_wait_ms)
        times = readings.step_ms / max(rest_ms, 1e-3)
        return f"a loader {times:.1f} times as fast would do"
    one = "1 worker" if needed == 1 else f"{needed} workers"
    if readings.num_cores is None or needed <= readings.num_cores:
        return f"{one} would do, there are {readings.num_workers}"
    return (
        f"{one} would do, there are {readings.num_workers} and {readings.num_cores} cores; make "
        "batches cheaper, or ahead of the run"
    )


def _done(bottleneck: Bottleneck, trial: Trial) -> str:
    besides = " besides" if bottleneck == "data" else ""
    if trial.pays:
        assert trial.captured_ms is not None
        return f"captured, {_ms(trial.captured_ms)} ms a step{besides}"
    if trial.captured_ms is not None and trial.eager_ms is not None:
        return (
            f"steps run as written, which takes {_ms(trial.eager_ms)} ms{besides}, and captured "
            f"{_ms(trial.captured_ms)}"
        )
    if bottleneck == "device":
        return "no plan will make it faster"
    if bottleneck == "host wait":
        return "a step that waits cannot be captured"
    if trial.refusal is not None:
        return f"steps run as written, for they cannot be captured: {trial.refusal}"
    return "steps run as written, for shapes of batches hardly come again"


def _ms(value: float) -> str:
    return f"{value:.1f}" if value >= 1.0 else f"{value:.2f}"


def _times(count: float) -> str:
    return "once a step" if round(count, 1) == 1.0 else f"{count:.1f} times a step"


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast steps go, in a stretch of them.

    Attributes:
        step_ms: median from the end of one step to the end of the next.
        data_wait_ms: of the host for the loader, a step.
    """

    step_ms: float
    data_wait_ms: float

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Pace:
        """Return the pace of at least one sample."""
        return cls(
            step_ms=median(sample.period_ms for sample in samples),
            data_wait_ms=fmean(sample.launch.data_wait_ms for sample in samples),
        )

    def has_changed(self, since: Pace) -> bool:
        """Whether the time of a step, or what of it is waiting for data, is another."""
        limit = _CHANGE_SHARE * since.step_ms
        return (
            abs(self.step_ms - since.step_ms) > limit
            or abs(self.data_wait_ms - since.data_wait_ms) > limit
        )
