"""Say what was seen of a script: from the windows that were watched to a session."""

from __future__ import annotations

import platform
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gapless import __version__
from gapless.doctor.phases import longest
from gapless.doctor.script_files import files_of_the_script
from gapless.records.comparison import Spread
from gapless.records.finding import Finding, Session, StepTimes


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.doctor.phases import Seen
    from gapless.doctor.watching import Watch


# The device, or on a machine without one the step, waits this share of a step for the loader before
# the loader is told of.
_SHARE_OF_LOADER = 0.05


def conclude(watch: Watch, *, command: Sequence[str]) -> Session:
    """Return the session of a watch that is over.

    Args:
        watch: of the script.
        command: the script and its arguments.
    """
    notes = _notes(watch)
    steps = _step_times(watch)
    findings: list[Finding] = []
    verdict = ""
    if watch.has_torch and not watch.has_gpu:
        notes.append(
            "No GPU was used, so nothing was measured on one; lines that would wait for a GPU are "
            "from the look of the files that were run."
        )
        findings += _loader_findings(watch, steps)
        findings += _static_findings(notes)
    return Session(
        command=tuple(command),
        device=_device(watch),
        versions=_versions(),
        step=str(watch.source.chosen) if watch.source.chosen is not None else "",
        steps=steps,
        findings=tuple(findings),
        verdict=verdict or _verdict(watch, findings),
        notes=tuple(notes),
    )


def _notes(watch: Watch) -> list[str]:
    notes = []
    if watch.problem:
        notes.append(
            f"The doctor itself failed, and nothing was watched from then on: {watch.problem}"
        )
    if not watch.has_torch:
        notes.append("The script did not import torch.")
        return notes
    asked = watch.source.asked
    if watch.source.chosen is None:
        what = {
            "auto": "no optimizer and no loader was",
            "optimizer": "no optimizer was",
            "loader": "no loader was",
        }
        was = what.get(asked, f"{asked} was not")
        notes.append(
            f"No step was seen: {was} called; --step or gapless.doctor.step() says what one is."
        )
        return notes
    plain = longest(watch.seen, "plain")
    if plain is None or plain.num_steps < watch.planned_steps:
        num_steps = sum(one.num_steps for one in watch.seen)
        notes.append(
            f"The script ended after {num_steps} steps, before all windows were over; a smaller "
            "--warm-up and fewer --steps fit."
        )
    return notes


def _step_times(watch: Watch) -> StepTimes | None:
    """Return times of steps in which nothing was watched but the clock."""
    window = longest(watch.seen, "plain") or longest(watch.seen, "rest")
    if window is None:
        return None
    return StepTimes(
        num_steps=window.num_steps,
        wall_ms=Spread.of([ns / 1e6 for ns in window.step_ns]),
        data_ms=_data_ms(watch, window),
    )


def _data_ms(watch: Watch, window: Seen) -> float:
    """Return how long a step of a window waited for the loader."""
    waited = sum(
        ended - began
        for began, ended in watch.batches
        if window.start_ns <= began and ended <= window.end_ns
    )
    return waited / 1e6 / window.num_steps


def _loader_findings(watch: Watch, steps: StepTimes | None) -> list[Finding]:
    from gapless.doctor.causes import CODE_OF
    from gapless.doctor.codes import cause_text, mend_text

    if steps is None or not steps.data_ms:
        return []
    share = steps.data_ms * steps.num_steps / max(1e-9, sum(steps.wall_ms.rounds))
    if share < _SHARE_OF_LOADER:
        return []
    return [
        Finding(
            code=CODE_OF["loader"],
            site=None,
            call="DataLoader.__next__",
            per_step=1.0,
            waited_ms=steps.data_ms,
            share=None,
            cause=cause_text("loader", "DataLoader.__next__"),
            mend=mend_text("loader", "DataLoader.__next__"),
        )
    ]


def _static_findings(notes: list[str]) -> list[Finding]:
    try:
        look: Any = import_module("gapless.doctor.static.look")
    except ImportError:
        return []
    return list(look.findings_in(files_of_the_script()))


def _device(watch: Watch) -> str:
    if not watch.has_torch:
        return "cpu"
    from gapless.device.in_use import name_of_device

    return name_of_device()


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "gapless": __version__}
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["torch"] = str(getattr(torch, "__version__", ""))
    return versions


def _verdict(watch: Watch, findings: Sequence[Finding]) -> str:
    if not watch.has_torch:
        return "Nothing to say: the script did not use torch."
    if not findings:
        return "Nothing was found that holds this script back."
    return "Nothing was measured on a GPU."
