"""What a captured step is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from gapless.device.base import Device
    from gapless.graphs.audit import Audits
    from gapless.graphs.audited_calls import AuditedCalls
    from gapless.graphs.callee import Callee
    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.entries import Entries
    from gapless.graphs.fast_path import FastPath
    from gapless.graphs.graph_learning import Learning
    from gapless.pipeline.host_waits import HostWaits


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one captured step, for those who run its calls otherwise than alone.

    Attributes:
        callee: what is captured.
        device: where it runs.
        host_waits: the door for waits.
        report: of it.
        entries: its kinds of calls.
        learning: runs calls as written, and captures them.
        audits: say when graphs are audited.
        audited: audits them.
        fast_path: what the next call tries first.
    """

    callee: Callee
    device: Device
    host_waits: HostWaits
    report: CaptureReport
    entries: Entries
    learning: Learning
    audits: Audits
    audited: AuditedCalls
    fast_path: FastPath
