"""Run each recipe as written and with its lines of gapless, in turns; write a JSON line each, and a table.

    PYTHONPATH=src:PACKAGES python3 -m benchmarks.recipes --others FOLDER --json recipes.jsonl
    PYTHONPATH=src:PACKAGES python3 -m benchmarks.recipes --only cleanrl_ppo act --processes 2 --seconds 120
    PYTHONPATH=src:PACKAGES python3 -m benchmarks.recipes --device cpu --tiny --rounds 1   # does it all run?

`PACKAGES` is a folder with what `benchmarks/recipes/packages.txt` lists, installed with `pip install --no-deps --target`; a
recipe whose package is absent says with which error, and is left out. `FOLDER` holds repositories of others as owner/name.

Both processes of a recipe stand side by side, and one process of all trains at a time: windows of updates in turns,
which of the two goes first changes. Windows of the warm-up hold the captures, and are told apart. Whatever is between the updates,
such as an environment or what a replay buffer draws, is not in these times. After equally many updates weights, buffers and states of optimizers
are compared, all bits; where they differ, the program runs as written once more, to see whether it repeats itself.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import statistics
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks.recipes.scripts import SCRIPTS
from benchmarks.recipes.sources import NAMES, lines_added


# What each program is of.
PACKAGES = {
    "act": "lerobot",
    "deepxde_heat": "deepxde",
    "diffusion": "diffusers",
    "lora": "peft",
    "pyg_molecules": "torch-geometric",
    "rsl_rl_ppo": "rsl-rl-lib",
    "sb3_ppo": "stable-baselines3",
    "sb3_sac": "stable-baselines3",
    "tft": "pytorch-forecasting",
}


MEASURING = threading.Lock()


class Row:
    """One process."""

    def __init__(self, name, options, *, lines):
        words = [name, "--device", options.device, "--others", str(options.others)]
        words += ["--lines"] * lines + ["--tiny"] * options.tiny
        self.log = options.logs / f"{name}{'_lines' * lines}.txt"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.recipes.worker", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def window(self):
        """Wait for the end of a window; return what it says, or what the process says at its end."""
        while True:
            line = self._process.stdout.readline()
            if not line:
                return {"error": f"ended; see {self.log.name}"}
            if line.startswith("{"):
                return json.loads(line)

    def tell(self, word):
        """Let it go on, or stop."""
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def end(self):
        """End it."""
        self._process.kill()
        self._process.communicate()


def pace(window):
    """Return updates a second."""
    return window["updates"] / window["seconds"]


def compare(name, options):
    """Return what came of one recipe."""
    found = {"recipe": name, **origin_of(name), "lines": lines_added(name, options.others)}
    deadline = perf_counter() + options.seconds
    rows = [Row(name, options, lines=lines) for lines in (False, True)]
    try:
        return {**found, **measured(rows, options, deadline)}
    finally:
        for row in rows:
            row.end()


def measured(rows, options, deadline):
    """Wait for two processes, and let them take turns; return their paces, shares and bits."""
    # Nobody begins before both are there: importing takes a host's time.
    for told in map(Row.window, rows):
        if "error" in told:
            return told
    # So that no recipe takes the device from another while that is measured.
    with MEASURING:
        return in_turns(rows, options, deadline)


def in_turns(rows, options, deadline):
    """Let two processes that are ready take turns."""
    windows = [[], []]
    begun, num_warmup = perf_counter(), None
    while perf_counter() < deadline:
        if num_warmup is None and is_warm(windows, options, begun, deadline):
            num_warmup = len(windows[0])
        if num_warmup is not None and len(windows[0]) == num_warmup + options.rounds:
            break
        for place in (0, 1) if len(windows[0]) % 2 == 0 else (1, 0):
            rows[place].tell("go")
            told = rows[place].window()
            if "error" in told:
                return {"error": ("with gapless: " if place else "") + told["error"]}
            windows[place].append(told)
    launches, ends = [], []
    for row in rows:
        if options.device == "cuda":
            row.tell("profile")
            launches.append(row.window())
        row.tell("stop")
        ends.append(row.window())
    plain, ours = [part[num_warmup:] for part in windows]
    if num_warmup is None or not plain:
        return {"error": f"no time for a round within {options.seconds} s"}
    ratios = sorted(pace(mine) / pace(theirs) for theirs, mine in zip(plain, ours, strict=True))
    sums = [sum(part["seconds"] for part in windows[place]) for place in (0, 1)]
    return {
        "updates_per_s": [round(statistics.median(map(pace, part)), 1) for part in (plain, ours)],
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratios[0], 2), round(ratios[-1], 2)],
        "rounds": len(ratios),
        "updates_before": num_warmup * windows[0][0]["updates"],
        "launches": [
            round(one["launches"] / one["updates"], 1) for one in launches if one.get("launches")
        ],
        "ratio_from_the_first_update": round(sums[0] / sums[1], 2),
        "seconds_from_the_first_update": [round(one, 2) for one in sums],
        "share": ends[1]["share"],
        "same_bits": ends[0]["digest"] == ends[1]["digest"],
        "captured": ends[1]["captured"],
        "digest": ends[0]["digest"],
    }


def is_warm(windows, options, begun, deadline):
    """Return whether windows may count: what gapless may cost at first lies in those before."""
    if perf_counter() > begun + 0.7 * (deadline - begun):
        return bool(windows[0])
    seconds = min(sum(one["seconds"] for one in part) for part in windows)
    return len(windows[0]) >= options.warmup and seconds >= options.settle


def origin_of(name):
    """Return the package with its version, or the repository with its commit."""
    if name in SCRIPTS:
        script = SCRIPTS[name]
        return {"of": f"{script.repository} {script.commit} {script.path}"}
    package = PACKAGES.get(name)
    if package is None:
        return {"of": "own program of the same shape"}
    try:
        return {"of": f"{package} {importlib.metadata.version(package)}"}
    except importlib.metadata.PackageNotFoundError:
        return {"of": package}


def repeats(name, options):
    """Return whether a program gives the same bits as written twice."""
    return repeated_digest(name, options) == repeated_digest(name, options)


def repeated_digest(name, options):
    """Return the digest of a run as written of a few windows."""
    row = Row(name, options, lines=False)
    try:
        for _ in range(3):
            if "error" in row.window():
                return None
            row.tell("go")
        row.window()
        row.tell("stop")
        return row.window()["digest"]
    finally:
        row.end()


def table_of(results):
    """Return a table of rows of a file."""
    head = "| recipe | of | lines added | updates/s as written | with them | ratio | from the first update | calls replayed | bits |"
    rows = [head, "|---|---|--:|--:|--:|--:|--:|--:|---|"]
    for one in results:
        start = f"| {one['recipe']} | {one['of']} | {one['lines']} |"
        if "error" in one:
            rows.append(f"{start} left out: {one['error']} | | | | | |")
            continue
        low, high = one["ratios"]
        bits = "same" if one["same_bits"] else "other"
        if not one["same_bits"] and not one.get("repeats", True):
            bits = "does not repeat itself"
        rows.append(
            f"{start} {one['updates_per_s'][0]:,} | {one['updates_per_s'][1]:,} | "
            f"{one['ratio']:.2f} ({low:.2f} to {high:.2f}) | {one['ratio_from_the_first_update']:.2f} | "
            f"{one['share']:.0%} | {bits} |"
        )
    return "\n".join(rows)


def main():
    """Compare recipes, some at a time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME")
    parser.add_argument("--others", type=Path, default=Path("runs/others"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    parser.add_argument("--warmup", type=int, default=3, help="windows before the rounds")
    parser.add_argument(
        "--settle", type=float, default=0, help="seconds of either before the rounds, at least"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=120, help="after which no round begins")
    parser.add_argument("--processes", type=int, default=1, help="recipes that start at a time")
    parser.add_argument(
        "--repeats", action="store_true", help="run as written again where bits differ"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--logs", type=Path, default=Path("runs"))
    options = parser.parse_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    results = []
    with ThreadPoolExecutor(options.processes) as pool:
        for one in pool.map(partial(compare, options=options), options.only):
            if options.repeats and not one.get("same_bits", True):
                one["repeats"] = repeats(one["recipe"], options)
            results.append(one)
            if options.json is not None:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(one) + "\n")
            print({key: one[key] for key in one if key != "captured"}, flush=True)
    print(table_of(results))


if __name__ == "__main__":
    main()
