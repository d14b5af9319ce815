"""The tables of the result pages are made from the files beside them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.results_page import PARTS, RESULTS, filled, main


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
        "Before.\n\n<!-- from: multi30k -->\n\nNVIDIA H200, torch 2.11.0, f42e312"
    )
    assert "| 1 | 41.57 | 8,000 | 29.5 | 23.9 | 100.0 | 0.2 % |" in once
    assert "old" not in once
    assert once.endswith("<!-- end -->\n\nBehind.\n")
    assert filled(once, RESULTS) == once


def test_the_program_renders_a_folder_without_torch(tmp_path):
    """The pages need the files alone."""
    shutil.copy(RESULTS / "deferred-metrics.json", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("<!-- from: deferred -->\n<!-- end -->\n")

    subprocess.run(
        [sys.executable, "-S", "-m", "benchmarks.results_page", str(tmp_path)],
        check=True,
        cwd=ROOT,
        env={"PYTHONIOENCODING": "utf-8"},
    )

    assert "| add, one value | 13.0 | 1 |" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("mark", ["deferred", "no-such-part"])
def test_a_page_that_cannot_be_filled_is_refused(tmp_path, capsys, mark):
    """A missing file and a mark without a part are named in one line, and the exit code is 2."""
    (tmp_path / "page.md").write_text(f"<!-- from: {mark} -->\n<!-- end -->\n")

    assert main([str(tmp_path)]) == 2
    assert f"{tmp_path} cannot be rendered" in capsys.readouterr().err
