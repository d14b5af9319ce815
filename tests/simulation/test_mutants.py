"""The tool that removes ordering operations: it finds them all, and it can fail."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from simulation import concepts
from simulation.concepts import Place
from simulation.mutants import (
    ANSWERED,
    NOT_ENTERED,
    REMOVED,
    ROOMS,
    SOURCE,
    Mutator,
    find_mutants,
    modules,
    parse,
)


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


def test_every_ordering_call_of_the_rooms_takes_part():
    """No call of the device's ordering operations in the rooms is left out."""
    ordering = {"record_event", "wait_event", "wait_stream", "query_event"}
    ordering |= {"synchronize_event", "synchronize_stream"}
    found = {
        (module, node.lineno)
        for module in modules()
        for node in ast.walk(parse(module))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ordering
    }

    assert len(found) > 20
    assert found <= {(mutant.place.module, mutant.line) for mutant in find_mutants()}
    assert ordering <= REMOVED | set(ANSWERED)
    assert "use_stream" in NOT_ENTERED


@pytest.mark.parametrize("number", range(len(find_mutants())))
def test_a_mutant_differs_in_one_place(number):
    """Each mutant is its module with that operation changed, and nothing else."""
    mutant = find_mutants()[number]
    module = mutant.place.module
    changed = Mutator(module, mutant.number).visit(parse(module))

    before, after = ast.unparse(parse(module)).splitlines(), ast.unparse(changed).splitlines()
    assert len(before) == len(after)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_a_survivor_is_told_and_fails():
    """What no scenario reaches is printed as a survivor, and the tool exits with 1."""
    code = """
import sys
from simulation import mutants
mutants.reach_of_all = dict
sys.exit(mutants.main("/host_waits.py"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        cwd=ROOT / "tests",
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
    )

    count = sum(mutant.place.module.endswith("/host_waits.py") for mutant in find_mutants())
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stderr
    assert lines[-1] == f"0/{count} killed"
    assert sum(line.startswith("SURVIVED") for line in lines) == count
    assert "door for waits: the host waits for the event" in done.stdout


# Operations when the list began, and what they were: `was` of each, sorted, one a line.
NUM_AT_FIRST = 121
WAS_AT_FIRST = "49f40d44ee3821ae81673427bcf998ee0fb4156c44fe698a30d92fdaa3666170"


def test_every_operation_has_one_concept():
    """No operation is found that the list does not name, and none is named that is not found."""
    places = Counter(mutant.place for mutant in find_mutants())
    listed = Counter(concept.place for concept in concepts.read())

    assert not places - listed, "say in concepts.toml what these are for, or use --remap"
    assert not listed - places, "these are gone: use --remap, or say why they are not needed"
    assert max(places.values()) == 1


def test_concepts_have_names_of_their_own():
    """A name stands for one operation, and names no function and no file."""
    names = [concept.name for concept in concepts.read()]

    assert len(set(names)) == len(names)
    assert [name for name in names if "_" in name or "(" in name or ".py" in name] == []


def test_no_concept_of_the_first_list_is_lost():
    """All operations of the first list are still there, with the old place that they had."""
    was = sorted(concept.was for concept in concepts.read() if concept.was != "new")

    assert len(was) >= NUM_AT_FIRST
    assert hashlib.sha256("\n".join(was).encode()).hexdigest() == WAS_AT_FIRST


def test_rooms_hold_operations_and_no_package_file_does():
    """Every room takes part; a package's `__init__` could not be imported with a mutant."""
    found = {mutant.place.module for mutant in find_mutants()}

    assert set(ROOMS) == {str(Path(module).parent) for module in found}
    assert not [module for module in found if module.endswith("__init__.py")]
    assert all((SOURCE / module).is_file() for module in found)


def test_equal_code_in_one_function_is_told_apart():
    """Operations in one function that look alike are numbered in their order."""
    mutator = Mutator("room/file.py")
    mutator.visit(ast.parse("class A:\n def f(self):\n  x.flush()\n  x.flush()\nx.flush()"))

    assert [mutant.place for mutant in mutator.mutants] == [
        Place("room/file.py", "A.f", "x.flush()", 1),
        Place("room/file.py", "A.f", "x.flush()", 2),
        Place("room/file.py", "", "x.flush()", 1),
    ]


def _concept(name, *place):
    return concepts.Concept(name=name, was="there", place=Place(*place))


def test_concepts_follow_their_code():
    """A move to another file, class or function is found if the code is the same."""
    stays = _concept("stays", "a/one.py", "A.f", "x.flush()", 1)
    moves = _concept("moves", "a/one.py", "A.f", "x.flush()", 2)
    renamed = _concept("renamed", "a/one.py", "A.g", "y.close()", 1)
    moved_to = Place("b/two.py", "B.f", "x.flush()", 1)
    renamed_to = Place("b/one.py", "A.h", "y.close()", 1)

    after, lost = concepts.remap([stays, moves, renamed], {stays.place, moved_to, renamed_to})

    assert lost == []
    assert after == [stays, replace(moves, place=moved_to), replace(renamed, place=renamed_to)]


def test_places_in_doubt_are_not_chosen():
    """Two places for one concept, or two concepts for one place, are left to a reader."""
    one = _concept("one", "a/one.py", "A.f", "x.flush()", 1)
    two = _concept("two", "a/one.py", "A.g", "y.close()", 1)
    three = _concept("three", "a/one.py", "A.h", "y.close()", 1)
    places = {
        Place("b/one.py", "B.p", "x.flush()", 1),
        Place("b/one.py", "B.q", "x.flush()", 1),
        Place("b/one.py", "B.r", "y.close()", 1),
    }

    after, lost = concepts.remap([one, two, three], places)

    assert after == lost == [one, two, three]
    like = concepts.likely(one, places, count=2)
    assert [place.code for place in like] == ["x.flush()", "x.flush()"]


def test_concepts_are_read_back_as_they_were_written(tmp_path):
    """Quotes and brackets in code survive the file."""
    found = concepts.read()
    concepts.write(found, tmp_path / "written.toml")

    assert concepts.read(tmp_path / "written.toml") == found
    assert (tmp_path / "written.toml").read_text() == concepts.FILE.read_text()
