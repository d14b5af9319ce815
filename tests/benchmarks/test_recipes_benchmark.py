"""Programs of frameworks are run as written and with their lines, and compared."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from time import perf_counter

import pytest
from benchmarks.recipes import scripts, sources
from benchmarks.recipes.__main__ import compare, is_warm, table_of
from benchmarks.recipes.absent import stand_in_for
from benchmarks.recipes.scripts import Hoisted, Script, edited


LOOP = """
def main(make, batches):
    model, optimizer = make()
    for x in batches:
        loss = model(x)
        print(loss)
        optimizer.zero_grad()
        optimizer.step()
"""


def test_lines_of_a_loop_become_a_function_in_front_of_it():
    """What is between them stays in the loop, behind the call."""
    edit = Hoisted(
        parts=(
            ("        loss = model(x)", "        loss = model(x)"),
            ("        optimizer.zero_grad()", "        optimizer.step()"),
        ),
        place="    for x in batches:",
        head=("@capture", "def update(x):"),
        tail=("return loss",),
        call=("loss = update(x)",),
    )

    found = edited(LOOP, (edit,)).splitlines()

    assert found[3:] == [
        "    @capture",
        "    def update(x):",
        "        loss = model(x)",
        "        optimizer.zero_grad()",
        "        optimizer.step()",
        "        return loss",
        "    for x in batches:",
        "        loss = update(x)",
        "        print(loss)",
    ]


def test_an_edit_of_what_is_not_there_once_is_an_error():
    with pytest.raises(ValueError, match="found 2 times: 'optimizer'"):
        edited("optimizer, optimizer", (("optimizer", "other"),))


def test_lines_are_counted_wherever_they_stand(monkeypatch, tmp_path):
    script = Script(
        "a/b", "abc", "train.py", "", (), (("x = 1\ny = 2\n", "y = 2\nx = 1\nz = 3\n"),)
    )
    monkeypatch.setitem(scripts.SCRIPTS, "one", script)
    tmp_path.joinpath("a", "b").mkdir(parents=True)
    tmp_path.joinpath("a", "b", "train.py").write_text("x = 1\ny = 2\n", encoding="utf-8")

    assert sources.lines_added("one", tmp_path) == 1


def test_every_own_program_has_its_lines():
    """Two to four, or one of a framework."""
    own = [name for name in sources.NAMES if name not in scripts.SCRIPTS]

    assert {name for name in own if not 1 <= sources.lines_added(name, Path()) <= 4} == set()


def test_absent_packages_are_stood_for(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    assert stand_in_for("a_made_up_package", "sys") == ["a_made_up_package"]

    from a_made_up_package.inner import Part

    assert isinstance(Part.of.more(1), Part.of.more)

    for name in ("a_made_up_package", "a_made_up_package.inner"):
        del sys.modules[name]


def test_windows_count_once_both_ways_have_taken_some_seconds():
    """Unless the time is nearly over."""
    options = Namespace(warmup=2, settle=5.0)
    windows = [[{"seconds": 3.0}] * 2, [{"seconds": 2.0}] * 2]
    now = perf_counter()

    assert not is_warm(windows, options, now, now + 100.0)
    assert is_warm(windows, options, now - 90.0, now + 10.0)
    windows[1].append({"seconds": 1.0})
    assert is_warm(windows, options, now, now + 100.0)


@pytest.mark.slow
def test_a_program_is_run_both_ways_in_turns(tmp_path):
    options = Namespace(
        device="cpu",
        tiny=True,
        others=tmp_path,
        logs=tmp_path,
        seconds=200,
        warmup=1,
        rounds=2,
        settle=0,
    )

    found = compare("pinn", options)

    assert (found["same_bits"], found["rounds"], found["lines"]) == (True, 2, 1)
    assert "| pinn | own program of the same shape | 1 |" in table_of([found])
