"""The rows of the table: what each is called and how it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.peers.cases import PLAIN_LAYOUT
from gapless.plans import PLANS


if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers.cases import Case
    from benchmarks.peers.parts import Peer
    from gapless.device.base import Device


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row.

    Attributes:
        name: for `--only`.
        title: for people.
        make: builds it; imports its framework, which need not be installed for other rows.
    """

    name: str
    title: str
    make: Callable[[Case, Device], Peer]


def make_peer(case: Case, device: Device, *, name: str, compiled_shapes: int) -> Peer:
    """Build a row by its name, which unlike the row itself can be sent to another process."""
    return next(r for r in all_rows(compiled_shapes=compiled_shapes) if r.name == name).make(
        case, device
    )


def all_rows(*, compiled_shapes: int) -> list[Row]:
    """Return every row, peers first."""
    return [*_peers(compiled_shapes), *_plans()]


def _peers(compiled_shapes: int) -> list[Row]:
    return [
        Row(name="plain", title="PyTorch loop, loss.item() each step", make=_plain(1)),
        Row(name="plain-50", title="PyTorch loop, loss read every 50", make=_plain(50)),
        Row(name="accelerate", title="Accelerate", make=_accelerate(item_each_step=False)),
        Row(
            name="accelerate-item",
            title="Accelerate, loss.item() each step",
            make=_accelerate(item_each_step=True),
        ),
        Row(name="lightning", title="Lightning", make=_lightning(progress_bar=True)),
        Row(
            name="lightning-quiet",
            title="Lightning, no progress bar",
            make=_lightning(progress_bar=False),
        ),
        Row(name="seq2seq", title="Seq2SeqTrainer", make=_seq2seq(marian=False)),
        Row(name="seq2seq-marian", title="Seq2SeqTrainer, MarianMT", make=_seq2seq(marian=True)),
        Row(
            name="compiled",
            title=f'torch.compile, "reduce-overhead", {compiled_shapes} shapes',
            make=_compiled(compiled_shapes),
        ),
    ]


def _plans() -> list[Row]:
    rows = [
        Row(name=name, title=f"gapless, plan {name}", make=_gapless(name, PLAIN_LAYOUT))
        for name in ("blocking", "gapless")
    ]
    eager: dict[str, Any] = {"pack": False, "fixed_shapes": True, "compile": False}
    rows += [
        Row(
            name="captured-eager",
            title="gapless, plan captured, padded, layers not compiled",
            make=_gapless("captured", eager),
        ),
        *(
            Row(
                name=name,
                title=f"gapless, plan {name}, as gapless train",
                make=_gapless(name, None),
            )
            for name in ("captured", "auto")
            if name in PLANS
        ),
    ]
    return rows


def _plain(read_every: int) -> Callable[[Case, Device], Peer]:
    def make(case: Case, device: Device) -> Peer:
        from benchmarks.peers.plain import PlainPeer

        return PlainPeer(case, device, read_every=read_every)

    return make


def _compiled(max_shapes: int) -> Callable[[Case, Device], Peer]:
    def make(case: Case, device: Device) -> Peer:
        from benchmarks.peers.plain import CompiledPeer

        return CompiledPeer(case, device, max_shapes=max_shapes)

    return make


def _accelerate(*, item_each_step: bool) -> Callable[[Case, Device], Peer]:
    def make(case: Case, device: Device) -> Peer:
        from benchmarks.peers.accelerate_peer import AcceleratePeer

        return AcceleratePeer(case, device, item_each_step=item_each_step)

    return make


def _lightning(*, progress_bar: bool) -> Callable[[Case, Device], Peer]:
    def make(case: Case, device: Device) -> Peer:
        from benchmarks.peers.lightning_peer import LightningPeer

        return LightningPeer(case, device, progress_bar=progress_bar)

    return make


def _seq2seq(*, marian: bool) -> Callable[[Case, Device], Peer]:
    def make(case: Case, device: Device) -> Peer:
        from benchmarks.peers.seq2seq_peer import Seq2SeqPeer

        return Seq2SeqPeer(case, device, marian=marian)

    return make


def _gapless(plan: str, layout: dict[str, Any] | None) -> Callable[[Case, Device], Peer]:
    def make(case: Case, device: Device) -> Peer:
        from benchmarks.peers.gapless_peer import GaplessPeer

        return GaplessPeer(case, device, plan=plan, layout=layout)

    return make
