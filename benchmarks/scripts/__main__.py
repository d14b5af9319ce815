"""Training loops as people publish them, in seven variants: speed, bits, waits, memory, lines.

`python -m benchmarks.scripts --only nanogpt mnist --json scripts.json` measures, `--table scripts.json`
prints what was measured, `--show nanogpt in-place` prints a variant, and `--small` trains for a few steps
on a CPU, to see that it all runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from benchmarks.facts import place_and_time
from benchmarks.processes import replace_text
from benchmarks.scripts.race import Options, Race, run_all
from benchmarks.scripts.table import table
from benchmarks.scripts.variants import AS_WRITTEN, NAMES, VARIANTS, EditError, load, shown


SMALL_STEPS = 6


def append(path, entry):
    """Add an entry to a JSON file, a list of them."""
    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps([*entries, entry], indent=1) + "\n")


def race_of(name, arguments, *, options, tell):
    """Return the race of one script; None, with a word, if it cannot run here."""
    try:
        module = load(name, AS_WRITTEN)
    except ImportError as error:
        tell(f"{name}: skipped, {error}")
        return None
    steps = arguments.steps or (SMALL_STEPS if options.is_small else module.STEPS)
    variants = [v for v in VARIANTS if v == AS_WRITTEN or v in arguments.variants]
    return Race(name, variants, steps=steps, options=options, tell=tell)


def entry_of(race, *, facts, beside):
    """Return what a race found, as JSON holds it.

    Args:
        race: has been run.
        facts: about the machine, the commit and the command.
        beside: names of all races that were set up side by side, this one included.
    """
    return {
        **facts,
        "script": race.name,
        "title": load(race.name, AS_WRITTEN).TITLE,
        "steps": race.steps,
        "rounds": race.options.rounds,
        "is_small": race.options.is_small,
        "set_up_beside": [name for name in beside if name != race.name],
        "variants": race.found(),
    }


def is_wrong(entry):
    """Return whether a variant of an entry failed, or gapless changed its bits."""
    of_gapless = ("as-written", "prefetch", "in-place", "whole-step")
    found = [entry["variants"][v] for v in of_gapless if v in entry["variants"]]
    ran = [one for one in found if "left_out" not in one]
    return any(one["problem"] or not (one.get("bits") or "").startswith("same") for one in ran)


def main(command_line=None):
    """Measure the chosen scripts; return the exit code."""
    arguments = _parser().parse_args(command_line)
    if arguments.table:
        found = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.table]
        print(table([entry for entries in found for entry in entries]))
        return 0
    if arguments.show:
        return _show(*arguments.show)
    start = perf_counter()
    device = "cpu" if arguments.small else arguments.device
    facts = place_and_time(device, module="benchmarks.scripts")

    def tell(line):
        print(f"{perf_counter() - start:6.1f} s  {line}", flush=True)

    folder = arguments.logs or Path(tempfile.mkdtemp(prefix="scripts-logs-"))
    folder.mkdir(parents=True, exist_ok=True)
    tell(f"{facts['hardware']}, {facts['versions']}, commit {facts['commit']}; logs in {folder}")
    options = Options(
        device=device,
        rounds=arguments.rounds,
        is_small=arguments.small,
        setup_limit=arguments.setup_limit,
        folder=folder,
    )
    entries = []
    for names in batched(arguments.only, arguments.at_once):
        found = [race_of(name, arguments, options=options, tell=tell) for name in names]
        races = [race for race in found if race is not None]
        if races:
            run_all(races, tell)
        beside = [race.name for race in races]
        for race in races:
            entry = entry_of(race, facts=facts, beside=beside)
            entries.append(entry)
            if arguments.json:
                append(arguments.json, entry)
    if entries:
        print(table(entries))
    return 1 if any(map(is_wrong, entries)) else 0


def batched(names, size):
    """Return lists of at most `size` names, in order."""
    return [names[at : at + size] for at in range(0, len(names), size)]


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
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=5, help="timed epochs of each variant")
    parser.add_argument(
        "--at-once", type=int, default=1, metavar="N",
        help="scripts that compile and end side by side, which is quicker; their timed epochs are not, "
        "but seconds until the first fast step are longer",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, help="of an epoch; by default each script's own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="to append to")
    parser.add_argument("--small", action="store_true", help="on a CPU: does it all run?")
    parser.add_argument("--setup-limit", type=float, default=240.0, metavar="SECONDS")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="for what processes print")
    parser.add_argument(
        "--table", nargs="+", type=Path, metavar="FILE", help="print files as Markdown"
    )
    parser.add_argument("--show", nargs=2, metavar=("NAME", "VARIANT"), help="print a variant")
    return parser


if __name__ == "__main__":
    sys.exit(main())
