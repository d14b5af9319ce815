"""The tool that removes ordering operations: it finds them all, and it can fail."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.mutants import ANSWERED, NOT_ENTERED, PIPELINE, REMOVED, Mutator, find_mutants


ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(540)
def test_every_removed_operation_is_noticed():
    """`make mutants` ends with all of them killed."""
    done = subprocess.run(
        [sys.executable, "-m", "simulation.mutants"],
        check=False,
        cwd=ROOT / "tests",
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
    )

    count = len(find_mutants())
    survivors = [line for line in done.stdout.splitlines() if line.startswith("SURVIVED")]
    assert not survivors, "\n".join(survivors)
    assert done.stdout.splitlines()[-1] == f"{count}/{count} killed", done.stderr
    assert done.returncode == 0


def test_every_ordering_call_of_the_pipeline_takes_part():
    """No call of the device's ordering operations in the pipeline is left out."""
    ordering = {"record_event", "wait_event", "wait_stream", "query_event"}
    ordering |= {"synchronize_event", "synchronize_stream"}
    found = {
        (path.name, node.lineno)
        for path in PIPELINE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ordering
    }

    assert len(found) > 20
    assert found <= {(mutant.file, mutant.line) for mutant in find_mutants()}
    assert ordering <= REMOVED | set(ANSWERED)
    assert "use_stream" in NOT_ENTERED


@pytest.mark.parametrize("number", range(len(find_mutants())))
def test_a_mutant_differs_in_one_place(number):
    """Each mutant is its module with that operation changed, and nothing else."""
    mutant = find_mutants()[number]
    path = PIPELINE / mutant.file
    source = ast.parse(path.read_text(encoding="utf-8"))
    changed = Mutator(path, mutant.number).visit(ast.parse(path.read_text(encoding="utf-8")))

    before, after = ast.unparse(source).splitlines(), ast.unparse(changed).splitlines()
    assert len(before) == len(after)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_a_survivor_is_told_and_fails():
    """What no scenario reaches is printed as a survivor, and the tool exits with 1."""
    code = """
import sys
from simulation import mutants
mutants.reach_of_all = dict
sys.exit(mutants.main("host_waits.py"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        cwd=ROOT / "tests",
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
    )

    count = sum(mutant.file == "host_waits.py" for mutant in find_mutants())
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stderr
    assert lines[-1] == f"0/{count} killed"
    assert all(line.startswith("SURVIVED") for line in lines[:-1])
