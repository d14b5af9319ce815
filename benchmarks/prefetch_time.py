"""What `prefetch` costs the loop's own thread, and whole loops with it and its peers.

    PYTHONPATH=src python3 -m benchmarks.prefetch_time [--only host,loops] [--json FILE]

host    the time from one batch to the next in a loop whose body does nothing, until the last batch
        was handed out ("host") and until all copies are done ("total"). Each case is taken from a
        list and from a generator, which might fill its memory again.
loops   a loop whose loader is slow and one whose device is, with each batch moved by `to`, by
        `prefetch`, by Accelerate's loader and by torchtnt's prefetcher, where they are installed.

Rows take turns, in rounds that begin with another one.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import torch

import gapless
from benchmarks.facts import place_and_time


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Batches = Iterable[Any]


MEGABYTE = 1 << 20


def main() -> None:
    """Run the cases that were asked for, and print and keep their figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="host,loops", help="host, loops")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--json", type=Path, help="file to add the figures to")
    args = parser.parse_args()
    device = torch.device(args.device)
    wanted = args.only.split(",")
    found: list[dict[str, Any]] = []
    if "host" in wanted:
        found += host_times(device, rounds=args.rounds, count=args.batches)
    if "loops" in wanted:
        found += loop_times(device, rounds=args.rounds, count=args.batches)
    if args.json is not None:
        keep(args.json, place_and_time(args.device, module="benchmarks.prefetch_time"), found)


def keep(path: Path, facts: dict[str, str], found: list[dict[str, Any]]) -> None:
    """Add figures to a file, each with the place and time of its measurement."""
    before = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*before, *[{**facts, **row} for row in found]], indent=1) + "\n")


# --- the loop's own thread ---


def host_cases(*, can_pin: bool) -> dict[str, tuple[list[Any], int]]:
    """Return batches by name, and how many passes over them count as one."""
    pin: Callable[[torch.Tensor], torch.Tensor] = (
        torch.Tensor.pin_memory if can_pin else torch.clone
    )
    small = [(torch.randn(64, 32), torch.arange(64)) for _ in range(4)]
    many = [{f"part{n}": torch.randn(64, 8) for n in range(40)} for _ in range(4)]
    image = [(torch.randn(128, 3, 32, 32), torch.arange(128)) for _ in range(4)]
    pageable = [(torch.randn(6 * MEGABYTE // 4),) for _ in range(4)]
    pinned = [(pin(torch.randn(64 * MEGABYTE // 4)),) for _ in range(3)]
    return {
        "2 small tensors": (small, 1),
        "40 small tensors": (many, 1),
        "images of 1.5 MB, and labels": (image, 1),
        "6 MB pageable": (pageable, 1),
        "64 MB pinned": (pinned, 4),
    }


def host_times(device: torch.device, *, rounds: int, count: int) -> list[dict[str, Any]]:
    """Time the loop's own thread for a batch, moved by `to` and by `prefetch`."""
    found = []
    for name, (batches, share) in host_cases(can_pin=device.type == "cuda").items():
        many = (batches * (count // len(batches) + 1))[: max(count // share, 3)]
        for source in ("list", "generator"):
            taken: dict[str, list[tuple[float, float]]] = {"to": [], "prefetch": []}
            ways: dict[str, Callable[[Batches], Batches]] = {
                "to": lambda loader: moved(loader, device),
                "prefetch": lambda loader: gapless.prefetch(loader, device),
            }
            for number in range(rounds + 2):
                for way in list(ways)[:: 1 if number % 2 else -1]:
                    loader = many if source == "list" else (batch for batch in many)
                    one = times_of(ways[way](loader), len(many), device)
                    if number >= 2:
                        taken[way].append(one)
            row = {"case": name, "loader": source, "rounds": rounds, "batches": len(many)}
            for way, times in taken.items():
                for part, values in zip(("host", "total"), zip(*times, strict=True), strict=True):
                    row[f"{way} {part} us"] = spread(values)
            found.append(row)
            print(described(row), flush=True)
    return found


def moved(loader: Batches, device: torch.device) -> Iterator[Any]:
    """Move batches as a loop is usually written to."""
    for batch in loader:
        if isinstance(batch, dict):
            yield {name: part.to(device, non_blocking=True) for name, part in batch.items()}
        else:
            yield tuple([part.to(device, non_blocking=True) for part in batch])


def times_of(batches: Batches, count: int, device: torch.device) -> tuple[float, float]:
    """Return microseconds a batch, for the host alone and until all copies are done."""
    synchronize(device)
    start = perf_counter()
    for _batch in batches:
        pass
    host = perf_counter() - start
    synchronize(device)
    return host / count * 1e6, (perf_counter() - start) / count * 1e6


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return the median and the quartiles."""
    values = list(values)
    low, _, high = quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return {"median": median(values), "low": low, "high": high}


def described(row: dict[str, Any]) -> str:
    """Return a case in one line."""
    parts = [
        f"{name[:-3]} {value['median']:.1f} us"
        for name, value in row.items()
        if isinstance(value, dict)
    ]
    return f"{row['case']}, {row['loader']}: {', '.join(parts)}"


# --- whole loops ---


class SlowData(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Rows that take a while to make.

    Args:
        length: number of batches.
        wait_ms: for each.
    """

    def __init__(self, length: int, wait_ms: float) -> None:
        self._length = length
        self._wait_ms = wait_ms
        self._x = torch.randn(512, 3072)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._wait_ms:
            sleep(self._wait_ms / 1000.0)
        return self._x.clone(), torch.full((512,), number)


def loop_times(device: torch.device, *, rounds: int, count: int) -> list[dict[str, Any]]:
    """Time whole loops on batches of 6 MB, each moved in several ways."""
    found = []
    for name, wait_ms, repeats in (("data-bound", 3.0, 2), ("device-bound", 0.0, 60)):
        loader = torch.utils.data.DataLoader(SlowData(count, wait_ms), batch_size=None)
        weight = torch.randn(3072, 3072, device=device) / 55
        taken: dict[str, list[float]] = {}
        ways = loop_ways(loader, device)
        for number in range(rounds + 1):
            for way in list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]:
                synchronize(device)
                start = perf_counter()
                for x, _labels in ways[way]():
                    for _ in range(repeats):
                        x = x @ weight
                synchronize(device)
                if number:
                    taken.setdefault(way, []).append((perf_counter() - start) / count * 1e6)
        row = {"case": name, "loader": "DataLoader", "rounds": rounds, "batches": count}
        row |= {f"{way} us": spread(values) for way, values in taken.items()}
        found.append(row)
        print(described(row), flush=True)
    return found


def loop_ways(loader: Any, device: torch.device) -> dict[str, Callable[[], Batches]]:
    """Return what gives the batches on the device, by the name of who moves them."""
    ways: dict[str, Callable[[], Batches]] = {
        "to": lambda: moved(loader, device),
        "prefetch": lambda: gapless.prefetch(loader, device),
        "prefetch, depth 2": lambda: gapless.prefetch(loader, device, depth=2),
    }
    try:
        from accelerate.data_loader import prepare_data_loader

        prepared = prepare_data_loader(loader, device, put_on_device=True, non_blocking=True)
        ways["accelerate"] = lambda: prepared
    except ImportError as error:
        print(f"without Accelerate: {error}", file=sys.stderr)
    try:
        from torchtnt.utils.data.data_prefetcher import CudaDataPrefetcher

        ways["torchtnt"] = lambda: CudaDataPrefetcher(loader, device, 2)
    except ImportError as error:
        print(f"without torchtnt: {error}", file=sys.stderr)
    return ways


if __name__ == "__main__":
    main()
