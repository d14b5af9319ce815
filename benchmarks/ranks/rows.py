"""The rows of the table: what each is called, how many ranks it has, and how a rank is made."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import yaml

from benchmarks.peers.cases import PLAIN_LAYOUT
from gapless.errors import UserError
from gapless.nmt.settings.config import TrainConfig


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

# What one GPU does under `gapless train`, with which several are compared.
CAPTURED = "captured"


def make_rank(case: Case, device: Device, *, name: str) -> Peer:
    """Build a rank of a row by its name; the environment is that of torchrun."""
    row = row_named(name)
    return row.make(case, device, row)


def row_named(text: str) -> RankRow:
    """Return a row by its name, to which settings of `gapless train` may be added.

    Args:
        text: such as `flat` or `flat+accumulate=2+compile=false`.

    Raises:
        UserError: there is no such row or setting, or the row is not one of gapless.
    """
    name, *added = text.split("+")
    rows = {row.name: row for row in all_rows()}
    if name not in rows:
        raise UserError(f"unknown row {name!r}; the rows are {', '.join(rows)}")
    row = rows[name]
    if not added:
        return row
    if row.make not in (_captured, _silent, _eager):
        raise UserError(f"row {name!r} is not one of gapless, so {text!r} has no meaning")
    settings = row.settings | dict(_setting(one) for one in added)
    alone = text if row.is_alone else row.alone
    title = ", ".join([row.title, *(one.replace("=", " ") for one in added)])
    return replace(row, name=text, title=title, alone=alone, settings=settings)


def _setting(text: str) -> tuple[str, Any]:
    """Return name and value of a setting that is written as `name=value`, the value as in YAML."""
    name, _, value = text.partition("=")
    if name not in {item.name for item in fields(TrainConfig)}:
        raise UserError(f"unknown setting {name!r} of `gapless train`, named in {text!r}")
    return name, yaml.safe_load(value)


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
        RankRow(
            name="flat",
            title="gapless, captured, summed at once after the backward pass",
            alone=CAPTURED,
            make=_captured,
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
