"""Launch-bound scripts as people publish them, beside the same loop made fast in several ways: fairly.

`python -m benchmarks.launch_bound --only nanogpt mnist --json launch-bound.json` measures, `--table FILE` prints
what was measured, `--readme FILE` the rows of README, `--show nanogpt in-place` a variant, and `--tiny` trains
for a few steps on a CPU, to see that it all runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

from benchmarks.facts import place_and_time
from benchmarks.launch_bound.race import Deadline, Options, Race
from benchmarks.launch_bound.table import readme_rows, table
from benchmarks.launch_bound.variants import (
    AS_WRITTEN,
    CHANGING,
    NAMES,
    VARIANTS,
    EditError,
    load,
    shown,
)
from benchmarks.launch_bound.worker import Cores
from benchmarks.processes import ending_in_order, replace_text


SMALL_STEPS = 6


class Results:
    """A JSON file, a list of entries, which is written anew whenever one changes.

    Args:
        path: of the file, to which entries are added; None: they are only kept.
    """

    def __init__(self, path):
        self._path, self._lock, self._own = path, threading.Lock(), {}
        self._former = _read(path) if path and path.exists() else []

    def put(self, key, entry):
        """Add an entry, or replace that of the same key."""
        with self._lock:
            self._own[key] = entry
            if self._path:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                entries = [*self._former, *self._own.values()]
                replace_text(self._path, json.dumps(entries, indent=1) + "\n")

    def entries(self):
        """Return those of this call."""
        return list(self._own.values())


def _read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def entry_of(race, *, facts, beside):
    """Return what a race found, as JSON holds it.

    Args:
        race: its found results.
        facts: about the machine, the commit and the command.
        beside: how many scripts were set up side by side.
    """
    options = race.options
    return {
        **facts,
        "script": race.name,
        "title": load(race.name, AS_WRITTEN).TITLE,
        "steps": race.steps,
        "rounds": options.rounds,
        "turn_s": options.turn_s,
        "first_s": options.first_s,
        "warm_s": options.warm_s,
        "is_small": options.is_small,
        "is_changing": options.is_changing,
        "set_up_beside": beside - 1,
        "has_small_checks": options.has_small_checks,
        "variants": race.found(),
    }


def is_wrong(entry):
    """Return whether a variant of ours failed, has other bits than without captures, or was silently wrong."""
    found = [
        entry["variants"].get(v, {}) for v in ("as-written", "prefetch", "in-place", "whole-step")
    ]
    wrong = ("different", "failed", "silent")
    values = [
        str(one.get(key, "")) for one in found for key in ("bits", "weight", "rate", "attribute")
    ]
    return any(one.get("problem") for one in found) or any(v.startswith(wrong) for v in values)


def main(command_line=None):
    """Measure the chosen scripts; return the exit code."""
    arguments = _parser().parse_args(command_line)
    for files, shows in ((arguments.table, table), (arguments.readme, _readme)):
        if files:
            print(shows([entry for path in files for entry in _read(path)]))
            return 0
    if arguments.show:
        return _show(*arguments.show)
    return _measure(arguments)


def _measure(arguments):
    start = perf_counter()
    device = "cpu" if arguments.tiny else arguments.device
    facts = place_and_time(device, module="benchmarks.launch_bound")

    def tell(line):
        print(f"{perf_counter() - start:6.1f} s  {line}", flush=True)

    folder = arguments.logs or Path(tempfile.mkdtemp(prefix="launch-bound-logs-"))
    folder.mkdir(parents=True, exist_ok=True)
    tell(f"{facts['hardware']}, {facts['versions']}, commit {facts['commit']}; logs in {folder}")
    variants = [v for v in VARIANTS if v == AS_WRITTEN or v in arguments.variants]
    checks = variants if arguments.checks is None else arguments.checks
    options = Options(
        device=device,
        rounds=arguments.rounds,
        turn_s=arguments.seconds / arguments.rounds,
        first_s=arguments.first,
        warm_s=arguments.warm_up,
        cores=Cores.here(),
        checks=tuple(checks),
        has_small_checks=arguments.small_checks,
        check_s=arguments.check_seconds,
        is_changing=arguments.changing,
        num_workers=arguments.workers,
        is_small=arguments.tiny,
        setup_limit=arguments.setup_limit,
        folder=folder,
        deadline=Deadline(arguments.time_limit),
    )
    names = [name for name in arguments.only if name in CHANGING or not arguments.changing]
    at_once = max(1, arguments.processes // len(variants))
    results, alone = Results(arguments.json), threading.Lock()

    def measure(name):
        if options.deadline.left() < 0:
            tell(f"{name}: not begun, the time is over")
            return
        try:
            module = load(name, AS_WRITTEN)
        except ImportError as error:
            tell(f"{name}: skipped, {error}")
            return
        steps = arguments.steps or (SMALL_STEPS if options.is_small else module.STEPS)
        race = Race(name, variants, steps=steps, options=options, tell=tell)

        def write():
            entry = entry_of(race, facts=facts, beside=at_once)
            # A script that the end of the time found unmeasured is no result.
            if any("steps_per_s" in one for one in entry["variants"].values()):
                results.put(name, entry)

        try:
            race.run(alone, write)
        except Exception as error:
            # The others go on.
            tell(f"{name}: {type(error).__name__}: {error}")
        finally:
            write()
            race.close()

    with ending_in_order(), ThreadPoolExecutor(at_once) as threads:
        try:
            # A list, so that errors are raised.
            list(threads.map(measure, names))
        finally:
            options.deadline.end = min(options.deadline.end, perf_counter())
            threads.shutdown(cancel_futures=True)
    entries = results.entries()
    if entries:
        print(table(entries))
    return 1 if any(map(is_wrong, entries)) else 0


def _readme(entries):
    return "\n".join(readme_rows(entries))


def _show(name, variant):
    try:
        print(shown(name, variant))
    except (EditError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parser():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME")
    parser.add_argument(
        "--variants", nargs="+", choices=tuple(VARIANTS), default=tuple(VARIANTS), metavar="VARIANT",
        help=f"beside as-written: {', '.join(VARIANTS)}",
    )  # fmt: skip
    parser.add_argument("--checks", nargs="*", choices=tuple(VARIANTS), metavar="VARIANT",
                        help="whose bits and changes are checked; by default all that are timed")  # fmt: skip
    parser.add_argument(
        "--changing", action="store_true", help="batches of changing shapes, where there are some"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="of each variant after its warm-up, at least"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="turns among which the seconds are shared"
    )
    parser.add_argument("--first", type=float, default=60.0, metavar="SECONDS",
                        help="of the first epoch of ours, alone; 0: beside the others, and the minute is estimated")  # fmt: skip
    parser.add_argument("--warm-up", type=float, default=15.0, metavar="SECONDS",
                        help="that all variants of a script train on at once before their turns")  # fmt: skip
    parser.add_argument("--processes", type=int, default=1,
                        help="at most, side by side: scripts load, compile and check beside one that is timed")  # fmt: skip
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="SECONDS",
                        help="end in order after so long; what is known by then is in the file")  # fmt: skip
    parser.add_argument(
        "--small-checks", action="store_true", help="on small models, which compile sooner"
    )
    parser.add_argument(
        "--check-seconds", type=float, default=120.0, help="of the checks of a script, at most"
    )
    parser.add_argument("--setup-limit", type=float, default=240.0, metavar="SECONDS")
    parser.add_argument("--steps", type=int, help="of an epoch; by default each script's own")
    parser.add_argument("--workers", type=int, default=4, help="of each loader")
    parser.add_argument("--json", type=Path, metavar="FILE", help="to append to")
    parser.add_argument("--tiny", action="store_true", help="on a CPU: does it all run?")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="for what processes print")
    parser.add_argument(
        "--table", nargs="+", type=Path, metavar="FILE", help="print files as Markdown"
    )
    parser.add_argument(
        "--readme", nargs="+", type=Path, metavar="FILE", help="print README's rows"
    )
    parser.add_argument("--show", nargs=2, metavar=("NAME", "VARIANT"), help="print a variant")
    return parser


if __name__ == "__main__":
    sys.exit(main())
