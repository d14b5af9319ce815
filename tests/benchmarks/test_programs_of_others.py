"""Programs of others are run both ways, and what differs is said."""

from __future__ import annotations

from argparse import Namespace

import pytest

from benchmarks import programs_of_others


PROGRAM = """
import os, sys, time, torch
torch.manual_seed(0)
open(f"events.out.tfevents.{{os.getpid()}}.host", "w").write(str(time.time()))
print(f"loss {{torch.rand(1).item():.4f}} | 12.3 ms, under run:", {tells})
print(f"SPS: {{time.perf_counter_ns()}}")
torch.save({{"w": torch.rand(3) + {tells}}}, "model.pt")
sys.exit({code})
"""


@pytest.fixture
def compare(tmp_path, monkeypatch):
    """Compare a program of a repository of one file."""
    repository = tmp_path / "somebody" / "something"
    repository.mkdir(parents=True)
    monkeypatch.setitem(
        programs_of_others.PROGRAMS, "one", ["somebody/something", "abc123", "", "one.py", ""]
    )

    def run(program=PROGRAM, *, seconds=None, **how):
        repository.joinpath("one.py").write_text(program.format(**how), encoding="utf-8")
        options = Namespace(folder=tmp_path, seconds=seconds, alone=False, timeout=100.0)
        return programs_of_others.compare("one", options)

    return run


def test_the_same_is_said_of_what_is_the_same_but_for_times(compare):
    row, text = compare(tells="0", code=0)

    assert text.splitlines()[0].endswith("the same")
    assert "gapless run: one.py" in text
    assert (row["code"], row["verdict"]) == (0, "the same")
    assert row["at"] == "somebody/something@abc123"


@pytest.mark.slow
def test_programs_that_fail_or_are_not_there_are_left_out(compare, monkeypatch):
    _, text = compare(tells="0", code=3)
    assert "left out, fails as written" in text

    monkeypatch.setitem(
        programs_of_others.PROGRAMS, "one", ["nobody/nothing", "abc123", "", "one.py", ""]
    )
    _, text = compare(tells="0", code=0)
    assert "left out: nobody/nothing at abc123 is not in" in text


TRAINS = """
import torch
weight = torch.zeros(1, requires_grad=True)
while True:
    weight.sum().backward()
"""


@pytest.mark.slow
def test_rates_are_of_backward_passes_of_both_until_the_end(compare):
    row, text = compare(TRAINS, seconds=30.0)

    assert row["code"] == 0
    assert row["steps"] > 100
    assert row["marks"][-1][0] > row["steps"] * 0.9
    assert "second half" in text
    assert "gapless run: one.py" in text


def test_rates_and_what_is_beyond_the_account():
    """Ten steps a second as written; ours begins 20 s late and then takes half as long, but for one stall."""
    plain = [step / 10 for step in range(1_000)]
    run = [20.0 + step / 20 + 3.0 * (step >= 100) for step in range(1_000)]

    row = programs_of_others.rates(plain, run)

    assert row["steps"] == 1_000
    assert row["second_half"] == 2.0
    assert row["as_written_a_second"] == 10.0
    assert row["first_minute"] == pytest.approx(741 / 601, abs=0.01)
    # At step 0, of whose 20 s 5 are allowed; at step 100 28 s come behind 16 s.
    assert (row["over_at"], row["over_s"]) == (0, 15.0)
