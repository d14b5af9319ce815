"""The tables of the result pages are made from the files beside them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.results_page import PARTS, RESULTS, filled


ROOT = Path(__file__).parents[2]
PAGES = sorted(RESULTS.glob("*.md"))
MARK = re.compile(r"<!-- from: ([\w-]+) -->")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_what_its_files_give(page):
    """Figures of a table cannot part from their file."""
    text = page.read_text(encoding="utf-8")

    assert filled(text, RESULTS) == text


def test_every_part_stands_in_one_page():
    """A table that no page shows is not kept, and none is shown twice."""
    used = [name for page in PAGES for name in MARK.findall(page.read_text(encoding="utf-8"))]

    assert sorted(used) == sorted(PARTS)


def test_every_file_of_figures_is_used_by_a_page_or_a_benchmark():
    """A file of results that nothing reads or names goes."""
    sources = [*PAGES, *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    files = [path for path in RESULTS.iterdir() if path.suffix in {".json", ".jsonl", ".svg"}]
    # Of these a page or a program names the beginning alone.
    named = re.compile(r"(origin|newcomers)-")

    unused = [path.name for path in files if path.name not in text and not named.match(path.name)]

    assert unused == []


def test_a_mark_is_filled_once_and_what_stands_around_it_stays():
    """Text of people is kept, an old table is replaced, and twice is once."""
    page = "Before.\n\n<!-- from: multi30k -->\nold\n<!-- end -->\n\nBehind.\n"

    once = filled(page, RESULTS)

    assert once.startswith(
        "Before.\n\n<!-- from: multi30k -->\n\nNVIDIA H200, torch 2.11.0, 1688b375"
    )
    assert "|1|41.33|8,000|31.0|40.6|91.3|9.4 %|" in once
    assert "old" not in once
    assert once.endswith("<!-- end -->\n\nBehind.\n")
    assert filled(once, RESULTS) == once
