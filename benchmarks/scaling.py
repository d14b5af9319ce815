"""Compute how fast more GPUs train than could be measured: 8 on a host, and 8 hosts of 8.

    PYTHONPATH=src python3 -m benchmarks.scaling --out docs/scaling.md

What goes in was measured on two GPUs by `benchmarks.ranks` (rows `flat` and `no-sum`), but for the
network between hosts, which is assumed. Everything that comes out is computed, and the page says so.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.processes import replace_text
from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# A captured all-reduce of 4 KB takes 10 us on two GPUs, where a ring has two hops.
HOP_MS = 0.005

# Assumed: no network was there to be measured.
NETWORK_HOP_MS = 0.010
NETWORKS = {
    "400 Gb/s a GPU": 50e9,
    "400 Gb/s a host": 6.25e9,
}


# What two GPUs did.
CALLS = Path(__file__).parents[1] / "docs" / "results" / "2026-11-26-h200-ranks.json"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What was measured of a model and its batches.

    Attributes:
        name: for people.
        gradient_bytes: of the model, in fp32.
        all_reduce_ms: of these bytes on two GPUs.
        alone_ms: a step of two GPUs that train captured and sum nothing.
        step_ms: of two GPUs that train the same, and sum all gradients after the backward pass.
        tokens: of the target in a step of one GPU.
    """

    name: str
    gradient_bytes: float
    all_reduce_ms: float
    alone_ms: float
    step_ms: float
    tokens: float

    @property
    def measured_efficiency(self) -> float:
        """Speed of two GPUs over that of two which sum nothing."""
        return self.alone_ms / self.step_ms

    @property
    def tokens_per_second(self) -> float:
        """Speed of one GPU that sums nothing."""
        return self.tokens / self.alone_ms * 1e3

    @property
    def other_ms(self) -> float:
        """What several GPUs take beside the all-reduce: copies, and waits for the later rank."""
        return self.step_ms - self.alone_ms - self.all_reduce_ms

    @property
    def bandwidth(self) -> float:
        """Bytes a second that each of two GPUs sends in the all-reduce, apart from its hops."""
        return ring_bytes(self.gradient_bytes, 2) / (self.all_reduce_ms - 2 * HOP_MS) * 1e3


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Some hosts with some GPUs each.

    Attributes:
        hosts: how many.
        gpus: of each host.
        network: bytes a second that each GPU has between hosts, in each direction.
    """

    hosts: int = 1
    gpus: int = 8
    network: float | None = None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What was measured of two GPUs, and where.

    Attributes:
        place: hardware, date and versions, for people.
        workloads: that were measured.
    """

    place: str
    workloads: tuple[Workload, ...]


def ring_bytes(num_bytes: float, ranks: int) -> float:
    """Return what each rank of a ring sends for an all-reduce: 2 (n - 1) / n of the bytes.

    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", section 3.
    """
    return 2 * (ranks - 1) / ranks * num_bytes


def all_reduce_ms(workload: Workload, machine: Machine) -> float:
    """Return the time of summing all gradients.

    A ring within each host leaves each GPU with the sum of its part, rings between hosts sum these
    parts, and the first ring passes them on. No phase is hidden behind another.

    Args:
        workload: whose gradients are summed.
        machine: that sums them.
    """
    sent = workload.gradient_bytes
    inside = ring_bytes(sent, machine.gpus) / workload.bandwidth * 1e3
    inside += 2 * (machine.gpus - 1) * HOP_MS
    if machine.hosts == 1:
        return inside
    assert machine.network is not None
    between = ring_bytes(sent / machine.gpus, machine.hosts) / machine.network * 1e3
    return inside + between + 2 * (machine.hosts - 1) * NETWORK_HOP_MS


def exposed_ms(workload: Workload, machine: Machine) -> float:
    """Return by how much a step is longer than that of one GPU."""
    return workload.other_ms + all_reduce_ms(workload, machine)


