"""Captures for a long time: does the memory of the process or of the device grow?

    PYTHONPATH=src python3 -m benchmarks.soak --device cuda --seconds 480
    PYTHONPATH=src python3 -m benchmarks.soak --device simulated --seconds 3600

One model trains throughout. Beside it others are made, captured as a step or in place, trained and dropped.
All train on batches of changing shapes, are evaluated, have their states saved and loaded, and audit one in
32 replays. Every 30 seconds, when the others are dropped and collected, a line of JSON has the memory of the
process, what of it glibc's allocator has given out, that of the device by torch's allocator, and the number
of objects that the collector knows. Each of these figures goes up and down; it is flat if, the first quarter
left out, the highest of its last third is less than 2 % above the highest of its first third. The exit code
is 1 if one is not, or if an audit found a difference.

A simulated device keeps what it has done, so each has a while, with models of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import io
import json
import warnings
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

import gapless
from benchmarks.changing_shapes.data import GPU, TINY, Sizes, batches_of, collated
from benchmarks.changing_shapes.loops import Encoder
from benchmarks.watching import learn_at_once
from gapless.testing import SimulatedDevice


if TYPE_CHECKING:
    from collections.abc import Iterator


AUDIT_EVERY = 32

# Of the highest of the first third, after which a figure is said to grow.
MOST_RISE = 0.02

FIGURES = ("rss_mib", "heap_mib", "allocated_mib", "reserved_mib", "num_objects")

_NUM_BATCHES = 40


class Trained:
    """A model that trains, is evaluated, and has its state saved and loaded.

    Args:
        form: `step` or `module`.
        sizes: of the model and its batches.
        place: where it trains, as gapless takes it.
        device: the same, as torch takes it.
    """

    def __init__(self, form: str, sizes: Sizes, place: Any, device: torch.device) -> None:
        self._model = Encoder(sizes, is_packed=False).to(device)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._batches = [
            {name: one.to(device) for name, one in collated(rows, "bucketed", sizes).items()}
            for rows in batches_of("bucketed", _NUM_BATCHES, sizes)
        ]
        model, optimizer = self._model, self._optimizer

        def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(**batch)
            loss.backward()
            optimizer.step()
            return loss.detach()

        self._step: Any = step
        if form == "step":
            self._step = gapless.capture(step, device=place, audit_every=AUDIT_EVERY)
            self.reports = [self._step.report]
        else:
            gapless.capture(model, optimizer, device=place, audit_every=AUDIT_EVERY)
            self.reports = [gapless.capture_report(one) for one in (model, optimizer)]

    def epoch(self) -> int:
        """Train on all batches, evaluate, and save and load the state; return the number of steps."""
        self._model.train()
        losses = [self._step(batch) for batch in self._batches]
        self._model.eval()
        with torch.no_grad():
            losses += [self._model(**batch) for batch in self._batches[:4]]
        total = float(torch.stack([loss.detach() for loss in losses]).sum())
        assert total == total, "a loss is not a number"
        file = io.BytesIO()
        torch.save([self._model.state_dict(), self._optimizer.state_dict()], file)
        file.seek(0)
        weights, state = torch.load(file)
        self._model.load_state_dict(weights)
        self._optimizer.load_state_dict(state)
        return len(self._batches)


class Counts:
    """What all captures so far have done, those that are dropped included."""

    def __init__(self) -> None:
        self.steps = self.objects = 0
        self._done = dict.fromkeys(("graphs", "replays", "audits", "equal"), 0)
        self.differences: list[str] = []

    def add(self, trained: Trained) -> None:
        """Add what a model that ends has done."""
        self.objects += 1
        for report in trained.reports:
            for name, num in _counts(report).items():
                self._done[name] += num
            self.differences += report.audits.differences

    def with_living(self, living: Trained) -> dict[str, Any]:
        """Return all, those of a model that goes on included."""
        found: dict[str, Any] = {"steps": self.steps, "objects": self.objects, **self._done}
        for report in living.reports:
            for name, num in _counts(report).items():
                found[name] += num
        told = [text for report in living.reports for text in report.audits.differences]
        return {**found, "differences": len(self.differences) + len(told)}


def _counts(report: Any) -> dict[str, int]:
    return {
        "graphs": report.num_graphs,
        "replays": report.num_replays,
        "audits": report.audits.num,
        "equal": report.audits.num_equal,
    }


class _MallInfo(ctypes.Structure):
    """What `mallinfo2` of glibc returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


