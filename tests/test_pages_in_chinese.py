"""The pages in Chinese mark English pages, explain every code and setting, and quote the program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gapless.doctor.advice.explanations import explanations
from gapless.nmt.settings import defaults


ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ZH = DOCS / "zh"
PAGES = [ROOT / "README.zh.md", *sorted(ZH.glob("*.md"))]

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def text_of(page):
    """Return a page without its blocks of code."""
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def is_english(path):
    """Whether a path is a page, or a folder of pages, that is not in Chinese."""
    is_folder = path.is_dir() and DOCS in path.parents and path != ZH
    return is_folder or (path.suffix == ".md" and path not in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_to_an_english_page_says_so(page):
    """Whoever reads Chinese alone sees before a click that a page is in English."""
    unmarked = [
        link
        for name, link, after in re.findall(r"\[([^\]]+)\]\(([^)\s]+)\)(.{0,4})", text_of(page))
        if is_english((page.parent / link.partition("#")[0]).resolve())
        and not name.startswith("English")
        and not after.startswith(("（英文）", "，英文）"))
    ]

    assert unmarked == []


def test_the_page_of_the_doctor_explains_every_code():
    """Each code has its row, in order."""
    rows = re.findall(r"^\| (GAP\d+) \| .+。 \|$", text_of(ZH / "doctor.md"), re.MULTILINE)

    assert rows == list(explanations())


def test_the_page_of_the_report_has_every_reason():
    """Its table quotes what the English page quotes, and each kind has its section, in that order."""
    english, chinese = (
        (folder / "report.md").read_text(encoding="utf-8") for folder in (DOCS / "recipes", ZH)
    )
    rows, sections = (
        [re.findall(pattern, text, re.MULTILINE) for text in (english, chinese)]
        for pattern in (r"^\| (`.+`) \| \[`(\w+)`\]\(#\w+\) \|$", r"^### `(\w+)`$")
    )

    assert rows[0] == rows[1]
    assert sections[0] == sections[1]
    assert sections[1]


def test_the_page_of_the_output_explains_every_setting_that_is_chosen():
    """Each setting that a run prints with its reason has its row."""
    cells = re.findall(r"^\| (`.*?) \|", text_of(ZH / "output.md"), re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}

    assert set(defaults.CHOSEN) - named == set()


@pytest.fixture(scope="module")
def spoken():
    """Return the words of the sources, with broken strings joined: in them stand all messages."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    return " ".join(words(re.sub(r'"\s*\n\s*f?"', "", source)) for source in sources)


def words(text):
    return " ".join(re.findall(r"[A-Za-z]+", text))


@pytest.mark.parametrize("name", ["quickstart.md", "output.md", "doctor.md"])
def test_what_a_page_quotes_is_what_the_program_says(name, spoken):
    """Of each quoted line of six words or more, three in a row stand in a message."""
    quoted = [words(span) for span in re.findall(r"`([^`\n]+)`", text_of(ZH / name))]
    long = [span.split() for span in quoted if span.count(" ") >= 5]
    unknown = [
        " ".join(one)
        for one in long
        if not any(" ".join(one[at : at + 3]) in spoken for at in range(len(one) - 2))
    ]

    assert len(long) > 2
    assert unknown == []
