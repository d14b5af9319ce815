"""Name the bottleneck of a loop from measured steps, and say what helps. Needs no device.

The bottleneck is what takes longest between the end of one step and the end of the next. It is
the device if the device is still busy when the host begins to queue the next step. Otherwise the
host is late, and the largest part of its time is the bottleneck: waiting for data, launching,
waiting for the device inside the step, or code between the steps.
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

# The host is late if the steps before which the device was idle take more than this share of time.
_LATE_SHARE = 0.5

# If the device is busy for this share of the time, faster loading gains nothing.
_BUSY_SHARE = 0.95

# Blame the loader if the host waited for it during this share of the device's idle time.
_LOADERS_SHARE = 0.5

# Graphs take memory, so a step has to be faster as a graph by at least this share.
_GAIN_SHARE = 0.02

# A step that took the host this many times the median compiled something.
_OUTLIER = 5.0

# Measure again when the figures of a settled plan change by more than this share.
_CHANGE_SHARE = 0.3


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One step, as the host knows it when it has queued the step.

    Attributes:
        round: number of the stretch of steps that it belongs to.
        ran_as: eager, as a replay, or as a replay of a graph that was captured for it just now.
        key: signature of its batch: the same graph can take all batches that have it.
        host_ms: time the host spent in the step.
        data_wait_ms: time the host waited for the loader before it.
        found_idle: whether the device had nothing to do when the host began with it.
        waits: file:line of every wait of the host inside the step that was seen.
    """

    round: int = 0
    ran_as: Literal["eager", "replay", "capture"]
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
        """Milliseconds of the step without the wait for its batch."""
        return max(self.busy_ms, self.period_ms - self.launch.data_wait_ms)


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Averages over eager steps; times in milliseconds a step.

    Attributes:
        step_ms: from the end of one step to the end of the next.
        host_ms: of the host inside the step.
        data_wait_ms: of the host, for the loader.
        busy_ms: of the device, from a step's first kernel to its last.
        idle_share: time of the steps before which the device was idle, as a share of all time, 0
            to 1. Time and not number: N workers deliver N batches at once, and the host is late
            with the first of them alone.
        waits: number of host waits inside a step, by file:line.
        num_workers: processes that make batches; None if unknown.
        num_cores: of this machine; None if unknown.
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
    """Eager steps and the same steps as graphs, compared.

    Attributes:
        eager_ms: time of an eager step, without the time the host waited for data; None if no
            batch ran in both ways.
        captured_ms: time of the same steps as graphs.
        captured_busy_ms: time in which the device was busy in them.
        refusal: why steps cannot be captured; None if they can.
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
        bottleneck: the device, or the largest part of a late host's time; `none` on a CPU.
        captures: whether steps are launched as graphs from here on.
        reason: why, with the numbers.
        workers_needed: processes that would make batches fast enough; None if data is not the
            bottleneck, or if the present number is unknown.
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
    """Return the diagnosis of a loop in which no step follows another: one batch an epoch."""
    return Diagnosis(
        bottleneck="none",
        captures=False,
        reason=(
            f"an epoch ended after each of {num_steps} steps, so there is no time between steps "
            "to measure; runs as gapless"
        ),
    )


def _idle_share(samples: Sequence[Sample]) -> float:
    total_ms = sum(sample.period_ms for sample in samples)
    idle_ms = sum(sample.period_ms for sample in samples if sample.launch.found_idle)
    return idle_ms / total_ms if total_ms else 0.0


def _typical(samples: Sequence[Sample]) -> Sequence[Sample]:
    # Not a median of the waits: a loader with workers makes few steps wait, but those for long.
    limit = _OUTLIER * median(sample.launch.host_ms for sample in samples)
    return [sample for sample in samples if sample.launch.waits or sample.launch.host_ms <= limit]


def trial_of(eager: Sequence[Sample], replays: Sequence[Sample]) -> Trial:
    """Compare eager steps and replays, on the signatures that ran as both.

    Each signature counts by its median, and as often as it came. Waiting for data is left out: it is
    the loader's time, and varies more than a graph can gain.
    """
    times: dict[Hashable, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for sample in (*eager, *replays):
        times[sample.launch.key][sample.launch.ran_as == "replay"].append(sample.own_ms)
    both = [pair for pair in times.values() if all(pair)]
    if not both:
        return Trial()
    weights = [len(first) + len(second) for first, second in both]
    means = [
        sum(weight * median(pair[is_replay]) for weight, pair in zip(weights, both, strict=True))
        / sum(weights)
        for is_replay in (False, True)
    ]
    return Trial(
        eager_ms=means[0],
        captured_ms=means[1],
        captured_busy_ms=median(sample.busy_ms for sample in replays),
    )


def diagnose(readings: Readings, trial: Trial) -> Diagnosis:
    """Name the bottleneck of eager steps, and choose how steps run from here on."""
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
    """Return what everything else waits for."""
    is_busy = readings.busy_ms >= _BUSY_SHARE * readings.step_ms
    if readings.idle_share <= _LATE_SHARE:
        lost_ms = readings.step_ms - readings.busy_ms
        is_loaders = readings.data_wait_ms >= _LOADERS_SHARE * lost_ms
        return "data" if is_loaders and not is_busy else "device"
    between_ms = readings.step_ms - readings.host_ms - readings.data_wait_ms
    # How long the wait inside the step lasts is unknown, but with it the host cannot run ahead.
    inside: Bottleneck = "host wait" if readings.waits else "launch"
    parts: dict[Bottleneck, float] = {
        inside: readings.host_ms,
        "data": readings.data_wait_ms,
        "host code": between_ms,
    }
    largest = max(parts, key=lambda name: parts[name])
    return "device" if is_busy and largest in ("data", "host code") else largest


def workers_needed(readings: Readings, trial: Trial) -> int | None:
    """Return how many processes make batches as fast as steps take them; None if unknown.

    Without workers, the host waits for as long as making a batch takes. With N workers, each one
    makes a batch in the time of N steps.
    """
    if readings.num_workers is None:
        return None
    making_ms = readings.num_workers * readings.step_ms or readings.data_wait_ms
    return max(readings.num_workers + 1, ceil(making_ms / _without_data_ms(readings, trial)))


def _without_data_ms(readings: Readings, trial: Trial) -> float:
    """Return the time of a step if every batch were there in time."""
    if trial.pays and trial.captured_ms is not None:
        # The host's time to launch it may be longer than the device's time to run it.
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
        without_wait_ms = max(readings.busy_ms, readings.step_ms - readings.data_wait_ms)
        times = readings.step_ms / max(without_wait_ms, 1e-3)
        return f"the loader has to be {times:.1f} times as fast"
    one = "1 worker" if needed == 1 else f"{needed} workers"
    if readings.num_cores is None or needed <= readings.num_cores:
        return f"use {one} instead of {readings.num_workers}"
    return (
        f"{one} would be needed instead of {readings.num_workers}, on {readings.num_cores} cores; "
        "make batches cheaper, or before the run"
    )


def _done(bottleneck: Bottleneck, trial: Trial) -> str:
    rest = " without that wait" if bottleneck == "data" else ""
    if trial.pays:
        assert trial.captured_ms is not None
        return f"captured, {_ms(trial.captured_ms)} ms a step{rest}"
    if trial.captured_ms is not None and trial.eager_ms is not None:
        return (
            f"steps run eagerly, which takes {_ms(trial.eager_ms)} ms{rest}, and captured "
            f"{_ms(trial.captured_ms)}"
        )
    if bottleneck == "device":
        return "no plan will make it faster"
    if bottleneck == "host wait":
        return "a step that waits cannot be captured"
    if trial.refusal is not None:
        return f"steps run eagerly, because they cannot be captured: {trial.refusal}"
    return "steps run eagerly, because shapes of batches hardly repeat"


def _ms(value: float) -> str:
    return f"{value:.1f}" if value >= 1.0 else f"{value:.2f}"


def _times(count: float) -> str:
    return "once a step" if round(count, 1) == 1.0 else f"{count:.1f} times a step"


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast a stretch of steps ran.

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
        """Whether the time of a step, or its wait for data, has changed by much."""
        limit = _CHANGE_SHARE * since.step_ms
        return (
            abs(self.step_ms - since.step_ms) > limit
            or abs(self.data_wait_ms - since.data_wait_ms) > limit
        )
