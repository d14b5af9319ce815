"""What the captured plan does on a device: figures, tables, files."""

from __future__ import annotations

import json

import pytest
import torch
from benchmarks.limits import main, rows_of
from benchmarks.peers.cases import TINY, big25k
from benchmarks.peers.gapless_peer import GaplessPeer
from benchmarks.peers.window import Window

from gapless.device.find import find_device
from gapless.nmt.model import attention
from gapless.nmt.model.loss import LabelSmoothing


def tiny_big25k(**settings):
    return big25k(workers=0, precision="fp32", vocab_size=1_000, **TINY, **settings)


OPTIONS = ["--tiny", "--device", "cpu", "--workers", "0", "--precision", "fp32"]
OPTIONS += ["--rounds", "2", "--warmup", "1", "--steps", "2"]


@pytest.mark.slow
def test_a_row_has_its_figures_in_both_files(tmp_path, capsys):
    """Packed eager rows of the big case, in a process of their own."""
    chosen = ["--cases", "big25k", "--only", "eager", "--out", str(tmp_path)]

    assert main([*OPTIONS, *chosen]) == 0

    facts = json.loads((tmp_path / "limits.json").read_text(encoding="utf-8"))
    (case,) = facts["cases"]
    (row,) = case["rows"]
    assert [r["steps"] for r in row["rounds"]] == [2, 2]
    assert 0.0 < row["padding_share"] < 0.2
    assert row["setup"]["layout"].startswith("packed into ")
    assert row["utilisation"] is None
    table = (tmp_path / "limits.md").read_text(encoding="utf-8")
    assert "| packed, eager | " in table
    printed = capsys.readouterr().out
    assert table in printed
    assert "big25k eager: round 2: " in printed


def test_rows_of_a_case_have_the_same_loss():
    """Padded, packed, and under the captured plan, of a step without dropout on all pairs."""
    case = tiny_big25k(num_pairs=300, target_tokens=10_000, dropout=0.0)
    device = find_device("cpu")
    losses = []
    for row in rows_of(case)[:3]:
        peer = GaplessPeer(case, device, plan=row.plan, layout=row.layout)
        peer.setup()
        window = Window(device=device, warmup=0, steps=1)
        peer.run(window, first=0)
        losses.append(window.loss)

    assert losses == pytest.approx([losses[0]] * 3, rel=0.01)


@pytest.mark.parametrize(
    ("what", "owner", "name"),
    [
        ("chunked loss", LabelSmoothing, "of_hidden"),
        ("fused optimizer", torch.optim, "AdamW"),
        ("packed attention", attention, "_is_for_kernel"),
    ],
)
def test_what_is_taken_away_changes_no_loss(monkeypatch, what, owner, name):
    """It is another way to compute the same, and is really another."""
    case = tiny_big25k(num_pairs=300, target_tokens=2_000)
    layout = rows_of(case)[1].layout
    device = find_device("cpu")
    losses, found = [], getattr(owner, name)
    # Put back afterwards.
    monkeypatch.setattr(owner, name, found)
    for without in (None, what):
        peer = GaplessPeer(case, device, plan="gapless", layout=layout, without=without)
        peer.setup()
        window = Window(device=device, warmup=0, steps=3)
        peer.run(window, first=0)
        losses.append(window.loss)

    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert getattr(owner, name) is not found
