"""Are prefetch and deferred metrics ever slower than a loop as written? Six public kinds of loop.

    PYTHONPATH=src python3 -m benchmarks.public_loops --rounds 7 --out docs/results/public-loops.json
    PYTHONPATH=src python3 -m benchmarks.public_loops --smoke

Each script stands twice in its file: as people publish it, and with as few lines changed as
gapless needs. First both train from one seed with deterministic algorithms, and every number that
they read and the weights at the end are compared bit by bit. Then both train in turns of some
steps each, in rounds that begin with the other one every time, and every turn is timed from an
idle device to an idle device. Ratios are taken round by round, since a shared host is slow for
both of a round.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import struct
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import torch

from benchmarks.facts import heading, place_and_time
from benchmarks.processes import fork_loader_workers, replace_text
from benchmarks.public_loops.script import Run
from gapless.device.find import find_device
from gapless.device.numerics import seed_generators, set_numerics
from gapless.pipeline.loaders import end_kept_workers


NAMES = ("image", "lm", "lstm", "diffusion", "ppo", "bert")
VARIANTS = ("as_written", "with_gapless")

SMOKE_STEPS = 2
# Steps of the two turns whose bits are compared; PPO's are iterations.
BIT_STEPS = 12
WARM_UP_TURNS = 2


def loop_of(name):
    """Return a loop by its name."""
    return importlib.import_module(f"benchmarks.public_loops.{name}").LOOP


@contextmanager
def started(script, run):
    """Give a script from its seed, and end it with its loaders' workers."""
    seed_generators(1)
    turns = script(run)
    try:
        yield turns
    finally:
        turns.close()
        for loader in run.loaders:
            end_kept_workers(loader)


class Measurement:
    """Compares and times the two variants of a loop.

    Args:
        loop: what is measured.
        device: as gapless names it.
        options: of the command line.
        screen: where scripts write their progress.
    """

    def __init__(self, loop, *, device, options, screen):
        self.loop = loop
        self.device = device
        self.options = options
        self.screen = screen
        self.steps = min(loop.steps, SMOKE_STEPS) if options.smoke else loop.steps

    def take(self, tell):
        """Return all that is to say of the loop."""
        same_bits = self.compare()
        tell(f"{self.loop.name}: {same_bits}")
        turns = self.time(tell)
        return {**summarize(self.loop, turns, steps=self.steps), "bits": same_bits}

    def compare(self):
        """Return "same bits", or where the variants differ."""
        set_numerics(self.device, "fp32", deterministic=True)
        as_written, with_gapless = (getattr(self.loop, variant) for variant in VARIANTS)
        first, second = self._trained(as_written), self._trained(as_written)
        place = first_difference(first, second)
        if place:
            return f"not reproducible: {place}"
        place = first_difference(first, self._trained(with_gapless))
        return f"different: {place}" if place else "same bits"

    def _trained(self, script):
        """Return every number that two turns of a script read, and its weights, by name."""
        run = self._run(min(self.steps, BIT_STEPS))
        with started(script, run) as turns:
            found = {}
            for turn in range(2):
                model, numbers = next(turns)
                columns = numbers if isinstance(numbers, dict) else {"loss": numbers}
                for name, column in columns.items():
                    found |= {f"{name} {n} of turn {turn}": x for n, x in enumerate(column)}
            weights = {name: value.cpu().clone() for name, value in model.state_dict().items()}
            return found | weights

    def time(self, tell):
        """Return the milliseconds a step of every turn, by variant."""
        precision = "tf32" if self.device.is_accelerator else "fp32"
        set_numerics(self.device, precision, deterministic=False)
        runs = {variant: self._run(self.steps) for variant in VARIANTS}
        as_written, with_gapless = (
            started(getattr(self.loop, variant), runs[variant]) for variant in VARIANTS
        )
        found = {variant: [] for variant in VARIANTS}
        with as_written as first, with_gapless as second:
            scripts = dict(zip(VARIANTS, (first, second), strict=True))
            for turns in scripts.values():
                for _ in range(WARM_UP_TURNS):
                    self._timed(turns)
            for number in range(self.options.rounds):
                for variant in VARIANTS[:: -1 if number % 2 else 1]:
                    found[variant].append(self._timed(scripts[variant]))
                ms = "  ".join(f"{variant} {times[-1]:.3f}" for variant, times in found.items())
                tell(f"{self.loop.name}: round {number + 1} of {self.options.rounds}: {ms} ms")
        return found

    def _timed(self, turns):
        """Return the milliseconds a step of one turn, both ends of which find an idle device."""
        self._wait()
        start = perf_counter()
        next(turns)
        self._wait()
        return (perf_counter() - start) * 1000.0 / self.steps

    def _wait(self):
        if self.device.is_accelerator:
            torch.cuda.synchronize(self.device.torch_device)

    def _run(self, steps):
        return Run(
            device=self.device.torch_device,
            steps=steps,
            is_tiny=self.options.smoke,
            screen=self.screen,
        )


