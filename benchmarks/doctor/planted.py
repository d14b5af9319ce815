"""Single waits of a known size: what the doctor reports, and what leaving them out saves."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.doctor.commands import PLANTED, Turns, ms_of
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
    with Turns() as process:
        # As much for all of them: each would measure the device for itself, at another clock.
        size = (*_size(0.0, options), "--num-steps", "2")
        (((said,),), _) = process.run([(PLANTED / "item.py", size)], rounds=1)
        for name in chosen:
            yield {"name": name, **_measured(process, name, said["products"], options)}


def _measured(process: Turns, name: str, products: int, options: Options) -> dict[str, Any]:
    loop, share = name.split()
    script, exposed = PLANTED / f"{loop}.py", float(share)
    size = (*_size(exposed, options), "--products", str(products), "--num-steps")
    few, many = ("12", "12") if options.is_small else ("25", "72")
    both, session = process.run(
        [(script, (*size, few)), (script, (*size, few, "--without-wait"))],
        rounds=options.rounds,
        uncounted=0,  # the process is warm, and so is each run
        doctor=[str(script), *size, many],
    )
    return {
        "planted": exposed,
        **_found(script, session, *map(ms_of, both)),
        "queue_ms": [median(said["queue_ms"] for said in turns) for turns in both],
    }


def _size(exposed: float, options: Options) -> tuple[str, ...]:
    return ("--exposed", str(exposed), "--device-ms", "1" if options.is_small else "6")


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
