"""Published scripts: the doctor's first finding, the gain it predicts, and the gain of mending it."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.doctor.commands import LOOPS, run_doctor
from benchmarks.doctor.verdicts import step_ms
from benchmarks.launch_bound import worker
from benchmarks.launch_bound.race import (
    Entrant,
    Options as RaceOptions,
    VariantError,
)
from benchmarks.launch_bound.variants import (
    AS_WRITTEN,
    IN_PLACE,
    NAMES,
    PREFETCH,
    WHOLE_STEP,
    load,
)


if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.doctor.options import Options


# The variants that mend a kind of finding: of those that are timed, the fastest counts.
MENDS = {
    PREFETCH: {"GAP001", "GAP002", "GAP003", "GAP004", "GAP005", "GAP006", "GAP016"},
    IN_PLACE: {"GAP017"},
    WHOLE_STEP: {"GAP017"},
}
STEPS = 120
FIRST_EPOCHS = 2
SMALL_STEPS = 6


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield what was found of each script; as many are set up side by side as `at_once` says."""
    names = options.chosen(list(NAMES))
    for start in range(0, len(names), options.at_once):
        yield from _measure(names[start : start + options.at_once], options)


def _measure(names: list[str], options: Options) -> Iterator[dict[str, Any]]:
    found = {name: _diagnosis(name, options) for name in names}
    timed = _times({name: one["mended_by"] for name, one in found.items()}, options)
    for name, one in found.items():
        times = timed[name]
        written = times.get(AS_WRITTEN)
        gains = {
            variant: _gain(written, seconds)
            for variant, seconds in times.items()
            if variant != AS_WRITTEN and written
        }
        best = max(gains, key=lambda variant: gains[variant], default=None)
        yield {
            "name": name,
            **one,
            "seconds": times,
            "gains": gains,
            "mended": best,
            "gain": gains[best] if best else None,
            "is_right": None,
        }


def _gain(written: list[float], mended: list[float]) -> float:
    return median(before / after for before, after in zip(written, mended, strict=False))


def _diagnosis(name: str, options: Options) -> dict[str, Any]:
    size = ["--small"] if options.is_small else []
    arguments = [name, "--steps", str(SMALL_STEPS if options.is_small else STEPS), *size]
    session = run_doctor(LOOPS / "published_script.py", arguments)
    first = next(iter(session["findings"]), None)
    whole = step_ms(session)
    found: dict[str, Any] = {
        "verdict": session["verdict"],
        "step_ms": whole,
        "busy_share": _busy_share(session),
        "finding": None,
        "mended_by": [],
        "predicted": None,
    }
    if first is None:
        return found
    gain = first.get("gain_ms")
    gain = first.get("exposed_ms") if gain is None else gain
    site = first["site"]
    return found | {
        "finding": {
            key: first.get(key)
            for key in ("code", "call", "per_step", "exposed_ms", "gain_ms", "cause")
        },
        "at": f"{Path(site['path']).name}:{site['line']}" if site else "",
        "mended_by": [variant for variant, codes in MENDS.items() if first["code"] in codes],
        "predicted": whole / (whole - gain)
        if whole and gain is not None and gain < whole
        else None,
    }


def _busy_share(session: dict[str, Any]) -> float | None:
    steps = session.get("steps") or {}
    busy, idle = steps.get("busy_ms"), steps.get("idle_ms")
    return None if busy is None or idle is None else busy / max(1e-9, busy + idle)


def _times(variants: dict[str, list[str]], options: Options) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of the timed epochs of each script and variant."""
    race = RaceOptions(
        device=options.device,
        is_small=options.is_small,
        setup_limit=240.0,
        folder=options.folder,
    )
    entrants = {
        (name, variant): Entrant(
            worker.Work(
                name=name,
                variant=variant,
                device=options.device,
                steps=_steps(name, options),
                is_small=options.is_small,
            ),
            race,
        )
        for name, chosen in variants.items()
        if chosen
        for variant in [AS_WRITTEN, *chosen]
    }
    seconds: dict[str, dict[str, list[float]]] = {name: {} for name in variants}
    try:
        for entrant in entrants.values():
            _try(entrant.answer)
        for _ in range(FIRST_EPOCHS):
            for entrant in entrants.values():
                _try(lambda one=entrant: one.ask(worker.FIRST))
        for _ in range(options.rounds):
            for (name, variant), entrant in entrants.items():
                found = _try(lambda one=entrant: one.ask(worker.TIMED))
                if found:
                    seconds[name].setdefault(variant, []).append(found["seconds"])
    finally:
        for entrant in entrants.values():
            _try(lambda one=entrant: one.ask(worker.END))
            entrant.tell(worker.QUIT)
            entrant.close()
    return seconds


def _steps(name: str, options: Options) -> int:
    if options.is_small:
        return SMALL_STEPS
    steps: int = load(name, AS_WRITTEN).STEPS
    return steps


def _try(action: Any) -> Any:
    try:
        return action()
    except VariantError as problem:
        print(problem, flush=True)
        return None
