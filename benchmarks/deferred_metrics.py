"""What it costs the host to keep the losses and metrics of a step, beside sums by hand.

    PYTHONPATH=src python3 -m benchmarks.deferred_metrics --out deferred_metrics.json

The values of a step are there before it begins, so that nothing but keeping them is timed. Rows take
turns, so many steps each, in rounds that begin with another one; copies to the host, one for every
512 steps, and reading them are in the time, the last wait is not. Kernels are counted in a trace.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import torch

import gapless
from benchmarks.facts import place_and_time
from gapless.device.find import find_device


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.device.base import Device


NAMES = ("loss", "accuracy", "norm", "tokens")
MIXED = (torch.float32, torch.bfloat16, torch.float64, torch.int64)

_TRACED = 100


class Keeper(Protocol):
    """Keeps the values of steps."""

    def step(self) -> None:
        """Keep those of one step."""

    def finish(self) -> None:
        """Wait for the device, and forget them."""


class Deferred:
    """What `gapless.DeferredLoss` does.

    Args:
        device: where the values are.
        values: of each step, by name; one named `loss` alone is given by position.
        weight: of each step.
        is_shown: `latest` is asked for at each step, as for a progress bar.
    """

    def __init__(
        self,
        device: Device,
        values: dict[str, torch.Tensor],
        *,
        weight: torch.Tensor | float = 32.0,
        is_shown: bool = False,
    ) -> None:
        self._losses = gapless.DeferredLoss(device)
        self._values, self._weight, self._is_shown = values, weight, is_shown

    def step(self) -> None:
        """Add them."""
        if len(self._values) == 1:
            self._losses.add(self._values["loss"], weight=self._weight)
        else:
            self._losses.add(**self._values, weight=self._weight)
        if self._is_shown:
            self._losses.latest()

    def finish(self) -> None:
        """Read all, and begin anew."""
        self._losses.reset()


class Sums:
    """Sums on the device by hand: means without weights, and no history.

    Args:
        device: where the values are.
        values: of each step, by name.
    """

    def __init__(self, device: Device, values: dict[str, torch.Tensor]) -> None:
        self._device = device
        self._values = values
        self._totals = {
            name: torch.zeros((), dtype=torch.float64, device=device.torch_device)
            for name in values
        }

    def step(self) -> None:
        """Add each to its sum."""
        for name, value in self._values.items():
            self._totals[name] += value.detach()

    def finish(self) -> None:
        """Wait for the sums."""
        self._device.synchronize_stream(self._device.current_stream())


def rows(device: Device) -> dict[str, Callable[[], Keeper]]:
    """Return what is measured, by name."""
    same, mixed = (
        {
            name: torch.ones((), dtype=dtype, device=device.torch_device)
            for name, dtype in zip(NAMES, dtypes, strict=True)
        }
        for dtypes in ([torch.float32] * 4, MIXED)
    )
    one = {"loss": torch.ones((), device=device.torch_device, requires_grad=True) * 2}
    weight = torch.tensor(32, device=device.torch_device)
    return {
        "add, one value": lambda: Deferred(device, one),
        "add, one value, weight on the device": lambda: Deferred(device, one, weight=weight),
        "add, four values": lambda: Deferred(device, same),
        "add, four values of four dtypes": lambda: Deferred(device, mixed),
        "add, one value, and latest": lambda: Deferred(device, one, is_shown=True),
        "total += loss.detach(), one value": lambda: Sums(device, one),
        "total += loss.detach(), four values": lambda: Sums(device, same),
    }


def measure(device: Device, *, steps: int, rounds: int) -> dict[str, Any]:
    """Return microseconds of each row, by round, and the kernels of a step."""
    keepers = {name: make() for name, make in rows(device).items()}
    for keeper in keepers.values():
        # Kernels are loaded, and all rows of the ring have been used.
        _step_us(keeper, 1100)
    names = list(keepers)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            times[name].append(_step_us(keepers[name], steps))
    return {
        name: {
            "us": median(times[name]),
            "middle_half_us": _middle(times[name]),
            "kernels": _kernels_of_a_step(device, keepers[name]),
            "rounds_us": times[name],
        }
        for name in names
    }


def _step_us(keeper: Keeper, steps: int) -> float:
    step = keeper.step
    start = perf_counter()
    for _ in range(steps):
        step()
    us = (perf_counter() - start) * 1e6 / steps
    keeper.finish()
    return us


def _middle(times: list[float]) -> list[float]:
    found = quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    return [found[0], found[2]]


def _kernels_of_a_step(device: Device, keeper: Keeper) -> float | None:
    """Return how many kernels a step launches; None without a GPU."""

    def work() -> None:
        for _ in range(_TRACED):
            keeper.step()
        keeper.finish()

    trace = device.trace_kernels(work)
    return None if trace is None else trace.num_kernels / _TRACED


def table(facts: dict[str, Any]) -> str:
    """Return the figures in lines."""
    lines = [
        f"{facts['hardware']}, {facts['versions']}, commit {facts['commit']}",
        f"{'microseconds of the host a step':40}{'median':>8}{'middle half':>16}{'kernels':>9}",
    ]
    for name, row in facts["rows"].items():
        low, high = row["middle_half_us"]
        kernels = "-" if row["kernels"] is None else f"{row['kernels']:.2f}"
        lines.append(f"{name:40}{row['us']:8.1f}{f'{low:.1f} to {high:.1f}':>16}{kernels:>9}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every row, print the figures and write them; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.deferred_metrics", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    device = find_device(options.device)
    facts: dict[str, Any] = {
        **place_and_time(options.device, module="benchmarks.deferred_metrics"),
        "steps": options.steps,
        "rows": measure(device, steps=options.steps, rounds=options.rounds),
    }
    print(table(facts))
    if options.out is not None:
        options.out.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
