"""The verdict of a diagnosis: what holds a script back, in a word and a plain sentence. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gapless.doctor.advice.causes import CODE_OF


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gapless.records.finding import Finding

# From here on there is little idle time that could be won.
_BUSY_SHARE = 0.90

# Gains below this share of the step are noise.
_LEAST_SHARE = 0.02

# Without an accelerator the processor is what a step waits for, unless batches take this share of it.
_LOADERS_SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What the verdict rests on. Times are milliseconds a step.

    Attributes:
        has_device: whether the script uses an accelerator.
        step_ms: of a step; None where none was timed.
        busy_share: share of the step in which the device has work; None where not measured.
        idle_ms: of the device, by cause; "held" is what the device makes work wait that was queued in time, if long.
        all_waits_ms: that a step is predicted to become shorter by without all its waits.
        num_launches: a step.
        data_ms: in which batches are made, or waited for.
        has_loader: whether a loader of torch was seen.
        num_would_wait: lines of the step that would surely wait on a GPU, where none is used.
    """

    has_device: bool
    step_ms: float | None = None
    busy_share: float | None = None
    idle_ms: Mapping[str, float] = field(default_factory=dict)
    all_waits_ms: float = 0.0
    num_launches: float = 0.0
    data_ms: float = 0.0
    has_loader: bool = False
    num_would_wait: int = 0


def verdict_of(figures: Figures, findings: Sequence[Finding]) -> str:
    """Return one sentence: what holds the script back, and whether mending the findings helps."""
    if figures.step_ms is None:
        return "No step was seen, so nothing can be said of the script's speed."
    if figures.busy_share is None:
        return _without_times(figures, findings)
    if figures.busy_share >= _BUSY_SHARE:
        begins = "removing these waits will not help" if findings else "there is little to gain"
        busy = _percent(figures.busy_share)
        return f"DEVICE-BOUND: {begins}: the device is busy {busy} of the time."
    return _of_largest(figures)


def _without_times(figures: Figures, findings: Sequence[Finding]) -> str:
    step, data_ms = figures.step_ms or 0.0, figures.data_ms
    share = min(1.0, data_ms / step) if step else 0.0
    # What is too little for a finding is too little for the verdict.
    late = [finding for finding in findings if finding.code == CODE_OF["loader"]]
    is_waited_for = any(finding.waited_ms and finding.thread == "main" for finding in late)
    if is_waited_for and (figures.has_device or share >= _LOADERS_SHARE):
        begins = (
            f"LOADER-BOUND: batches take {_ms(data_ms)} of {_ms(step)} a step in which the script does "
            "nothing else"
        )
        return f"{begins}{_would_wait(figures, '; on a GPU')}."
    if figures.has_device:
        if findings:
            return (
                "HOST WAITS: the lines below make the host wait; without the profiler nobody knows how much "
                "of that the device was idle."
            )
        return "DEVICE-BOUND, as far as is known: no wait was seen."
    loader = "the loader keeps up" if figures.has_loader else "no loader was seen"
    if late:
        loader = (
            "the script waits for them" if is_waited_for else "a loader of another thread is late"
        )
    batches = f"batches take {_percent(share)} of a step, and {loader}"
    if figures.num_would_wait:
        return f"HOST WAITS{_would_wait(figures, ': on a GPU')}; on this CPU {batches}."
    return f"CPU-BOUND: no accelerator was used, so there is no wait for one; {batches}."


def _would_wait(figures: Figures, begins: str) -> str:
    number = figures.num_would_wait
    if not number:
        return ""
    return f"{begins} {number} line{'' if number == 1 else 's'} would surely wait in each step"


def _of_largest(figures: Figures) -> str:
    step = figures.step_ms or 0.0
    idle = 1.0 - (figures.busy_share or 0.0)
    causes = {cause: figures.idle_ms.get(cause, 0.0) for cause in _SENTENCES}
    causes["waits"] = figures.all_waits_ms
    largest = max(causes, key=lambda cause: causes[cause])
    begins = f"{_WORDS[largest]}: the device is idle {_percent(idle)} of the time"
    if causes[largest] < _LEAST_SHARE * step:
        return f"{begins}, and no single cause of it stands out."
    words = {
        "idle": _ms(causes[largest]),
        "data": _ms(figures.data_ms),
        "gain": _ms(figures.all_waits_ms),
        "step": _ms(step),
        "rest": _ms(step - figures.all_waits_ms),
        "launches": f"{figures.num_launches:,.0f}",
    }
    sentence = _SENTENCES[largest].format(**words)
    if largest == "held":  # idle as far as this process knows: it would contradict the word
        return f"{_WORDS[largest]}: {sentence}"
    return f"{begins}: {sentence}"


_WORDS = {
    "loader": "LOADER-BOUND",
    "launch": "LAUNCH-BOUND",
    "host code": "LAUNCH-BOUND",
    "device": "LAUNCH-BOUND",
    "held": "DEVICE-BOUND",
    "gc": "HOST WAITS",
    "allocation": "HOST WAITS",
    "collective": "STRAGGLER",
    "waits": "HOST WAITS",
}

_SENTENCES = {
    "loader": "it waits for batches, which take {data} of the {step} that a step takes, so the loader comes "
    "first.",
    "launch": "the host needs longer to queue the {launches} launches of a step than the device to do "
    "them, so removing waits gains at most {gain} of {step}; capturing the step may gain more.",
    "host code": "the host's own code between launches takes {idle} of the {step} that a step takes; "
    "no wait is to blame for it.",
    "device": "it pauses between short pieces of work, which the host queues in time, for {idle} of the {step} "
    "that a step takes; fewer and longer ones, as of torch.compile, gain that.",
    "held": "something else has the device, such as another process: work that was queued in time waits for "
    "it for {idle} of the {step} that a step takes.",
    "gc": "Python's garbage collector takes {idle} of the {step} that a step takes; collect more seldom.",
    "allocation": "the driver takes {idle} of the {step} that a step takes to allocate memory, which it "
    "should do in the first steps alone.",
    "collective": "it waits for other processes for {idle} of the {step} that a step takes.",
    "waits": "without all waits a step is predicted to take {rest} and not {step}.",
}


def _percent(share: float) -> str:
    return f"{int(100.0 * share)} %"


def _ms(ms: float) -> str:
    return f"{ms:.1f} ms" if ms >= 1.0 else f"{ms:.2f} ms"
