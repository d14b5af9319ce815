"""What audits cost: the share of the time, the slowest steps, and memory at rest and at the peak.

    PYTHONPATH=src python3 -m benchmarks.audit_costs --device cuda --seconds 500 --json audit_costs.jsonl
    PYTHONPATH=src python3 -m benchmarks.audit_costs --device simulated --steps 70 --rounds 1 --only resnet-18

A model trains in three processes: without audits, with one in 1,000 replays, and with one in 32. They take
turns of some steps each, in rounds that begin with another one; who waits does nothing. Batches have one
shape, the graph is there before the first turn, and audits never wait for room. The host waits for the
device every 50 steps, as loops do that read their loss. A turn takes from an idle device to an idle device;
the time of a step is that between two events on the device, one behind each step. Memory is that of torch's
allocator, of each process by itself: allocated and reserved at the end of a turn, and the most within it.

Base32 is the trainer's own step. On the simulated device models are tiny, and times are those of the
simulation. No turn begins after `--seconds`; each prints a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from unittest import mock

import torch

from benchmarks.watching import FORMS, TRAINER, learn_at_once, training_of


MODELS = {"base32": TRAINER, "resnet-18": "resnet-18", "gpt-12": "gpt-12"}

# Replays from one audit to the next; the first stands for none.
OFF = 10**9
EVERY = (OFF, 1_000, 32)

_READ_EVERY = 50

# A graph has been replayed by then, and its first audit is over.
_NUM_WARM_UP = 60


# --- one process ---


class Trained:
    """A captured training that runs some steps whenever it is told to.

    Args:
        model: a key of `MODELS`.
        form: of the capture.
        every: replays from one audit to the next.
        device: name of the device.
        stack: what the process holds to its end.
    """

    def __init__(self, model: str, form: str, every: int, device: str, stack: ExitStack) -> None:
        import gapless

        learn_at_once(stack)
        place: Any = device
        if device == "simulated":
            from gapless.testing import SimulatedDevice

            place = stack.enter_context(SimulatedDevice(scheduler="asap"))
            stack.enter_context(place.allow_waits())
        self._is_gpu = device == "cuda"
        self._training = training_of(
            MODELS[model], torch.device(getattr(place, "torch_device", place)), place=place
        )
        training = self._training
        settings: dict[str, Any] = {"device": place, "audit_every": every}
        if form == "step":
            self._call: Any = gapless.capture(training.captured_as, **settings)
            self._reports = [self._call.report]
        else:
            from gapless.graphs import call_windows

            # Calls as written that are compared with replays would blur what audits cost.
            stack.enter_context(mock.patch.object(call_windows, "NUM_BEFORE", 10**9))
            gapless.capture(training.model, training.optimizer, **settings)
            self._call = training.step
            objects = (training.model, training.optimizer)
            self._reports = [gapless.capture_report(one) for one in objects]
        self.turn(_NUM_WARM_UP)

    def turn(self, num_steps: int) -> dict[str, Any]:
        """Train for some steps; return how long they took, and the memory that they had."""
        # Of three, the one of middle length.
        call, batch = self._call, self._training.batches[1]
        before = [self._counts(report) for report in self._reports]
        self._wait()
        if self._is_gpu:
            torch.cuda.reset_peak_memory_stats()
        ends = [self._mark()]
        begin = perf_counter()
        for number in range(1, num_steps + 1):
            call(*batch)
            ends.append(self._mark())
            if number % _READ_EVERY == 0:
                self._wait()
        self._wait()
        seconds = perf_counter() - begin
        counts = [
            {key: now - former[key] for key, now in self._counts(report).items()}
            for report, former in zip(self._reports, before, strict=True)
        ]
        return {
            "seconds": seconds,
            **_quantiles([self._between(a, b) for a, b in pairwise(ends)]),
            "counts": counts,
            "differences": [text for one in self._reports for text in one.audits.differences],
            "report": " | ".join(map(str, self._reports)),
            **self._memory(),
        }

    def _counts(self, report: Any) -> dict[str, int]:
        return {
            "audits": report.audits.num,
            "equal": report.audits.num_equal,
            "replays": report.num_replays,
            "as_written": report.num_eager,
        }

    def _wait(self) -> None:
        if self._is_gpu:
            torch.cuda.synchronize()

    def _mark(self) -> Any:
        if not self._is_gpu:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, begin: Any, end: Any) -> float:
        """Return the milliseconds between two marks."""
        return float(begin.elapsed_time(end)) if self._is_gpu else (end - begin) * 1e3

    def _memory(self) -> dict[str, float]:
        if not self._is_gpu:
            return {}
        figures = {
            "allocated_mib": torch.cuda.memory_allocated(),
            "reserved_mib": torch.cuda.memory_reserved(),
            "peak_allocated_mib": torch.cuda.max_memory_allocated(),
            "peak_reserved_mib": torch.cuda.max_memory_reserved(),
        }
        return {name: round(num / 2**20, 1) for name, num in figures.items()}


def _quantiles(times_ms: list[float]) -> dict[str, float]:
    ordered = sorted(times_ms)

    def of(share: float) -> float:
        return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)], 4)

    return {"p50_ms": of(0.5), "p99_ms": of(0.99), "p99.9_ms": of(0.999), "most_ms": of(1.0)}


def serve(options: argparse.Namespace) -> None:
    """Train whenever a line with a number of steps comes, and answer with a line of JSON."""
    model, form, every = options.part
    with ExitStack() as stack:
        trained = Trained(model, form, int(every), options.device, stack)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            print(json.dumps(trained.turn(int(line))), flush=True)


# --- all processes ---


class Process:
    """One process of a model, which waits for its turns."""

    def __init__(self, model: str, form: str, every: int, options: argparse.Namespace) -> None:
        self.every = every
        command = [sys.executable, "-m", "benchmarks.audit_costs", "--device", options.device]
        command += ["--part", model, form, str(every)]
        folders = [os.environ.get("PYTHONPATH"), str(Path(__file__).parents[1])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
        )

    def answer(self, num_steps: int | None = None) -> dict[str, Any]:
        """Return what it prints next, after it was told to train if there is a number of steps."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        if num_steps is not None and process.poll() is None:
            process.stdin.write(f"{num_steps}\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        said = process.stderr.read().strip().splitlines()
        return {"problem": (said or ["it ended without a word"])[-1]}

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def measured(model: str, form: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the turns of all processes of a model; each is printed as it ends."""
    head = {"model": model, "form": form}
    processes = [Process(model, form, every, options) for every in options.every]
    found: list[dict[str, Any]] = []
    try:
        for process in processes:
            ready = process.answer()
            if "problem" in ready:
                found.append({**head, "every": process.every, **ready})
                print(json.dumps(found[-1]), flush=True)
                return found
        for number in range(options.rounds):
            for process in processes if number % 2 == 0 else processes[::-1]:
                if perf_counter() > options.end_s:
                    return found
                turn = process.answer(options.steps)
                found.append({**head, "every": process.every, "steps": options.steps, **turn})
                text = json.dumps(found[-1])
                print(
                    json.dumps({k: v for k, v in found[-1].items() if k != "report"}), flush=True
                )
                if options.json is not None:
                    with options.json.open("a", encoding="utf-8") as file:
                        file.write(text + "\n")
    finally:
        for process in processes:
            process.end()
    return found


def lines_of(turns: list[dict[str, Any]]) -> list[str]:
    """Return a line for each number of replays from one audit to the next, beside none."""
    good = [turn for turn in turns if "problem" not in turn]
    without = [turn for turn in good if turn["every"] == OFF]
    if not without:
        return [
            f"{turn['model']}, {turn['form']}: {turn['problem']}"
            for turn in turns
            if "problem" in turn
        ]
    off_ms = median(turn["seconds"] / turn["steps"] for turn in without) * 1e3
    lines = []
    for every in sorted({turn["every"] for turn in good}, reverse=True):
        some = [turn for turn in good if turn["every"] == every]
        step_ms = median(turn["seconds"] / turn["steps"] for turn in some) * 1e3
        num_audits = sum(count["audits"] for turn in some for count in turn["counts"])
        steps = sum(turn["steps"] for turn in some)
        name = "no audits" if every == OFF else f"1 in {every:,}"
        text = (
            f"{some[0]['model']:10}{some[0]['form']:8}{name:12}{step_ms:9.3f} ms a step {step_ms / off_ms - 1:+7.2%}"
            f"  {num_audits:5} audits"
        )
        if num_audits:
            more = (step_ms - off_ms) * steps / num_audits
            text += f" of {more:8.2f} ms = {more / off_ms:6.2f} steps"
        text += f"  p99.9 {median(turn['p99.9_ms'] for turn in some):8.3f} ms, most {max(turn['most_ms'] for turn in some):8.3f}"
        lines.append(text + _memory_text(some, without))
        lines += [f"    {text}" for turn in some for text in turn["differences"]]
    return lines


def _memory_text(some: list[dict[str, Any]], without: list[dict[str, Any]]) -> str:
    if "allocated_mib" not in some[0]:
        return ""
    parts = []
    for key in ("allocated_mib", "reserved_mib", "peak_allocated_mib", "peak_reserved_mib"):
        now, off = (max(turn[key] for turn in turns) for turns in (some, without))
        parts.append(
            f"{key.removesuffix('_mib').replace('_', ' ')} {now:,.0f} ({now - off:+,.0f})"
        )
    return "  MiB: " + ", ".join(parts)


def main(arguments: list[str] | None = None) -> int:
    """Measure models, and print a line for each of their processes; return 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--form", nargs="+", choices=FORMS, default=["step"])
    parser.add_argument("--every", nargs="+", type=int, default=list(EVERY))
    parser.add_argument("--steps", type=int, default=2_000, help="of a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=500.0, help="after which no turn begins")
    parser.add_argument(
        "--device",
        choices=("cuda", "simulated"),
        default="cuda" if torch.cuda.is_available() else "simulated",
    )
    parser.add_argument("--json", type=Path, help="append a line for each turn to this file")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.part:
        serve(options)
        return 0
    options.end_s = perf_counter() + options.seconds
    has_failed = False
    for model in options.only:
        for form in options.form:
            turns = measured(model, form, options)
            has_failed |= not turns or any("problem" in turn for turn in turns)
            print("\n".join(lines_of(turns)), flush=True)
    return int(has_failed)


if __name__ == "__main__":
    raise SystemExit(main())
