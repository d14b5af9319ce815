"""Single waits of a known size: what the doctor reports, and what leaving them out saves."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.doctor.commands import PLANTED, in_turns, ms_of, run_doctor
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
    from collections.abc import Callable, Iterator
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
    # As much for all of them: each would measure the device for itself, at another clock.
    size = _size(0.0, options)
    ((said,),) = in_turns([(PLANTED / "item.py", (*size, "--num-steps", "2"))], rounds=1)
    size_of = partial(_size, options=options, products=said["products"])
    return side_by_side(chosen, lambda name: _measured(name, size_of, options), options)


def _measured(
    name: str, size_of: Callable[[float], tuple[str, ...]], options: Options
) -> dict[str, Any]:
    loop, share = name.split()
    script, exposed = PLANTED / f"{loop}.py", float(share)
    arguments = (*size_of(exposed), "--num-steps", "12" if options.is_small else "25")
    # Each run of them warms up by itself.
    commands = [(script, arguments), (script, (*arguments, "--without-wait"))]
    both = in_turns(commands, rounds=options.rounds, uncounted=0)
    session = run_doctor(
        script, [*size_of(exposed), "--num-steps", "12" if options.is_small else "72"]
    )
    queue_ms = [median(said["queue_ms"] for said in turns) for turns in both]
    return {
        "planted": exposed,
        **_found(script, session, *map(ms_of, both)),
        "queue_ms": queue_ms,
    }


def _size(exposed: float, options: Options, products: int | None = None) -> tuple[str, ...]:
    size = ("--exposed", str(exposed), "--device-ms", "1" if options.is_small else "6")
    return size if products is None else (*size, "--products", str(products))


def _found(
    script: Path, session: dict[str, Any], with_wait: list[float], without: list[float]
) -> dict[str, Any]:
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
