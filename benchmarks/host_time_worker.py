"""Time the host's part of a batch on one tree; run by `benchmarks.host_time`, in its process.

Speaks only names that old and new trees share. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

import gapless
from gapless.testing import SimulatedDevice


ROOT = str(Path(gapless.__file__).parent)
# The simulator is no part of a run on a GPU.
SIMULATOR = ("/simulated/",)
NUM_BATCHES, NUM_EPOCHS = 400, 5


class Step:
    """One layer that trains itself."""

    def __init__(self, device):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(8, 1, device=device)
        fused = torch.device(device).type == "cuda"
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, fused=fused)

    def __call__(self, batch):
        """Train on a batch; return its loss."""
        loss = self.model(batch[0]).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def batches(count):
    """Return batches of four rows."""
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(4, 8, generator=draw), torch.zeros(4)) for _ in range(count)]


def loop_ms(plan, device):
    """Return milliseconds a batch of the host in whole epochs, the median of several."""
    data, times = batches(NUM_BATCHES), []
    with gapless.TrainLoop(plan=plan, device=device) as loop:
        step = Step(device)
        loop.run_epoch(data[:20], step)
        for _ in range(NUM_EPOCHS):
            start = perf_counter()
            loop.run_epoch(data, step)
            times.append((perf_counter() - start) * 1000.0 / NUM_BATCHES)
    return median(times)


def three_lines_ms(device, *, captured):
    """Return the same for prefetch, a deferred loss and perhaps a captured step."""
    data, times = batches(NUM_BATCHES), []
    step = Step(device)
    if captured:
        step = gapless.capture(step, device=device)
    for _ in range(NUM_EPOCHS + 1):
        start = perf_counter()
        losses = gapless.DeferredLoss(device)
        for batch in gapless.prefetch(data, device):
            losses.add(step(batch))
        losses.mean()
        times.append((perf_counter() - start) * 1000.0 / NUM_BATCHES)
    return median(times[1:])


def counted(plan, device, num_batches=60):
    """Return calls of gapless's own functions for a batch, and changes of file among them."""
    data, files, seen = batches(num_batches), [], Counter()

    def note(frame, event, _):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOT) and not any(s in name for s in SIMULATOR):
            files.append(name)

    def look(progress):
        if progress.batch in (num_batches - 11, num_batches - 1):
            seen[progress.batch] = len(files)

    with gapless.TrainLoop(plan=plan, device=device) as loop:
        step = Step("cpu")
        sys.setprofile(note)
        try:
            loop.run_epoch(data, step, on_batch=look)
        finally:
            sys.setprofile(None)
    first, last = (seen[number] for number in sorted(seen))
    part = files[first:last]
    changes = sum(a != b for a, b in pairwise(part))
    return {"calls": len(part) / 10, "changes_of_file": changes / 10}


def main():
    """Print what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--counts", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {"source": ROOT}
    if options.counts:
        found["gapless, CPU"] = counted("gapless", "cpu")
        with SimulatedDevice(scheduler="asap") as device:
            found["captured, a replay"] = counted("captured", device)
    else:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        found[f"plan gapless, {device}"] = loop_ms("gapless", device)
        found[f"prefetch and deferred loss, {device}"] = three_lines_ms(device, captured=False)
        if device == "cuda":
            found["plan captured, a replay"] = loop_ms("captured", device)
            found["the same with gapless.capture"] = three_lines_ms(device, captured=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
