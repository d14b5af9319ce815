"""README.zh.md says what README.md says: sections, code, figures and links."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parents[1]
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh.md").read_text(encoding="utf-8")

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

# Each language leads to the other, and to pages in its own.
_OWN = {"README.md", "docs/results/origin.md", "docs/recipes/report.md", "README.zh.md"}
_OWN_FOLDERS = ("#", "docs/zh/")


def sections(text):
    """Return the parts of a page between its headings, code left out."""
    return re.split(r"^#+ .*$", _FENCED.sub("", text), flags=re.MULTILINE)


def code(text):
    """Return the lines of each block of code: without comments, which each language has its own."""
    blocks = [block.splitlines() for block in _FENCED.findall(text)]
    return [[re.sub(r"\s{2,}#.*", "", line) for line in lines] for lines in blocks]


def links(text):
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return Counter(
        link for link in found if link not in _OWN and not link.startswith(_OWN_FOLDERS)
    )


def figures(text):
    """Return the numbers of a text that are no part of a link, of a name or of a version in code."""
    prose = re.sub(r"\]\([^)]*\)", "]", text)
    return Counter(re.findall(r"\d+(?:[.,-]\d+)*", prose))


def names(text):
    """Return what stands in backticks."""
    return Counter(re.findall(r"`([^`\n]+)`", text))


def test_the_headings_are_as_many_and_as_deep():
    """Each heading has its counterpart."""

    def depths(text):
        return re.findall(r"^(#+) ", _FENCED.sub("", text), re.MULTILINE)

    assert depths(CHINESE) == depths(ENGLISH)


def test_the_code_is_the_same():
    """Blocks of code differ in their comments alone."""
    assert code(CHINESE) == code(ENGLISH)


@pytest.mark.parametrize("what", [links, figures, names])
def test_each_section_has_the_same(what):
    """Links, figures and names in backticks are the same in each section, in any order."""
    pairs = zip(sections(ENGLISH), sections(CHINESE), strict=True)
    differing = {
        number: (dict(what(theirs) - what(ours)), dict(what(ours) - what(theirs)))
        for number, (theirs, ours) in enumerate(pairs)
        if what(theirs) != what(ours)
    }

    assert differing == {}, "section: (missing in README.zh.md, only in README.zh.md)"


def test_each_page_leads_to_the_other():
    """The first lines lead to the other language."""
    assert "[中文](README.zh.md)" in ENGLISH[:200]
    assert "[English](README.md)" in CHINESE[:200]
    assert "(docs/results/origin.md)" in ENGLISH
    assert "(docs/zh/origin.md)" in CHINESE
