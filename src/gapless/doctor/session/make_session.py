"""Make a session of what was watched: hand the windows to the diagnosis, and put what it finds together."""

from __future__ import annotations

import ast
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from gapless import __version__
from gapless.doctor.diagnose.diagnosis import diagnose
from gapless.doctor.diagnose.done_once import say_done_once, split_done_once
from gapless.doctor.diagnose.watched_run import WatchedRun, host_ms
from gapless.doctor.static.look import look_at, read_program
from gapless.doctor.watching.windows import Phase, longest
from gapless.records.finding import Session, by_part


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.doctor.advice.own_mends import Places
    from gapless.doctor.watching.watch import Watch
    from gapless.doctor.watching.windows import SeenWindow
    from gapless.records.finding import Finding, Part

_TRAINED_ON = (
    "Variants were measured in windows of this run, in turns with the script as written: it trained on in "
    "all of them, and what it wrote is that of such a run."
)


def make_session(watch: Watch, *, command: Sequence[str]) -> Session:
    """Return the session of a watch that is over.

    Args:
        watch: of the script.
        command: the script and its arguments.
    """
    session = Session(command=tuple(command), device="cpu", versions=_versions())
    if not watch.has_torch:
        verdict = "The script did not import torch, so there was nothing to watch."
        return replace(session, verdict=verdict, notes=tuple(_problem(watch)))
    from gapless.device.torch_gpu import name_of_device

    looked: tuple[Finding, ...] = ()
    if not watch.has_gpu:
        # For many files the look starts processes, which a program at its end must not.
        looked = look_at(_files_that_ran(), may_share=False).findings
    found = diagnose(_watched_run(watch, looked))
    findings, notes = found.findings, list(found.notes)
    trials = watch.variant_trials.trials if watch.variant_trials is not None else ()
    if any(trial.baseline is not None for trial in trials):
        notes.append(_TRAINED_ON)
    notes += _not_tried(watch)
    if not watch.has_gpu:
        notes.append(
            "No GPU was used, so nothing was measured on one. What is said to be surely or maybe a "
            "wait is from the syntax of the files that were run."
        )
        findings = tuple(by_part([*findings, *looked]))
    return replace(
        session,
        device=name_of_device(),
        step=str(watch.source.chosen or ("a second" if watch.seen_seconds else "")),
        steps=found.steps,
        findings=findings,
        verdict=found.verdict,
        notes=tuple(notes),
        trials=trials,
        timeline=found.timeline,
    )


def _not_tried(watch: Watch) -> list[str]:
    """Return why variants that were asked for were not tried."""
    if not watch.wants_variants:
        return []
    if watch.variant_trials is None:
        return ["No variant was tried: the script ended before the windows were over."]
    if not watch.has_gpu and not watch.variant_trials.trials:
        return ["No variant was tried: no GPU was used."]
    return [f"Not tried: {name}; it mends nothing that was found." for name in watch.not_tried]


def findings_so_far(watch: Watch) -> tuple[Finding, ...]:
    """Return what has been found in the windows that are over."""
    return diagnose(_watched_run(watch)).findings


def _watched_run(watch: Watch, looked: Sequence[Finding] = ()) -> WatchedRun:
    """Return what a diagnosis is made of."""
    notes = _problem(watch) + _shortage(watch)
    for phase in get_args(Phase):
        notes += _notes_of(_window(watch, phase))
    plain = _window(watch, "plain") or _window(watch, "rest")
    sites = _window(watch, "sites") or watch.seen_seconds
    times = _window(watch, "times")
    backward = _window(watch, "backward")
    shapes = _of(sites, "shapes", None)
    seen = _of(sites, "waits", ())
    if sites is not None and sites is watch.seen_seconds:
        seen, once = split_done_once(seen, watched_ns=sum(sites.step_ns))
        notes += [say_done_once(once)] if once else []
    parts, places = _program() if seen else ({}, {})
    return WatchedRun(
        has_device=watch.has_gpu,
        step_ms=tuple(ns / 1e6 for ns in plain.step_ns) if plain else (),
        seen=tuple(seen),
        num_seen_steps=sites.num_steps if sites else 0,
        host_ms=host_ms([ns / 1e6 for ns in sites.step_ns], seen) if sites else None,
        step_parts=_of(_window(watch, "parts"), "parts", None),
        timed=tuple(_of(times, "waits", ())),
        trace=_of(times, "trace", None),
        forward_lines=_of(backward, "lines", {}),
        recompilations=_of(times, "recompilations", 0),
        num_shapes_steps=_of(times, "num_steps", 0),
        num_batches=0 if shapes is None else shapes.num_batches,
        num_batch_shapes=0 if shapes is None else shapes.num_shapes,
        num_would_wait=len(
            {
                one.site
                for one in looked
                if one.certainty == "surely" and one.part in ("step", "called")
            }
        ),
        parts=parts,
        places=places,
        notes=tuple(dict.fromkeys(notes)),
    )


