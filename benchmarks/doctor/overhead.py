"""What watching costs a step of about 1,200 launches, and what remains of it afterwards.

The loop itself takes the time from step to step and looks whether it is watched: see
`loops/many_launches.py`. Nothing is asked of the doctor.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.doctor.commands import LOOPS, run, run_doctor
from benchmarks.doctor.verdicts import OVERHEAD, overhead_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.doctor.options import Options


WAITS = (0, 2, 50)
# Each is a run of its own, with a reference of its own.
ROUNDS = 3
WAYS = {"wrappers": (), "exact": ("--exact",)}


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield what was found for each number of waits a step and each way of watching."""
    chosen = options.chosen([f"{way} {waits}" for way in WAYS for waits in WAITS])
    for way, flags in WAYS.items():
        for waits in WAITS:
            if f"{way} {waits}" in chosen:
                found = _measure(waits, flags, options)
                # Only what watches by default has to keep the promise.
                if way == "exact":
                    found["is_right"] = None
                yield {"name": f"{way} {waits}", "waits": waits, **found}


def _measure(waits: int, flags: tuple[str, ...], options: Options) -> dict[str, Any]:
    rounds = 1 if options.is_small else ROUNDS
    alone = _alone(waits, options)
    watched, session = [], {}
    for _ in range(rounds):
        steps, session = _watched(waits, flags, options)
        watched.append(overhead_of(steps))
    found = {key: _median([one[key] for one in watched]) for key in watched[0]}
    sites = found["sites_overhead"]
    return {
        **found,
        "alone_ms": alone,
        "rounds": rounds,
        "launches": (session.get("steps") or {}).get("num_launches"),
        "notes": session.get("notes", []),
        "is_right": None if session["device"] == "cpu" or sites is None else sites <= OVERHEAD,
    }


def _arguments(waits: int, out: Path, options: Options) -> list[str]:
    size = ["--small"] if options.is_small else []
    return ["--waits", str(waits), "--out", str(out), *size]


def _alone(waits: int, options: Options) -> float:
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "steps.json"
        run([str(LOOPS / "many_launches.py"), *_arguments(waits, out, options)], limit_s=240)
        return median(ms for ms, _ in json.loads(out.read_text())[10:])


def _watched(
    waits: int, flags: tuple[str, ...], options: Options
) -> tuple[list[tuple[float, str]], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "steps.json"
        session = run_doctor(
            LOOPS / "many_launches.py", _arguments(waits, out, options), options=flags
        )
        return [(ms, phase) for ms, phase in json.loads(out.read_text())], session


def _median(values: list[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return median(measured) if measured else None
