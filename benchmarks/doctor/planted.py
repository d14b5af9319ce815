"""Single waits of a known size: what the doctor reports, and what leaving them out saves."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.doctor.commands import PLANTED, in_turns, run_doctor
from benchmarks.doctor.side_by_side import side_by_side
from benchmarks.doctor.verdicts import (
    is_near,
    lines_that_wait,
    of_lines,
    saved_share,
    share_of,
    step_ms,
)


if TYPE_CHECKING:
    from collections.abc import Iterator
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
    return side_by_side(chosen, lambda name: _measured(name, options), options)


def _measured(name: str, options: Options) -> dict[str, Any]:
    loop, share = name.split()
    script, exposed = PLANTED / f"{loop}.py", float(share)
    arguments = (*_size(exposed, options), "--num-steps", "12" if options.is_small else "25")
    both = in_turns(
        [(script, arguments), (script, (*arguments, "--without-wait"))], rounds=options.rounds
    )
    return {"planted": exposed, **_found(script, exposed, *both, options)}


def _size(exposed: float, options: Options) -> tuple[str, ...]:
    return ("--exposed", str(exposed), "--device-ms", "1" if options.is_small else "6")


def _found(
    script: Path,
    exposed: float,
    with_wait: list[float],
    without: list[float],
    options: Options,
) -> dict[str, Any]:
    size = _size(exposed, options)
    session = run_doctor(script, [*size, "--num-steps", "12" if options.is_small else "72"])
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
