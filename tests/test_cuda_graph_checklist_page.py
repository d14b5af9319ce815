"""docs/cuda-graph-checklist.md names tests that exist, and all that were written for it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from hazards.themes import CAPTURED_CASES


ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "cuda-graph-checklist.md"
OWN = (
    "tests/graphs/test_cuda_graph_checklist.py",
    "tests/gpu/test_cuda_graph_checklist_on_gpu.py",
)
VERDICTS = ("mends", "guards", "refuses", "does not see")


def rows():
    """Return point, what gapless does and tests of each row of the page."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    of_points = [tuple(cell.strip() for cell in row) for row in cells if len(row) == 3]
    return [row for row in of_points if row[0] not in {"to check", "---"}]


def names_in(file):
    """Return the names of the tests of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return {name for name in found if name.startswith("test_")}


def verdict_of(text):
    """Return the word in bold with which the text begins."""
    found = re.match(r"\*\*([a-z ]+)\*\*", text)
    return found and found[1]


ROWS = rows()
EXISTING = {f"{case}" for case in CAPTURED_CASES}.union(*map(names_in, OWN))


@pytest.mark.parametrize(("point", "does", "tests"), ROWS, ids=[row[0] for row in ROWS])
def test_each_row_has_a_verdict_and_tests_that_exist(point, does, tests):
    """A row begins with one of the four words, and names tests in backticks, nothing else."""
    names = re.findall(r"`([^`]+)`", tests)
    elsewhere = [name.split("::") for name in names if "::" in name]
    missing = [name for name in names if "::" not in name and name not in EXISTING]
    missing += [f"{file}::{name}" for file, name in elsewhere if name not in names_in(file)]

    assert verdict_of(does) in VERDICTS
    assert names
    assert not re.sub(r"`[^`]+`", "", tests).strip()
    assert missing == []


def test_each_test_that_was_written_for_the_page_stands_in_it():
    """A row that goes takes its tests along."""
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text(encoding="utf-8")))

    assert set().union(*map(names_in, OWN)) - named == set()


def test_no_row_stands_there_twice():
    """Each point has one row."""
    points = Counter(point for point, *_ in ROWS)

    assert [point for point, times in points.items() if times > 1] == []


def test_the_rows_are_counted_right():
    """The page says how many rows have which verdict."""
    counts = Counter(verdict_of(does) for _, does, _ in ROWS)
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    mends, guards, refuses, unseen = (counts[verdict] for verdict in VERDICTS)

    assert (
        f"{len(ROWS)} rows: gapless mends {mends}, guards {guards}, refuses {refuses} and does "
        f"not see {unseen}."
    ) in text