def efficiency(workload: Workload, machine: Machine) -> float:
    """Return the speed over that of as many GPUs alone, 0 to 1."""
    alone = workload.alone_ms
    return alone / (alone + exposed_ms(workload, machine))


def tokens_for(workload: Workload, machine: Machine, *, goal: float) -> float:
    """Return how many tokens a GPU needs in each update for an efficiency, accumulated or not."""
    alone_ms = exposed_ms(workload, machine) * goal / (1 - goal)
    return alone_ms * workload.tokens_per_second / 1e3


# --- where the figures come from ---

_TITLES = {
    "base32": "base, 32 sentences",
    "base8192": "base, 8,192 tokens",
    "big25k": "big, 25,000 tokens",
}


def measured_in(calls: Sequence[dict[str, Any]]) -> Measurement:
    """Return what calls of `benchmarks.ranks` measured of two GPUs, the newest of each case.

    A case whose all-reduce was not traced has that of another with as many bytes, on the same GPUs.

    Args:
        calls: in the order of time.

    Raises:
        UserError: no call has what is needed: the rows `no-sum` and `flat`, with a profile.
    """
    traced: dict[tuple[str, float], float] = {}
    measured = list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]()
    for call in calls:
        rows = {row["name"]: row for row in call["rows"] if not row["problem"] and row["rounds"]}
        alone, summed = rows.get("no-sum"), rows.get("flat")
        if alone and summed and call["gpus"] == 2 and not call["is_tiny"]:
            measured.append((call, alone, summed))
            if summed["collective_ms_per_step"]:
                traced[_sent(call, summed)] = summed["collective_ms_per_step"]
    found: dict[str, tuple[str, Workload]] = {}
    for call, alone, summed in measured:
        all_reduce_ms = traced.get(_sent(call, summed))
        if all_reduce_ms is not None:
            place = f"{call['gpus']} x {call['hardware']}, {call['versions']}, {call['date']}"
            workload = _workload(call["case"], alone, summed, all_reduce_ms=all_reduce_ms)
            found[call["case"]] = place, workload
    if not found:
        raise UserError(
            "no call has the rows no-sum and flat of two GPUs with a profile; measure them by "
            "python -m benchmarks.ranks --only captured,flat,no-sum"
        )
    places = dict.fromkeys(place for place, _ in found.values())
    return Measurement(
        place="; ".join(places),
        workloads=tuple(found[case][1] for case in _TITLES if case in found),
    )


def _sent(call: dict[str, Any], row: dict[str, Any]) -> tuple[str, float]:
    return call["hardware"], row["setup"]["gradient_bytes"]


def _workload(
    case: str, alone: dict[str, Any], summed: dict[str, Any], *, all_reduce_ms: float
) -> Workload:
    step_ms = summed["ms_per_step"]["median"]
    return Workload(
        name=_TITLES[case],
        gradient_bytes=summed["setup"]["gradient_bytes"],
        all_reduce_ms=all_reduce_ms,
        alone_ms=alone["ms_per_step"]["median"],
        step_ms=step_ms,
        tokens=summed["tokens_per_second"]["median"] / 2 * step_ms / 1e3,
    )


# --- the page ---


