"""Hold what `gapless doctor` says against what was measured with a clock.

    PYTHONPATH=src python3 -m benchmarks.doctor --only planted --json docs/results/doctor.json
    PYTHONPATH=src python3 -m benchmarks.doctor --only planted --cases "item 0.3" hook
    PYTHONPATH=src python3 -m benchmarks.doctor --small      # on a CPU: does it all run?
    python3 -m benchmarks.doctor --page docs/results/doctor.json docs/results/doctor.md

Every case is appended to the file as soon as it is measured; the page shows the last of each.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import traceback
from pathlib import Path
from time import perf_counter

from benchmarks.doctor.results import PARTS, page


def append(path, entry):
    """Add an entry to a JSON file, a list of them."""
    from benchmarks.processes import replace_text

    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps([*entries, entry], indent=1) + "\n")


def main(command_line=None):
    """Measure the chosen parts; return 1 if one of them failed or is wrong."""
    chosen = _parser().parse_args(command_line)
    if chosen.page:
        source, target = chosen.page
        entries = json.loads(source.read_text(encoding="utf-8")) if source.exists() else []
        target.write_text(page(entries), encoding="utf-8")
        return 0
    return _measure(chosen)


def _measure(chosen):
    from benchmarks.doctor.commands import warm_python
    from benchmarks.doctor.options import Options
    from benchmarks.facts import place_and_time

    began = perf_counter()
    if set(chosen.only) & {"several", "overhead", "said"}:
        warm_python()
    device = "cpu" if chosen.small else chosen.device
    facts = place_and_time(device, module="benchmarks.doctor")
    if chosen.commit:
        facts["commit"] = chosen.commit
    print(f"{facts['hardware']}, {facts['versions']}, commit {facts['commit']}", flush=True)
    options = Options(
        device=device,
        cases=tuple(chosen.cases),
        rounds=1 if chosen.small else chosen.rounds,
        is_small=chosen.small,
        folder=Path(tempfile.mkdtemp(prefix="doctor-logs-")),
        judged=chosen.judged,
        programs=chosen.programs,
    )
    is_fine = True
    for part in chosen.only:
        if getattr(options, PARTS[part].needs or "device") is None:
            continue
        measure = importlib.import_module(f"benchmarks.doctor.{PARTS[part].module}").measure
        try:
            for entry in measure(options):
                verdict = {True: "right", False: "WRONG", None: "no verdict"}[entry["is_right"]]
                is_fine = is_fine and entry["is_right"] is not False
                entry = {"part": part, "is_small": options.is_small, **facts, **entry}
                if chosen.json:
                    append(chosen.json, entry)
                print(
                    f"{perf_counter() - began:6.1f} s  {part} {entry['name']}: {verdict}; "
                    f"{PARTS[part].line(entry)}",
                    flush=True,
                )
        except Exception as error:
            traceback.print_exc()
            print(f"{perf_counter() - began:6.1f} s  {part} failed: {error}", flush=True)
            is_fine = False
    return 0 if is_fine else 1


def _parser():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=tuple(PARTS), metavar="PART",
                        help=", ".join(PARTS))  # fmt: skip
    parser.add_argument("--cases", nargs="+", default=(), metavar="CASE",
                        help="cases of a part whose names begin so")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", help="where git cannot tell it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="to append to")
    parser.add_argument("--judged", type=Path, metavar="FILE", help="what doctor.judge wrote")
    parser.add_argument("--programs", type=Path, metavar="FOLDER",
                        help="of repositories, as benchmarks.programs_of_others has it")  # fmt: skip
    parser.add_argument("--small", action="store_true", help="on a CPU: does it all run?")
    parser.add_argument(
        "--page", nargs=2, type=Path, metavar=("JSON", "PAGE"), help="write the page"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