def _heap_bytes() -> int | None:
    """Return what the C library's allocator has given out; None where it does not tell."""
    try:
        info = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return None
    info.restype = _MallInfo
    told = info()
    return int(told.uordblks + told.hblkhd)


def memory(device: str) -> dict[str, float]:
    """Return the figures of `FIGURES` that there are, everything collected."""
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    rss_kib = int(status.split("VmRSS:")[1].split()[0])
    found = {"rss_mib": round(rss_kib / 1024, 1), "num_objects": len(gc.get_objects())}
    heap = _heap_bytes()
    if heap is not None:
        found["heap_mib"] = round(heap / 2**20, 1)
    if device == "cuda":
        torch.cuda.synchronize()
        found["allocated_mib"] = round(torch.cuda.memory_allocated() / 2**20, 1)
        found["reserved_mib"] = round(torch.cuda.memory_reserved() / 2**20, 1)
    return found


def samples(options: argparse.Namespace, counts: Counts) -> Iterator[dict[str, Any]]:
    """Train until the time is over; yield a sample every so often, between two of the shorter lives."""
    begin = perf_counter()
    next_s, is_over, number = options.every, False, 0
    sizes = TINY if options.tiny else GPU
    while not is_over:
        with ExitStack() as stack:
            place: Any = options.device
            era_s = float("inf")
            if options.device == "simulated":
                place = stack.enter_context(SimulatedDevice(scheduler="asap"))
                stack.enter_context(place.allow_waits())
                era_s = options.every
            device = torch.device(getattr(place, "torch_device", place))
            era_begin = perf_counter()
            lasting = Trained("step", sizes, place, device)
            is_era_over = False
            while not is_era_over:
                short = Trained(("step", "module")[number % 2], sizes, place, device)
                number += 1
                for _ in range(options.epochs):
                    counts.steps += short.epoch() + lasting.epoch()
                counts.add(short)
                del short
                seconds = perf_counter() - begin
                is_over = seconds > options.seconds
                is_era_over = is_over or perf_counter() - era_begin > era_s
                if era_s == float("inf") and (is_over or seconds >= next_s):
                    yield {
                        "seconds": round(seconds),
                        **memory(options.device),
                        **counts.with_living(lasting),
                    }
                    next_s = seconds + options.every
            last = counts.with_living(lasting)
            counts.add(lasting)
            del lasting, device, place
        if era_s < float("inf"):
            yield {"seconds": round(perf_counter() - begin), **memory(options.device), **last}


def rise_of(values: list[float]) -> float:
    """Return by what share the highest value of the last third is above that of the first third.

    Thirds of what comes after the first quarter, in which caches fill. What goes up and down again, such as
    memory that is higher behind one kind of capture than behind another, is as high in both.
    """
    settled = values[len(values) // 4 :]
    third = max(len(settled) // 3, 1)
    return max(settled[-third:]) / max(settled[:third]) - 1


def main(arguments: list[str] | None = None) -> int:
    """Train for a while, print samples and what they say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device",
        choices=("cuda", "simulated"),
        default="cuda" if torch.cuda.is_available() else "simulated",
    )
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between samples")
    parser.add_argument("--epochs", type=int, default=6, help="of a model that is dropped then")
    parser.add_argument("--tiny", action="store_true", help="always so on the simulated device")
    options = parser.parse_args(arguments)
    options.tiny |= options.device == "simulated"
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    found, counts = [], Counts()
    with ExitStack() as stack:
        learn_at_once(stack)
        for sample in samples(options, counts):
            found.append(sample)
            print(json.dumps(sample), flush=True)
    is_flat = True
    for figure in FIGURES:
        if figure not in found[0]:
            continue
        rise = rise_of([sample[figure] for sample in found])
        is_flat &= rise < MOST_RISE
        print(
            f"{figure}: its highest rises by {rise:+.2%}, {'flat' if rise < MOST_RISE else 'IT GROWS'}"
        )
    differences = found[-1]["differences"]
    print(f"{differences} differences found by audits", *counts.differences, sep="\n  ")
    return int(not is_flat or differences > 0)


if __name__ == "__main__":
    raise SystemExit(main())