def page(measured: Measurement) -> str:
    """Return docs/scaling.md."""
    workloads = measured.workloads
    host = Machine()
    many = {name: Machine(hosts=8, network=network) for name, network in NETWORKS.items()}
    return "\n".join(
        [
            *_INTRODUCTION,
            f"Measured on: {measured.place}.",
            "",
            "## Two GPUs (measured)",
            "",
            *_table(
                ("", "gradients", "step alone", "all-reduce", "other", "efficiency"),
                (
                    (
                        workload.name,
                        f"{workload.gradient_bytes / 1e6:.0f} MB",
                        f"{workload.alone_ms:.1f} ms",
                        f"{workload.all_reduce_ms:.2f} ms, {workload.bandwidth / 1e9:.0f} GB/s",
                        f"{workload.other_ms:.1f} ms",
                        f"{workload.measured_efficiency:.1%}",
                    )
                    for workload in workloads
                ),
            ),
            *_FORMULA,
            "## One host with 8 GPUs (computed)",
            "",
            *_table(
                ("", "all-reduce", "efficiency"),
                (
                    (
                        workload.name,
                        f"{all_reduce_ms(workload, host):.1f} ms",
                        f"{efficiency(workload, host):.0%}",
                    )
                    for workload in workloads
                ),
            ),
            "## 8 hosts with 8 GPUs each (computed)",
            "",
            *_NETWORK,
            *_table(
                ("all-reduce / efficiency", *many),
                (
                    (
                        workload.name,
                        *(
                            f"{all_reduce_ms(workload, machine):.1f} ms / "
                            f"{efficiency(workload, machine):.0%}"
                            for machine in many.values()
                        ),
                    )
                    for workload in workloads
                ),
            ),
            "## How large an update must be (computed)",
            "",
            "Tokens that each GPU needs in an update for an efficiency of 90 %, in one batch or, with",
            "`--accumulate`, in several:",
            "",
            *_table(
                ("", "2 GPUs", "8 GPUs", *(f"64 GPUs, {name}" for name in many)),
                (
                    (
                        workload.name,
                        *(
                            f"{tokens_for(workload, machine, goal=0.9):,.0f}"
                            for machine in (Machine(gpus=2), host, *many.values())
                        ),
                    )
                    for workload in workloads
                ),
            ),
            *_LEFT_OUT,
        ]
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


_INTRODUCTION = (
    "# More GPUs than were measured",
    "",
    "This page is **computed** from times of two GPUs by `python -m benchmarks.scaling`. Only the first table",
    "was measured: captured steps in bf16, gradients summed in fp32 after the backward pass. Each GPU has a",
    "batch of its own, and efficiency is speed over that of as many GPUs that sum nothing.",
    "",
)

_FORMULA = (
    "`other` is what a step takes longer beside the all-reduce: gradients are copied together, and a rank",
    "waits for the later one.",
    "",
    "## The formula",
    "",
    "```",
    "step       = step alone + other + all-reduce",
    "efficiency = step alone / step",
    "all-reduce = 2 (g - 1) / g * S / B  +  2 (g - 1) * 5 us                         within a host",
    "           + 2 (h - 1) / h * S / g / N  +  2 (h - 1) * 10 us                    between hosts",
    "```",
    "",
    "S are the bytes that are sent, g the GPUs of a host, h the hosts, B the bandwidth of the first table,",
    "and N that of the network for each GPU. The first term is a ring's: each GPU sends 2 (g - 1) / g of the",
    "bytes. Between hosts each GPU sums its own part, 1 / g of the bytes. A hop of 5 us is measured: a captured",
    "all-reduce of 4 KB takes 10 us on two GPUs.",
    "",
)

_NETWORK = (
    "N is **assumed** to be the nominal speed of the network, and a hop to take 10 us.",
    "",
)

_LEFT_OUT = (
    "## What the formula leaves out",
    "",
    "- Of many ranks the slowest one counts. `other` has the waits of two.",
    "- All GPUs of a host are taken to have the bandwidth of two, as behind an NVSwitch.",
    "- NCCL may choose trees or the switch's own sums (NVLS), or let phases overlap: faster than computed.",
    "- Loading, saving and validation are not in a step.",
    "",
)


def _read(path: Path) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return calls


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or print it; return 0, or 2 if there are no figures for it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--calls", type=Path, default=CALLS, help="file of benchmarks.ranks")
    parser.add_argument("--out", type=Path, help="file for the page; none: it is printed")
    options = parser.parse_args(arguments)
    try:
        text = page(measured_in(_read(options.calls)))
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.out is None:
        print(text)
    else:
        replace_text(options.out, text)
        print(f"written: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
