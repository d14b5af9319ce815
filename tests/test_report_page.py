"""docs/recipes/report.md has every kind of refusal, and its examples are refused and mended so."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

import recipes
from gapless.graphs.refusal import KINDS


SRC = Path(recipes.ROOT / "src" / "gapless")
TEXT = (recipes.PAGES / "report.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+) \| \[`(\w+)`\]\(#(\w+)\) \|$", TEXT, re.MULTILINE)
WORDS = [(kind, words[1:-1]) for words, kind, _ in ROWS if words.startswith("`")]
EXAMPLES = recipes.examples_of(TEXT)

# No row: nothing has to be edited, or no small example comes to it.
WITHOUT_EXAMPLE = {
    "cpu",
    "off",
    "framework",
    "memory_budget",
    "does_not_pay",
    "ranks",
}

# The simulated device has no derivatives in forward mode, no streams of torch's and no compiled code.
ON_A_GPU_ALONE = {"forward_mode", "capture_failed", "compiled"}

# `make test` runs every third example, `make check` the others.
_ONE_IN = 3
EXAMPLES_OF_ANY_DEVICE = [
    pytest.param(kind, example, id=kind, marks=[pytest.mark.slow] if number % _ONE_IN else [])
    for number, (kind, example) in enumerate(
        one for one in EXAMPLES if one[0] not in ON_A_GPU_ALONE
    )
]


@functools.cache
def nodes_of(room=""):
    """Return all parts of the syntax trees of the source, or of a room of it."""
    return [
        node
        for path in sorted((SRC / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]


def kinds_made():
    """Return the kinds with which a `Refusal` is made anywhere in the source."""
    calls = [
        node
        for node in nodes_of()
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Refusal"
    ]
    given = [
        next((one.value for one in call.keywords if one.arg == "kind"), None) or call.args[0]
        for call in calls
    ]
    return {one.value for one in given if isinstance(one, ast.Constant)}


def test_every_kind_of_refusal_has_its_row_and_its_section_and_there_are_no_others():
    """A new kind needs both in docs/recipes/report.md: what it says, what it means, what to do."""
    sections = re.findall(r"^### `(\w+)`$", TEXT, re.MULTILINE)

    assert kinds_made() == set(KINDS)
    assert {kind for _, kind, _ in ROWS} == set(KINDS)
    assert [anchor for *_, anchor in ROWS] == [kind for _, kind, _ in ROWS]
    assert sorted(sections) == sorted(KINDS)
    assert {kind for kind, _ in EXAMPLES} == set(KINDS) - WITHOUT_EXAMPLE


@pytest.mark.parametrize(
    "words",
    [words for kind, words in WORDS if kind in WITHOUT_EXAMPLE | ON_A_GPU_ALONE],
)
def test_the_words_of_a_row_without_a_run_stand_in_the_source(words):
    """The table quotes what a report says."""
    said = [
        node.value
        for room in ("graphs", "integrations")
        for node in nodes_of(room)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]

    assert [text for text in said if words in text]


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize(("kind", "example"), EXAMPLES_OF_ANY_DEVICE)
def test_an_example_is_refused_before_and_replayed_after(kind, example):
    """The report says the words of a row; after the edit it names nothing, and steps replay."""
    before, after = example
    num_batches = 33 if kind == "unlike_calls" else 20
    with recipes.simulated() as device:
        place = device.torch_device
        said = recipes.run_example(TEXT, before, place, num_batches=num_batches)
    with recipes.simulated() as device:
        place = device.torch_device
        mended = recipes.run_example(TEXT, after, place, num_batches=num_batches)

    assert [words for its, words in WORDS if its == kind and words in str(said)]
    # That alone forbids no graph.
    assert kind in [refusal.kind for refusal in said.refusals]
    assert mended.refusals == []
    assert mended.note is None
    assert mended.num_replays > 0


def test_the_report_at_the_top_is_that_of_the_first_example():
    """A reader sees what a report looks like, without its times."""
    shown = next(code for language, code in recipes.blocks(TEXT) if not language)
    with recipes.simulated() as device:
        report = recipes.run_example(TEXT, dict(EXAMPLES)["host_read"][0], device.torch_device)

    assert recipes.without_times(str(report)) == shown
