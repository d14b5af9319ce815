"""How a function, a module or an optimizer is captured, and how the user is told why not."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gapless.errors import CaptureRefused, CaptureWarning, UserError
from gapless.graphs.callee import Callee
from gapless.graphs.captured_step import CapturedStep
from gapless.graphs.graph_limits import GraphLimits
from gapless.graphs.ranks.calls_of_ranks import CallsOfRanks
from gapless.graphs.reads.code_kinds import OWN_FOLDER, TORCH_FOLDER
from gapless.graphs.refusal import Refusal
from gapless.pipeline.host_waits import HostWaits


if TYPE_CHECKING:
    from gapless.device.base import Device
    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.side_stream import SideStream
    from gapless.records.wait_stats import WaitStats


# Schedulers and modules call what is captured in place.
_NOT_THE_USERS = (OWN_FOLDER, TORCH_FOLDER)


_AT_LEAST_TWO = "at least 2: the first run makes the optimizer's state, the second shows whether the step makes it anew"


@dataclass(frozen=True, kw_only=True)
class CaptureSettings:
    """How something is captured.

    Attributes:
        is_off: whether everything runs as written, by the environment.
        is_told: whether warnings say what is not captured; if not, reports alone do.
        gives_way: whether parts of a module are captured where the whole cannot be.
        others: as of `gapless.capture`.
    """

    device: Device
    is_off: bool
    num_warmup: int = 2
    max_graphs: int = 100
    on_refusal: Literal["eager", "raise"] = "eager"
    wait_stats: WaitStats | None = None
    steps_per_launch: int | None = None
    audit_every: int | None = None
    compile: bool | Literal["dynamic"] = False
    is_told: bool = True
    gives_way: bool = True

    def __post_init__(self) -> None:
        per_launch, every = self.steps_per_launch, self.audit_every
        for is_fine, name, expected in (
            (self.num_warmup >= 2, "num_warmup", _AT_LEAST_TWO),
            (self.max_graphs >= 1, "max_graphs", "at least 1"),
            (self.on_refusal in ("eager", "raise"), "on_refusal", "'eager' or 'raise'"),
            (per_launch is None or per_launch >= 1, "steps_per_launch", "at least 1"),
            (self.compile in (False, True, "dynamic"), "compile", "True, False or 'dynamic'"),
            (every is None or every >= 1, "audit_every", "at least 1, or None"),
        ):
            if not is_fine:
                raise UserError(f"`{name}` is {getattr(self, name)!r}, expected {expected}")

    def limits(self) -> GraphLimits:
        """Return new limits for all graphs of one object."""
        return GraphLimits(self.device, max_graphs=self.max_graphs)

    def wrap(
        self,
        step: Any,
        side: SideStream,
        *,
        limits: GraphLimits,
        **others: Any,
    ) -> CapturedStep:
        """Return a step that can be captured; the other arguments are those of `Callee`."""
        return CapturedStep(
            Callee(
                step, device=self.device, host_waits=self.new_host_waits(), side=side, **others
            ),
            num_warmup=self.num_warmup,
            limits=limits,
            audit_every=self.audit_every,
        )

    def new_host_waits(self) -> HostWaits:
        """Return a door for waits, which counts them where the user has asked for it."""
        return HostWaits(self.device, wait_stats=self.wait_stats)

    def new_consent(self) -> CallsOfRanks:
        """Return what asks the ranks of a user's own loop, if a step talks to them."""
        return CallsOfRanks(self.new_host_waits(), audit_every=self.audit_every)

    def forbid(
        self, report: CaptureReport, objection: Refusal | None = None, name: str = ""
    ) -> bool:
        """Say so in a report, and return True, if nothing is ever captured.

        Args:
            report: of what is not captured.
            objection: why it is not, whatever the settings; None if it may be. The user is told.
            name: of it.

        Raises:
            CaptureRefused: `on_refusal` is "raise", and there is an objection.
        """
        if self.is_off:
            text = "GAPLESS_CAPTURE=off in the environment: everything runs as written"
            report.refuse(Refusal("off", text))
        elif not self.device.is_accelerator:
            report.refuse(Refusal("cpu", "a CPU runs its work itself, there is nothing to launch"))
        elif objection is not None:
            self.refuse(report, objection, name)
        return bool(report.refusals)

    def refuse(self, report: CaptureReport, refusal: Refusal, name: str) -> None:
        """Add a reason to a report, and tell the user: see `tell`."""
        report.refuse(refusal)
        self.tell(report, name)

    def tell(self, report: CaptureReport, name: str) -> None:
        """Say once of each reason why not all is captured, at the line of the user's call.

        Args:
            report: with the reasons.
            name: of what is not captured.

        Raises:
            CaptureRefused: `on_refusal` is "raise", and there is a reason.
        """
        if not self.is_told:
            return
        found = [refusal for refusal in report.refusals if refusal.is_for_the_user]
        if found and self.on_refusal == "raise":
            text = "; ".join([refusal.text for refusal in found])
            raise CaptureRefused(f"<captured {name}> is not captured: {text}", kind=found[0].kind)
        for text in report.audits.untold():
            warn(f"{name}: {text}")
        more = f"; {text}" if (text := report.untold_parts()) else ""
        for text in report.untold():
            is_left_out = report.forbids_all or not report.num_graphs
            what = (
                f"{name} is not captured"
                if is_left_out
                else f"some calls of {name} run as written"
            )
            warn(f"{what}: {text}{more}")
            more = ""
        if more:
            warn(f"{name} is not captured as a whole{more}")


def warn(text: str) -> None:
    """Give a `CaptureWarning` at the line of the user's call."""
    warnings.warn(CaptureWarning(text), stacklevel=_level_of_user())


def _level_of_user() -> int:
    """Return the `stacklevel`, for whoever calls this, of the first line that is not ours or torch's."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        level, frame = level + 1, frame.f_back
    return level
