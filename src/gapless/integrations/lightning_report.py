"""What became of the steps of a fit of Lightning: one report for the module, one for its optimizer.

`gapless.capture_report(module)` returns the module's, in the fit and after it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from gapless.graphs.captor import captor_of, left_out, set_captor
from gapless.graphs.capture_report import CaptureReport


if TYPE_CHECKING:
    from collections.abc import Sequence


class FitReports:
    """Keeps what is known of the captures of a module or an optimizer in all its fits.

    It stands where a captor stands that captures an object in place, and captures nothing itself.

    Args:
        target: the module or the optimizer.

    Attributes:
        target: as given.
        settings: those of no captor: `gapless.capture` of the object takes its place.
        parts: reports of whatever ran for it.
    """

    def __init__(self, target: Any) -> None:
        self.target = target
        self.settings: Any = None
        self.parts: list[CaptureReport] = [CaptureReport()]

    @classmethod
    def of(cls, target: Any) -> FitReports:
        """Return those of an object, made at its first fit.

        An object that the user has captured in place has a report already, which stays there.
        """
        known: Any = captor_of(target)
        if isinstance(known, cls):
            return known
        found = cls(target)
        if known is None:
            found.place()
        return found

    @property
    def own(self) -> CaptureReport:
        """What no captured function has written: reasons of the trainer's, steps as written."""
        return self.parts[0]

    @property
    def report(self) -> CaptureReport:
        """What is captured, and what is not."""
        return merged(self.parts)

    def place(self) -> None:
        """Stand in the object, for whoever asks for its report."""
        set_captor(self.target, self)

    def attach(self) -> None:
        """Do nothing: calls of the object go where they went."""

    def detach(self) -> None:
        """Do nothing."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave reports out of copies and files of the object."""
        return left_out()


_ADDED_UP = frozenset(
    {
        "num_graphs",
        "num_replays",
        "num_quick",
        "num_eager",
        "seconds",
        "captured_bytes",
        "proved",
        "not_proved",
        "proof_seconds",
    }
)


def merged(reports: Sequence[CaptureReport]) -> CaptureReport:
    """Return one report that says what some say."""
    found = CaptureReport()
    for field in fields(CaptureReport):
        if field.name in _ADDED_UP:
            total = sum(getattr(report, field.name) for report in reports)
            setattr(found, field.name, total)
    for report in reports:
        for refusal in report.refusals:
            found.refuse(refusal)
        for change in report.changes:
            found.note_change(change)
        found.note_batch_reads(report.batch_reads)
        found.note_updates_as_written(report.updates_as_written)
        found.note = report.note or found.note
    return found
