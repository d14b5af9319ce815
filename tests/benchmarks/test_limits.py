"""What the captured plan does on a device: figures, tables, files."""

from __future__ import annotations

import json

import pytest
import torch
from benchmarks.limits import main, rows_of
from benchmarks.peers.cases import TINY, big25k
from benchmarks.peers.gapless_peer import GaplessPeer
from benchmarks.peers.window import Window

from benchmarks import limits_report
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
        ("packed attention", attention, "_KERNEL"),
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


def a_round(**figures):
    return {
        "steps": 10,
        "seconds": 0.5,
        "target_tokens": 1000,
        "source_tokens": 2000,
        "sentences": 50,
        "model_flops": 5e12,
        "padding_share": 0.01,
        "gap_share": 0.25,
        "host_waits": {"epoch_end": {"count": 1}},
        "capture": None,
        "peak_memory_bytes": 1,
        "held_memory_bytes": 2**30,
        **figures,
    }


def test_figures_are_medians_over_rounds():
    """Speeds by wall time, utilisation by the peak, busy share by the step of the rounds."""
    rounds = [a_round(), a_round(seconds=1.0), a_round(seconds=0.25, gap_share=0.5)]
    found = {
        "setup": {"warm_up_seconds": 3.0},
        "rounds": rounds,
        "profile": {"busy_ms_per_step": 40.0, "costliest_kernels": []},
        "problem": None,
    }

    row = limits_report.summarize("x", "a row", found, peak_tflops=100.0)

    assert row["ms_per_step"] == {"median": 50.0, "min": 25.0, "max": 100.0}
    assert row["target_tokens_per_second"]["median"] == 2000.0
    assert row["model_tflops"]["median"] == 10.0
    assert row["utilisation"] == pytest.approx(0.1)
    assert row["busy_share"] == pytest.approx(0.8)
    assert row["gap_share"] == 0.25


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cases", "huge"], "unknown case 'huge'; the cases are base32, base8192, big25k"),
        (["--only", "fast"], "unknown row 'fast'; the rows are padded, eager, captured, compiled"),
        (["--cases", "big25k", "--data", "no/such"], "no/such"),
    ],
)
def test_a_mistake_is_told_in_one_line(tmp_path, capsys, options, message):
    """Nothing is run; exit code 2."""
    assert main([*OPTIONS, "--out", str(tmp_path), *options]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
