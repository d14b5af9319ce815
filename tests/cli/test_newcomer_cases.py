"""The lists of what newcomers type and bring are well formed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest


HERE = Path(__file__).parent
LANGUAGES = tomllib.loads((HERE / "languages.toml").read_text(encoding="utf-8"))
COLUMNS = tomllib.loads((HERE / "columns.toml").read_text(encoding="utf-8"))["case"]


def test_forty_names_have_a_tokeniser_or_a_question():
    """Every one of the forty names has an expectation, and a question has its reason."""
    tokenisers = LANGUAGES["names"].values()
    asked = {name for name, tokeniser in LANGUAGES["names"].items() if tokeniser == "ask"}

    assert len(tokenisers) == 40
    assert set(tokenisers) == {"zh", "ja-mecab", "ko-mecab", "13a", "ask"}
    assert asked == set(LANGUAGES["because"])


def test_names_of_tables_differ():
    """Every table can be named by a failing test."""
    names = [case["name"] for case in COLUMNS]

    assert len(names) == len(set(names)) >= 25


@pytest.mark.parametrize("case", COLUMNS, ids=lambda case: case["name"])
def test_a_table_has_a_verdict(case):
    """A table is accepted with pairs that it holds, or refused with patterns that compile."""
    text = re.sub(r"\s+", " ", case["text"].replace('""', '"'))

    assert {"pairs", "first", "last"} <= set(case) or "names" in case
    if "pairs" in case and "\\u" not in text:
        sides = case["first"] + case["last"]
        assert [side for side in sides if side.replace('""', '"') not in text] == []
    for pattern in case.get("names", []):
        re.compile(pattern)
