"""Programs of frameworks are run as written and with their lines, and compared."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from benchmarks.recipes import scripts, sources
from benchmarks.recipes.__main__ import compare, table_of
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


def test_lines_are_counted_wherever_they_stand(monkeypatch, tmp_path):
    script = Script(
        "a/b", "abc", "train.py", "", (), (("x = 1\ny = 2\n", "y = 2\nx = 1\nz = 3\n"),)
    )
    monkeypatch.setitem(scripts.SCRIPTS, "one", script)
    tmp_path.joinpath("a", "b").mkdir(parents=True)
    tmp_path.joinpath("a", "b", "train.py").write_text("x = 1\ny = 2\n", encoding="utf-8")

    assert sources.lines_added("one", tmp_path) == 1


def test_every_own_program_has_its_lines():
    """Two to four, or one of a framework; four more put counts on the host that torch 2.11 makes elsewhere."""
    most = {"deepxde_heat": 8}
    own = [name for name in sources.NAMES if name not in scripts.SCRIPTS]

    assert all(1 <= sources.lines_added(name, Path()) <= most.get(name, 4) for name in own)


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
