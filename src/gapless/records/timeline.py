"""Who did what when: host threads and device streams over a stretch of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


# What a span is, which decides its colour: of a device, its work; of the host, what it did or waited for.
SpanKind = Literal[
    "kernel", "copy", "fill", "step", "data", "launch", "wait", "read", "host code", "capture"
]


@dataclass(frozen=True, kw_only=True)
class Span:
    """Something that took time.

    Attributes:
        name: shown to people, such as a kernel's name.
        kind: what it is.
        start_us: from the beginning of the timeline.
        end_us: likewise, not before the start.
        finding: place in the session's findings of what it belongs to; None if to none.
    """

    name: str
    kind: SpanKind
    start_us: float
    end_us: float
    finding: int | None = None


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One host thread or one stream of a device.

    Attributes:
        name: for example "main thread" or "stream 7".
        is_device: whether it is a stream; else it is a thread of the host.
        spans: in order of their start.
    """

    name: str
    is_device: bool
    spans: tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Time in which no stream of the device had work.

    Attributes:
        start_us: from the beginning of the timeline.
        end_us: likewise.
        cause: why, in a few words: "host wait", "data", "launch", "host code", "device".
        finding: place in the session's findings of what exposed it; None if none did.
    """

    start_us: float
    end_us: float
    cause: str
    finding: int | None = None


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A stretch of steps as it was measured.

    Attributes:
        title: shown above it, such as a plan's name; empty where it stands alone.
        lanes: threads of the host first, then streams.
        gaps: in order of time.
        step_starts_us: beginning of every step, from the beginning of the timeline.
        end_us: where the timeline ends.
    """

    title: str = ""
    lanes: tuple[Lane, ...]
    gaps: tuple[Gap, ...] = ()
    step_starts_us: tuple[float, ...] = ()
    end_us: float
