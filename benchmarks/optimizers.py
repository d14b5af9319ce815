"""What a step costs with each optimizer: as written, captured in place, captured as a whole step.

    PYTHONPATH=src python3 -m benchmarks.optimizers [--only adam,lion] [--jsonl FILE]

The model is a chain of 110 small layers, so 220 weights, and a schedule sets another rate before each
step. Optimizers are made as frameworks make them, with what torch chooses where nothing is said, unless the
row says fused; Lion and Muon are written by hand. The ways train on the same batches. After `--steps` steps
weights and state are compared with those of the loop as written: "same". Then captured ways train `--warm-up`
steps more, in which audits grow rare, and all are timed over as many steps: the median of ten windows. "update"
is the time within `optimizer.step()`, and a profile of one step more counts what the host launches. Without a
GPU all runs as written.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

import gapless
from benchmarks.facts import place_and_time
from gapless.graphs import account


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.optim import Optimizer


_optim: Any = torch.optim
_NUM_LAYERS, _WIDTH, _NUM_BATCHES, _NUM_WINDOWS = 110, 32, 7, 10
_LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")


class Lion(torch.optim.Optimizer):
    """The sign of an average, as it is usually written by hand."""

    def __init__(self, weights: Any, lr: float, betas: Any = (0.9, 0.99)) -> None:
        super().__init__(weights, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update all weights."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weight in group["params"]:
                average = self.state[weight].setdefault("average", torch.zeros_like(weight))
                update = average.lerp(weight.grad, 1 - beta1).sign_()
                weight.add_(update, alpha=-group["lr"])
                average.lerp_(weight.grad, 1 - beta2)


class Muon(torch.optim.Optimizer):
    """Orthogonal momentum of matrices by five Newton-Schulz steps; plain momentum of vectors."""

    def __init__(self, weights: Any, lr: float, momentum: float = 0.95) -> None:
        super().__init__(weights, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update all weights."""
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                average = state.setdefault("average", torch.zeros_like(weight))
                average.lerp_(weight.grad, 1 - group["momentum"])
                update = _orthogonal(average) if average.dim() == 2 else average
                weight.add_(update, alpha=-group["lr"])


def _orthogonal(x: torch.Tensor) -> torch.Tensor:
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (2.0315 * square @ square - 4.7750 * square) @ x
    return x


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": partial(_optim.Adam, lr=1e-3),
    "adam-fused": partial(_optim.Adam, lr=1e-3, fused=True),
    "adamw": partial(_optim.AdamW, lr=1e-3),
    "sgd-momentum": partial(_optim.SGD, lr=1e-2, momentum=0.9),
    "adadelta": partial(_optim.Adadelta, lr=1.0),
    "rmsprop": partial(_optim.RMSprop, lr=1e-3),
    "adagrad": partial(_optim.Adagrad, lr=1e-2),
    "nadam": partial(_optim.NAdam, lr=1e-3),
    "lion": partial(Lion, lr=1e-4),
    "muon": partial(Muon, lr=1e-3),
}

WAYS = ("as written", "in place", "whole step")


