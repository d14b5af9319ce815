"""Programs of others are run both ways, and what differs is said."""

from __future__ import annotations

from argparse import Namespace

import pytest

from benchmarks import programs_of_others


PROGRAM = """
import sys, time, torch
torch.manual_seed(0)
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
        programs_of_others.PROGRAMS, "one", ["somebody/something", "abc123", "", "one.py"]
    )

    def run(**how):
        repository.joinpath("one.py").write_text(PROGRAM.format(**how), encoding="utf-8")
        options = Namespace(folder=tmp_path, seconds=100.0)
        return programs_of_others.compare("one", options)

    return run


def test_the_same_is_said_of_what_is_the_same_but_for_times(compare):
    runs, text = compare(tells="0", code=0)

    assert text.splitlines()[0].endswith("the same")
    assert "gapless run: one.py" in text
    assert [run["way"] for run in runs] == ["python", "run", "python"]
    assert list(runs[0]["files"]) == ["model.pt"]


def test_other_output_and_other_weights_are_said(compare):
    _, text = compare(tells="int('gapless' in sys.modules)", code=0)

    assert "other output, files" in text
    assert "as written, too" not in text


@pytest.mark.slow
def test_what_a_program_does_not_repeat_is_said(compare):
    _, text = compare(tells="time.perf_counter_ns() % 1_000_000", code=0)

    assert "other output, files; as written, too: output, files" in text


@pytest.mark.slow
def test_programs_that_fail_or_are_not_there_are_left_out(compare, monkeypatch):
    _, text = compare(tells="0", code=3)
    assert "left out, fails as written" in text

    monkeypatch.setitem(
        programs_of_others.PROGRAMS, "one", ["nobody/nothing", "abc123", "", "one.py"]
    )
    _, text = compare(tells="0", code=0)
    assert "left out: nobody/nothing at abc123 is not in" in text
