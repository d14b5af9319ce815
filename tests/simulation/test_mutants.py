"""Every ordering operation is missed when it is gone, and the tool that removes them can fail."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from simulation import concepts, judging, mutants
from simulation.concepts import Place
from simulation.judging import judge
from simulation.mutations import (
    KINDS,
    ROOMS,
    SOURCE,
    Kind,
    Mutator,
    find_mutants,
    modules,
    parse,
)
from simulation.scenarios import SCENARIOS


# --- all of them are noticed ---


KNOWN = concepts.by_place(concepts.read())


def name_of(mutant):
    """Return what a test of a mutant is called: its concept."""
    owners = KNOWN.get(mutant.place)
    return owners[0].name if owners else str(mutant.place)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", find_mutants(), ids=name_of)
def test_a_removed_operation_is_noticed(mutant):
    """The scenario of its concept fails: values, counts or bounds are wrong, or accesses unordered."""
    names = mutants.scenarios_of(mutant, KNOWN)

    assert names, f"no scenario is known to miss it, use --search: {mutant}"
    assert judge(mutant, names), f"{names[0]} passes without it, use --search: {mutant}"


def test_a_module_without_a_mutant_is_not_noticed():
    """What notices a mutant is the mutant: the same module as it is fails no scenario."""
    unchanged = replace(find_mutants()[0], number=None)

    assert judge(unchanged, ["streams_chained_by_hand"]) == ""


def test_a_removed_operation_is_noticed_and_a_survivor_is_told(monkeypatch, capsys):
    """The tool prints who notices, or that nobody does, and exits with 1 if one survives."""
    chosen = "named streams: the host waits for an event"

    monkeypatch.setattr(mutants, "scenarios_of", lambda *_: [])
    assert mutants.main(chosen) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0].split(maxsplit=1) == ["SURVIVED", chosen]
    assert told[-1] == "0/1 killed"

    monkeypatch.setattr(mutants, "scenarios_of", lambda *_: ["streams_chained_by_hand"])
    assert mutants.main(chosen) == 0
    told = capsys.readouterr().out.splitlines()
    assert "in 'streams_chained_by_hand' (" in told[0]
    assert told[-1] == "1/1 killed"


def test_a_search_writes_the_scenario_that_notices(monkeypatch, tmp_path):
    """Of an operation that no scenario was known to miss; the others stay as they are."""
    chosen = "named streams: the host waits for an event"
    (mutant,) = (mutant for mutant in find_mutants() if name_of(mutant) == chosen)
    monkeypatch.setattr(mutants, "find_mutants", lambda: [mutant])
    names = ["a_closed_loop_gives_everything_back", "streams_chained_by_hand"]
    monkeypatch.setattr(mutants, "find_witnesses", lambda: {str(mutant.place): names})
    before = concepts.read()
    emptied = [
        replace(concept, noticed_in=None) if concept.place == mutant.place else concept
        for concept in before
    ]
    concepts.write(emptied, tmp_path / "concepts.toml")

    assert mutants.search_all(tmp_path / "concepts.toml") == 0

    after = concepts.read(tmp_path / "concepts.toml")
    (found,) = (concept for concept in after if concept.name == chosen)
    assert found.noticed_in == "streams_chained_by_hand"
    assert [one for one in after if one.name != chosen] == [
        one for one in before if one.name != chosen
    ]


def test_a_witness_comes_to_the_operation(monkeypatch):
    """Scenarios that never call its function are left out of a search."""
    names = ["streams_chained_by_hand", "losses_read_every_time"]
    monkeypatch.setattr(judging, "SCENARIOS", {name: SCENARIOS[name] for name in names})

    found = judging.find_witnesses()

    chosen = "named streams: the host waits for an event"
    (key,) = (place for place, owners in KNOWN.items() if owners[0].name == chosen)
    assert found[str(key)] == ["streams_chained_by_hand"]


# --- all of them are found ---


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


def test_every_kind_of_mutation_is_used():
    """No row of the table looks for what is no longer there."""
    done = Counter(mutant.done for mutant in find_mutants())

    assert set(done) == {kind.done for kind in KINDS}


def test_a_kind_of_mutation_is_a_row_of_the_table(monkeypatch):
    """A new row takes part at once, and only the chosen operation is changed."""

    def swapped(node):
        return ast.BinOp(left=node.right, op=node.op, right=node.left)

    row = Kind("swapped", lambda node: isinstance(node, ast.BinOp), swapped)
    monkeypatch.setattr("simulation.mutations.KINDS", [row])

    changed = Mutator("room/file.py", 1).visit(ast.parse("a = b * c\nd = e * f"))

    assert ast.unparse(changed) == "a = b * c\nd = f * e"


def of_each_kind():
    """Return the last operation of each kind of change."""
    return list({mutant.done: mutant for mutant in find_mutants()}.values())


@pytest.mark.parametrize("mutant", of_each_kind(), ids=lambda mutant: mutant.done)
def test_a_mutant_differs_in_one_place(mutant):
    """Each mutant is its module with that operation changed, and nothing else."""
    module = mutant.place.module
    changed = Mutator(module, mutant.number).visit(parse(module))

    before, after = (ast.unparse(tree).splitlines() for tree in (parse(module), changed))
    assert len(before) == len(after)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


# --- their concepts ---


# Operations when the list began, and what they were: `was` of each, sorted, one a line.
NUM_AT_FIRST = 121
WAS_AT_FIRST = "49f40d44ee3821ae81673427bcf998ee0fb4156c44fe698a30d92fdaa3666170"


def test_every_operation_has_one_concept():
    """No operation is found that the list does not name, and none is named that is not found."""
    places = Counter(mutant.place for mutant in find_mutants())
    listed = Counter(concept.place for concept in concepts.read() if concept.place)

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


def test_a_concept_is_joined_to_one_that_has_a_place():
    """An operation that became one with another shares the place of that one."""
    found = concepts.read()
    own = {concept.name for concept in found if concept.place is not None}
    joined = [concept for concept in found if concept.place is None]

    assert [concept.name for concept in joined if concept.joined not in own] == []
    assert [concept.name for concept in joined if concept.was == "new"] == []
    shared = [owners for owners in concepts.by_place(found).values() if len(owners) > 1]
    assert sum(len(owners) - 1 for owners in shared) == len(joined) > 0


def test_the_table_has_every_concept(capsys):
    """Each has a row with its old place and the present one, also those that share one."""
    assert mutants.main("--table") == 0

    rows = capsys.readouterr().out.splitlines()[2:-2]
    found = concepts.read()
    assert len(rows) == len(found)
    for concept in found:
        (row,) = (row for row in rows if row.startswith(f"| {concept.name} |"))
        assert concept.was in row
        assert str(concept.place or concept.joined) in row


def test_rooms_hold_operations_and_no_package_file_does():
    """Every room takes part; a package's `__init__` could not be imported with a mutant."""
    found = {mutant.place.module for mutant in find_mutants()}

    parts = {part for module in found for part in (module, str(Path(module).parent))}
    assert set(ROOMS) <= parts
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