class Training:
    """One model that trains with an optimizer in one of the ways."""

    def __init__(self, make: Callable[..., Optimizer], way: str, device: torch.device) -> None:
        torch.manual_seed(0)
        layers = [(nn.Linear(_WIDTH, _WIDTH), nn.Tanh()) for _ in range(_NUM_LAYERS)]
        self.model = nn.Sequential(*chain.from_iterable(layers)).to(device)
        self.optimizer = make(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: 0.1 + 0.45 * (1 + math.cos(step / 300))
        )
        draw = torch.Generator().manual_seed(1)
        self.batches = [
            torch.randn(16, _WIDTH, generator=draw).to(device) for _ in range(_NUM_BATCHES)
        ]
        self.device, self.number = device, 0
        self.updates_s: list[float] = []
        self.step: Callable[[torch.Tensor], Any] = self._as_written
        if way == "in place":
            gapless.capture(self.model, self.optimizer, device=device)
        elif way == "whole step":
            self.step = gapless.capture(self._whole, device=device)

    def run(self, num: int) -> float:
        """Train so many steps; return milliseconds a step."""
        self.synchronize()
        start = perf_counter()
        for _ in range(num):
            self.step(self.batches[self.number % _NUM_BATCHES])
            self.schedule.step()
            self.number += 1
        self.synchronize()
        return (perf_counter() - start) * 1e3 / max(num, 1)

    def launches(self) -> int | None:
        """Train one step; return how often the host launches something, None without a GPU."""
        if self.device.type != "cuda":
            self.run(1)
            return None
        with torch.profiler.profile() as profile:
            self.run(1)
        return sum(event.name.startswith(_LAUNCHES) for event in profile.events())

    def left(self) -> Iterator[torch.Tensor]:
        """Yield all that training leaves behind."""
        yield from self.model.parameters()
        for state in self.optimizer.state.values():
            yield from (one for one in state.values() if isinstance(one, torch.Tensor))

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _loss(self, x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.model(x), x.roll(1, 1))

    def _whole(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self._loss(x)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _as_written(self, x: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self._loss(x).backward()
        start = perf_counter()
        self.optimizer.step()
        self.updates_s.append(perf_counter() - start)


def measure(
    name: str, way: str, device: torch.device, *, warm_up: int, steps: int
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Return the figures of one row, and what training left."""
    training = Training(OPTIMIZERS[name], way, device)
    training.run(steps)
    left = [one.detach().clone() for one in training.left()]
    training.run(warm_up if way != WAYS[0] else 0)
    training.updates_s.clear()
    ms = median(training.run(max(1, steps // _NUM_WINDOWS)) for _ in range(_NUM_WINDOWS))
    update_ms = median(training.updates_s) * 1e3 if training.updates_s else None
    found = {"optimizer": name, "way": way, "ms": ms, "update_ms": update_ms}
    return found | {"launches": training.launches()}, left


def rows_of(name: str, device: torch.device, **steps: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of an optimizer, compared with the loop as written."""
    expected: list[torch.Tensor] = []
    plain_ms = 0.0
    for way in WAYS:
        row, left = measure(name, way, device, **steps)
        if way == WAYS[0]:
            expected, plain_ms = left, row["ms"]
        row["gain"] = plain_ms / row["ms"]
        row["same_bits"] = list(map(bits_of, left)) == list(map(bits_of, expected))
        yield row


def bits_of(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor."""
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def line_of(row: dict[str, Any]) -> str:
    """Return a line of the table."""
    update = "" if row["update_ms"] is None else f"{row['update_ms']:.2f}"
    launches = "" if row["launches"] is None else row["launches"]
    bits = "same" if row["same_bits"] else "OTHER"
    return (
        f"{row['optimizer']:14}{row['way']:12}{row['ms']:9.2f}{row['gain']:7.2f}"
        f"{update:>9}{launches:>10}  {bits}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure the chosen optimizers, print the figures and write them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="OPTIMIZERS", default=",".join(OPTIMIZERS))
    parser.add_argument("--warm-up", type=int, default=100)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--jsonl", type=Path)
    options = parser.parse_args(arguments)
    chosen = options.only.split(",")
    unknown = [name for name in chosen if name not in OPTIMIZERS]
    if unknown:
        print(f"unknown {unknown[0]!r}; there are {', '.join(OPTIMIZERS)}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    facts = place_and_time(device.type, module="benchmarks.optimizers")
    print(f"{facts['hardware']}, {facts['versions']}, commit {facts['commit']}")
    print(
        f"{'optimizer':14}{'way':12}{'ms/step':>9}{'gain':>7}{'update':>9}{'launches':>10}  bits"
    )
    rows = []
    # All is captured before it is timed, whatever that costs; what is refused shows in the table.
    allowed = mock.patch.object(account, "ALLOWANCE_S", float("inf"))
    with allowed, warnings.catch_warnings():
        warnings.simplefilter("ignore", gapless.CaptureWarning)
        warnings.filterwarnings("ignore", "Warning: Profiler clears events")
        for name in chosen:
            for row in rows_of(name, device, warm_up=options.warm_up, steps=options.steps):
                print(line_of(row), flush=True)
                rows.append(row)
                if options.jsonl is not None:
                    lines = [json.dumps({"facts": facts}), *map(json.dumps, rows)]
                    options.jsonl.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
