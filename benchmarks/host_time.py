"""Compare the host's time for a batch on an old commit and on this tree, in turns.

    python -m benchmarks.host_time --old COMMIT_OR_FOLDER [--rounds 7] [--json FILE]

Every round runs each tree once, in a process of its own, in an order that alternates. Prints the
median over the rounds, the quartiles, and the median of the ratios new / old of each round: the
host is shared, so single rounds differ. Also prints how many functions of gapless are called for a
batch, and how often a call enters another file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles

from benchmarks.facts import place_and_time
from benchmarks.side_by_side import export


ROOT = Path(__file__).parents[1]
WORKER = Path(__file__).with_name("host_time_worker.py")


def measure(source, *flags):
    """Run the worker on the tree with this `src` folder and return what it printed."""
    environment = {**os.environ, "PYTHONPATH": f"{source}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, str(WORKER), *flags]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    loaded = found.pop("source")
    if not loaded.startswith(str(source)):
        raise RuntimeError(f"loaded {loaded}, expected it from {source}")
    return found


def report(old, new):
    """Return one line for each figure: medians, quartiles and the median ratio of the rounds."""
    lines = []
    for name in new[0]:
        before, after = ([found[name] for found in rounds] for rounds in (old, new))
        ratios = [b / a for a, b in zip(before, after, strict=True)]
        spread = "{:.4f} to {:.4f}"
        lines.append(
            f"{name:42} old {median(before):.4f} ms ({spread.format(*_middle(before))})  "
            f"new {median(after):.4f} ms ({spread.format(*_middle(after))})  "
            f"new / old {median(ratios):.3f} ({spread.format(*_middle(ratios))})"
        )
    return lines


def _middle(values):
    found = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return found[0], found[2]


def main():
    """Measure both trees, print the figures and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", required=True, metavar="COMMIT_OR_FOLDER")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sources = {"old": export(options.old, Path(folder)), "new": ROOT / "src"}
        rounds = {"old": [], "new": []}
        for number in range(options.rounds):
            for side in ("old", "new") if number % 2 else ("new", "old"):
                rounds[side].append(measure(sources[side]))
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        counts = {side: measure(source, "--counts") for side, source in sources.items()}
    print("\n".join(report(rounds["old"], rounds["new"])))
    for name in counts["new"]:
        print(f"{name:42} old {counts['old'][name]}  new {counts['new'][name]}")
    if options.json is not None:
        facts = place_and_time("auto", module="benchmarks.host_time")
        found = {"facts": facts, "old": options.old, "rounds": rounds, "counts": counts}
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