def first_difference(ours, theirs):
    """Return the name of the first number or tensor whose bits differ, None if none do."""
    if ours.keys() != theirs.keys():
        return f"{len(ours)} against {len(theirs)} numbers and tensors"
    return next((name for name in ours if _bits(ours[name]) != _bits(theirs[name])), None)


def _bits(value):
    if isinstance(value, torch.Tensor):
        return value.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
    return struct.pack("d", value)


def summarize(loop, turns, *, steps):
    """Return medians, spreads, and how many times as fast as written the loop is with gapless."""
    speeds = [before / after for before, after in zip(*turns.values(), strict=True)]
    return {
        "loop": loop.name,
        "title": loop.title,
        "problem": None,
        "steps": steps,
        "changed_lines": loop.changed_lines(),
        "ms_a_step": {variant: median(times) for variant, times in turns.items()},
        "middle_half_ms": {variant: _middle(times) for variant, times in turns.items()},
        "turns_ms": turns,
        "speed": median(speeds),
        "middle_half_speed": _middle(speeds),
        "speeds": speeds,
    }


def _middle(values):
    if len(values) < 2:
        return [values[0], values[0]]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return [low, high]


def table(results):
    """Return a Markdown table; below it, what went wrong."""
    lines = [
        "| loop | bits | as written, ms a step | with gapless | speed | middle half | lines |",
        "|---|---|---|---|---|---|---|",
    ]
    for found in results:
        if found["problem"]:
            lines.append(f"| {found['loop']} | failed | | | | | |")
            continue
        low, high = found["middle_half_speed"]
        before, after = (found["ms_a_step"][variant] for variant in VARIANTS)
        changed = found["changed_lines"]
        lines.append(
            f"| {found['loop']} | {found['bits'].partition(':')[0]} | {before:.3f} | {after:.3f} | "
            f"{found['speed']:.3f} | {low:.3f} to {high:.3f} | "
            f"+{changed['added']} -{changed['removed']} |"
        )
    lines += [
        "",
        *(f"{found['loop']}: {problem_of(found)}" for found in results if problem_of(found)),
    ]
    return "\n".join(lines)


def problem_of(found):
    """Return what went wrong with a loop, None if nothing did."""
    return found["problem"] or (None if found["bits"] == "same bits" else found["bits"])


def append(path, entry, *, earlier):
    """Write a file that holds the entries of earlier calls and this one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps([*earlier, entry], indent=1) + "\n")


def measured(name, *, device, options, tell):
    """Return what came of one loop; one that fails is told as a problem."""
    try:
        # A screen that is nowhere: how fast a terminal is would be measured otherwise.
        with Path(os.devnull).open("w", encoding="utf-8") as screen:
            return Measurement(loop_of(name), device=device, options=options, screen=screen).take(
                tell
            )
    except Exception as error:
        traceback.print_exc()
        first_line = str(error).strip().split("\n")[0]
        return {"loop": name, "problem": f"{type(error).__name__}: {first_line}"}
    finally:
        gc.collect()
        device.release_cached_memory()


def main():
    """Measure, print the table, append to the file; return the exit code."""
    options = _parser().parse_args()
    unknown = [name for name in options.only.split(",") if name not in NAMES]
    if unknown:
        print(f"unknown loop {unknown[0]!r}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    start = perf_counter()
    fork_loader_workers()
    device = find_device("cpu" if options.smoke else options.device)
    facts = place_and_time(str(device.torch_device), module="benchmarks.public_loops")
    earlier = []
    if options.out is not None and options.out.exists():
        earlier = json.loads(options.out.read_text(encoding="utf-8"))
    results = []

    def tell(line):
        print(f"{perf_counter() - start:6.1f} s  {line}", flush=True)

    for name in options.only.split(","):
        results.append(measured(name, device=device, options=options, tell=tell))
        if options.out is not None:
            entry = {**facts, "rounds": options.rounds, "results": results}
            append(options.out, entry, earlier=earlier)
    print("\n".join([*heading("Loops as people publish them", facts), table(results)]))
    return 1 if any(map(problem_of, results)) else 0


def _parser():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", default=",".join(NAMES), help="loops, with commas")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each variant")
    parser.add_argument("--smoke", action="store_true", help="tiny and on a CPU: does it all run?")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON file to append to")
    return parser


if __name__ == "__main__":
    sys.exit(main())