def _program() -> tuple[dict[tuple[str, int], Part], dict[str, Places]]:
    """Return the parts of lines that were run, and what is around them.

    What waits in a step is not set up there.
    """
    parts, places = read_program(_files_that_ran())
    return {line: "called" if part == "set-up" else part for line, part in parts.items()}, places


def _window(watch: Watch, phase: Phase) -> SeenWindow | None:
    return longest(watch.seen, phase)


def _of(seen: SeenWindow | None, name: str, default: Any) -> Any:
    """Return an attribute of the pass of a window that has one."""
    passes = seen.passes if seen else ()
    return next((getattr(one, name) for one in passes if hasattr(one, name)), default)


def _notes_of(seen: SeenWindow | None) -> list[str]:
    return [note for one in (seen.passes if seen else ()) for note in getattr(one, "notes", ())]


def _problem(watch: Watch) -> list[str]:
    if not watch.problem:
        return []
    return [f"The doctor itself failed, and watched nothing from then on: {watch.problem}"]


def _shortage(watch: Watch) -> list[str]:
    """Return what there was too little of."""
    if watch.source.chosen is None:
        asked = watch.source.asked
        missing = _MISSING.get(asked) or _no_function(asked) or f"{asked} was not called"
        note = (
            f"No step was seen: {missing}. `gapless.doctor.step()` in the loop or `gapless doctor --step NAME` "
            "says what a step is."
        )
        seconds = [] if watch.seen_seconds is None else [_SECONDS]
        return [note, *seconds, *([_CHILDREN] if _has_started_processes() else [])]
    if watch.is_complete or watch.problem:
        return []
    num_steps = sum(one.num_steps for one in watch.seen)
    return [
        f"The script ended after {num_steps} steps, before all windows were over, so that the figures "
        "are less certain; `gapless doctor --warm-up 2` begins to watch earlier."
    ]


def _no_function(asked: str) -> str:
    """Return that the script has no function of this name, and which it has; empty if it has, or may have."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if not asked.isidentifier() or hasattr(main, asked) or file is None:
        return ""
    try:
        body = ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return ""
    # A script that failed has not defined what comes later.
    names = [one.name for one in body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
    if asked in names:
        return ""
    there = f"it has {', '.join(names)}" if names else "it has none"
    return f"{Path(file).name} has no function {asked}; {there}"


def _has_started_processes() -> bool:
    return any(f"multiprocessing.popen_{how}" in sys.modules for how in _WAYS_TO_START)


_WAYS_TO_START = ("fork", "spawn_posix", "forkserver")

_CHILDREN = "Processes that the script starts by itself are not watched; those of torchrun are."

_SECONDS = "Each second that was watched stands for a step, and the profiler did not run."

_MISSING = {
    "auto": "no optimizer and no loader was used",
    "optimizer": "no optimizer was called",
    "loader": "no loader was used",
}


def _files_that_ran() -> list[Path]:
    from gapless.device.user_line import UserCode, module_that_runs  # which loads torch

    return list(UserCode(module_that_runs()).files())


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "gapless": __version__}
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["torch"] = str(getattr(torch, "__version__", ""))
        if cuda := getattr(getattr(torch, "version", None), "cuda", None):
            versions["cuda"] = str(cuda)
    return versions
