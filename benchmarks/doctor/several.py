"""Loops with several waits: what `--try` measures, and what the edited script gains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.doctor.commands import LOOPS, Turns, ms_of, run_doctor
from benchmarks.doctor.verdicts import OF_A_TRIAL, trial_gain


if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.doctor.options import Options


# A loop, the same edited by hand, and a word that names the trial which does that to the running loop.
EDITED = {
    "batches": ("slow_batches", "slow_batches_recorded", "batch"),
    "capture": ("many_layers", "many_layers_captured", "captur"),
}


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield what was found of each loop."""
    chosen = options.chosen(list(EDITED))
    with Turns() as process:
        for name in chosen:
            yield {"name": name, **_measured(process, name, options)}


def _measured(process: Turns, name: str, options: Options) -> dict[str, Any]:
    loop, edited, word = EDITED[name]
    scripts = [LOOPS / f"{which}.py" for which in (loop, edited)]
    size = ("--small",) if options.is_small else ()
    turns, _ = process.run([(script, size) for script in scripts], rounds=options.rounds)
    written, by_hand = map(ms_of, turns)
    session = run_doctor(
        scripts[0],
        [*size, "--num-steps", "40" if options.is_small else "900"],
        options=["--try"],
    )
    gains = sorted([before / after for before, after in zip(written, by_hand, strict=True)])
    measured = gains[len(gains) // 2]
    tried, why = trial_gain(session, word)
    return {
        "written_ms": written,
        "edited_ms": by_hand,
        "edited_gain": measured,
        "trial_gain": tried,
        "why_not": why,
        "trials": session.get("trials", []),
        "is_right": _is_right(tried, measured, session),
    }


def _is_right(tried: float | None, measured: float, session: dict[str, Any]) -> bool | None:
    if session["device"] == "cpu":
        return None
    return tried is not None and abs(tried / measured - 1.0) <= OF_A_TRIAL
