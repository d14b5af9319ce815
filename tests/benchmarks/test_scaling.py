"""What is computed of more GPUs than were measured: the formula, and the page that it fills."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.scaling import (
    CALLS,
    Machine,
    all_reduce_ms,
    efficiency,
    exposed_ms,
    main,
    measured_in,
    page,
    ring_bytes,
    tokens_for,
)


ROOT = Path(__file__).parents[2]

HOST = Machine(gpus=8)
MANY = Machine(hosts=8, gpus=8, network=50e9)

MEASURED = measured_in(json.loads(CALLS.read_text(encoding="utf-8")))
of_each = pytest.mark.parametrize(
    "workload", MEASURED.workloads, ids=lambda workload: workload.name
)


@of_each
def test_of_two_gpus_the_formula_gives_what_was_measured(workload):
    """Nothing is computed where something was measured."""
    two = Machine(gpus=2)

    assert all_reduce_ms(workload, two) == pytest.approx(workload.all_reduce_ms)
    assert efficiency(workload, two) == pytest.approx(workload.measured_efficiency)


@pytest.mark.parametrize(("ranks", "factor"), [(1, 0.0), (2, 1.0), (4, 1.5), (8, 1.75)])
def test_a_ring_sends_twice_what_a_rank_has_not(ranks, factor):
    """Each rank sends all parts but one, first as sums under way and then as whole ones."""
    assert ring_bytes(100.0, ranks) == 100.0 * factor


@of_each
def test_hosts_add_a_ring_of_a_part_of_the_bytes(workload):
    """Eight GPUs share the gradients between hosts: each sends an eighth of a ring of eight."""
    added = all_reduce_ms(workload, MANY) - all_reduce_ms(workload, HOST)

    sent_ms = 1.75 * workload.gradient_bytes / 8 / 50e9 * 1e3
    assert added == pytest.approx(sent_ms + 14 * 0.010)


@of_each
def test_an_update_of_the_tokens_of_the_table_has_the_efficiency(workload):
    """A step alone that is as long as those tokens take, nine times what is exposed."""
    alone_ms = tokens_for(workload, HOST, goal=0.9) / workload.tokens_per_second * 1e3

    assert alone_ms / (alone_ms + exposed_ms(workload, HOST)) == pytest.approx(0.9)


def call(case, *, step_ms, hardware="GPU", all_reduce_ms=1.0, gradient_bytes=1e8, **more):
    """A call of `benchmarks.ranks` with the figures that count."""
    alone = {"name": "no-sum", "ms_per_step": {"median": 0.8 * step_ms}}
    summed = {
        "name": "flat",
        "ms_per_step": {"median": step_ms},
        "tokens_per_second": {"median": 1000.0},
        "collective_ms_per_step": all_reduce_ms,
        "setup": {"gradient_bytes": gradient_bytes},
    }
    rows = [row | {"problem": None, "rounds": [{}]} for row in (alone, summed)]
    facts = {"hardware": hardware, "versions": "torch", "date": "today", "gpus": 2}
    return {**facts, "case": case, "is_tiny": False, "rows": rows, **more}


def test_figures_come_from_the_newest_call_of_each_case():
    """In the order of the table; tiny models and calls without the rows do not count."""
    calls = [
        call("big25k", step_ms=99.0),
        call("base32", step_ms=5.0),
        call("base32", step_ms=10.0, hardware="newer GPU"),
        call("base32", step_ms=1.0, is_tiny=True),
        call("base32", step_ms=1.0, rows=[]),
    ]

    found = measured_in(calls)

    assert [(one.name, one.step_ms) for one in found.workloads] == [
        ("base, 32 sentences", 10.0),
        ("big, 25,000 tokens", 99.0),
    ]
    assert found.place == "2 x GPU, torch, today; 2 x newer GPU, torch, today"
    assert found.workloads[0].measured_efficiency == pytest.approx(0.8)
    assert found.workloads[0].tokens_per_second == pytest.approx(500.0 / 0.8)
    assert "2 x newer GPU" in page(found)


def test_as_many_bytes_take_as_long_to_sum():
    """An all-reduce that was not traced is that of another case, on the same GPUs."""
    calls = [
        call("base32", step_ms=5.0, all_reduce_ms=None),
        call("base8192", step_ms=9.0, all_reduce_ms=0.7),
        call("big25k", step_ms=99.0, all_reduce_ms=None, gradient_bytes=3e8),
    ]

    found = measured_in(calls)

    assert [(one.name, one.all_reduce_ms) for one in found.workloads] == [
        ("base, 32 sentences", 0.7),
        ("base, 8,192 tokens", 0.7),
    ]


def test_calls_without_figures_are_told_in_one_line(tmp_path, capsys):
    """With the command that measures them; exit code 2."""
    file = tmp_path / "calls.json"
    file.write_text(json.dumps([call("base32", step_ms=1.0, rows=[])]))

    assert main(["--calls", str(file)]) == 2

    assert "no call has the rows no-sum and flat of two GPUs" in capsys.readouterr().err


def test_the_page_is_what_the_script_writes(tmp_path):
    """Figures and formula cannot part; every table but the first says that it is computed."""
    written = tmp_path / "scaling.md"

    assert main(["--out", str(written)]) == 0

    text = written.read_text(encoding="utf-8")
    assert text == (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    headings = [line for line in text.splitlines() if line.startswith("## ") and "GPU" in line]
    assert [line for line in headings if "(computed)" not in line] == ["## Two GPUs (measured)"]
