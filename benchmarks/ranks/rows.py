"""The rows of the table: what each is called, how many ranks it has, and how a rank is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.peers.cases import PLAIN_LAYOUT


if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers.cases import Case
    from benchmarks.peers.parts import Peer
    from gapless.device.base import Device


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """One row.

    Attributes:
        name: for `--only`.
        title: for people.
        alone: name of the row of one GPU that it is compared with; itself, if it is one.
        make: builds the rank of this process; imports its framework, which need not be installed
            for other rows.
        settings: of `gapless train` that are its own, for rows of gapless.
    """

    name: str
    title: str
    alone: str
    make: Callable[[Case, Device, RankRow], Peer]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def is_alone(self) -> bool:
        """Whether it has one GPU."""
        return self.alone == self.name


# The row without communication: what others take longer than it is exposed.
SILENT = "no-sum"

# What one GPU does under `gapless train`, with which its ways to sum are compared.
CAPTURED = "captured"

# Ways to sum gradients in a captured step, by the settings of `gapless train`.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "flat": ("summed at once after the backward pass", {}),
}


def make_rank(case: Case, device: Device, *, name: str) -> Peer:
    """Build a rank of a row by its name; the environment is that of torchrun."""
    row = next(row for row in all_rows() if row.name == name)
    return row.make(case, device, row)


def all_rows() -> list[RankRow]:
    """Return every row, those of one GPU first."""
    return [
        _alone("plain", "PyTorch loop", _ddp),
        _alone("accelerate", "Accelerate", _accelerate),
        _alone(CAPTURED, "gapless, captured", _captured),
        RankRow(name="ddp", title="PyTorch loop, DDP", alone="plain", make=_ddp),
        RankRow(
            name="accelerate-ddp",
            title="Accelerate, its DDP",
            alone="accelerate",
            make=_accelerate,
        ),
        RankRow(name="eager", title="gapless, eager, padded", alone="plain", make=_eager),
        *(
            RankRow(
                name=name,
                title=f"gapless, captured, {title}",
                alone=CAPTURED,
                make=_captured,
                settings=settings,
            )
            for name, (title, settings) in WAYS.items()
        ),
        RankRow(
            name=SILENT,
            title="gapless, captured, nothing summed",
            alone=CAPTURED,
            make=_silent,
        ),
    ]


def _alone(name: str, title: str, make: Callable[[Case, Device, RankRow], Peer]) -> RankRow:
    return RankRow(name=name, title=f"{title}, one GPU", alone=name, make=make)


def _ddp(case: Case, device: Device, row: RankRow) -> Peer:
    from benchmarks.peers.plain import PlainPeer
    from benchmarks.ranks.ddp import DdpPeer

    return PlainPeer(case, device, read_every=50) if row.is_alone else DdpPeer(case, device)


def _accelerate(case: Case, device: Device, row: RankRow) -> Peer:
    from benchmarks.peers.accelerate_peer import AcceleratePeer
    from benchmarks.ranks.accelerate_ddp import AccelerateDdpPeer

    return (AcceleratePeer if row.is_alone else AccelerateDdpPeer)(case, device)


def _captured(case: Case, device: Device, row: RankRow) -> Peer:
    from benchmarks.ranks.gapless_ranks import GaplessRank

    return GaplessRank(case, device, plan="captured", layout=row.settings)


def _eager(case: Case, device: Device, row: RankRow) -> Peer:
    from benchmarks.ranks.gapless_ranks import GaplessRank

    return GaplessRank(case, device, plan="gapless", layout=PLAIN_LAYOUT | row.settings)


def _silent(case: Case, device: Device, row: RankRow) -> Peer:
    from benchmarks.ranks.gapless_ranks import GaplessRank

    return GaplessRank(case, device, plan="captured", layout=row.settings, sums=False)
