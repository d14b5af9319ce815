"""Single waits of a known size: what the doctor reports, and what leaving them out saves."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.doctor.commands import PLANTED, Command, in_turns, run_doctor
from benchmarks.doctor.verdicts import (
    is_near,
    lines_that_wait,
    of_lines,
    saved_share,
    share_of,
    step_ms,
)


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.doctor.options import Options


EXPOSED = (0.0, 0.1, 0.3, 0.6)


def names() -> list[str]:
    """Return the loops with one planted wait."""
    return sorted(path.stem for path in PLANTED.glob("*.py") if not path.name.startswith("_"))


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield what was found of each loop at each share of the step that is exposed."""
    of_all = EXPOSED[-2:] if options.is_small else EXPOSED
    chosen = options.chosen([f"{name} {exposed:g}" for name in names() for exposed in of_all])
    for name in names():
        shares = [exposed for exposed in of_all if f"{name} {exposed:g}" in chosen]
        if not shares:
            continue
        times = _times(PLANTED / f"{name}.py", shares, options)
        for exposed, with_wait, without in zip(shares, times[::2], times[1::2], strict=True):
            found = _found(PLANTED / f"{name}.py", exposed, with_wait, without, options)
            yield {"name": f"{name} {exposed:g}", "planted": exposed, **found}


def _times(script: Path, shares: Sequence[float], options: Options) -> list[list[float]]:
    """Return the ms a step with the wait and without it, for each share, all in turns."""
    steps = ("--num-steps", "12" if options.is_small else "40")
    commands: list[Command] = []
    for exposed in shares:
        arguments = (*_size(exposed, options), *steps)
        commands += [(script, arguments), (script, (*arguments, "--without-wait"))]
    return in_turns(commands, rounds=options.rounds)


def _size(exposed: float, options: Options) -> tuple[str, ...]:
    return ("--exposed", str(exposed), "--device-ms", "1" if options.is_small else "10")


def _found(
    script: Path,
    exposed: float,
    with_wait: list[float],
    without: list[float],
    options: Options,
) -> dict[str, Any]:
    size = _size(exposed, options)
    session = run_doctor(script, [*size, "--num-steps", "12" if options.is_small else "100"])
    mine = of_lines(session, script, lines_that_wait(script.read_text(encoding="utf-8")))
    saved = saved_share(with_wait, without)
    exposed_share = share_of(session, mine, "exposed_ms")
    gain_share = share_of(session, mine, "gain_ms")
    reported = gain_share if gain_share is not None else exposed_share
    return {
        "with_wait_ms": with_wait,
        "without_wait_ms": without,
        "saved": saved,
        "exposed": exposed_share,
        "gain": gain_share,
        "doctor_step_ms": step_ms(session),
        "step_ms": median(with_wait),
        "is_found": bool(mine),
        # Without an accelerator nothing waits, so nothing can be said.
        "is_right": None if session["device"] == "cpu" else is_near(reported or 0.0, saved),
    }
