"""What newcomers type and bring, through the command itself: a question or a refusal in one line."""

from __future__ import annotations

import gzip
import re
import tomllib
from pathlib import Path

import pytest


HERE = Path(__file__).parent
LANGUAGES = tomllib.loads((HERE / "languages.toml").read_text(encoding="utf-8"))
COLUMNS = tomllib.loads((HERE / "columns.toml").read_text(encoding="utf-8"))["case"]
# So that a table that is accepted by mistake fails soon.
TINY = ["--device", "cpu", "--max-steps", "1", "--d-model", "16", "--heads", "2", "--workers", "0"]
REFUSED = [case for case in COLUMNS if "pairs" not in case]


def test_forty_names_have_a_tokeniser_or_a_question():
    """Every one of the forty names has an expectation, and a question has its reason."""
    tokenisers = LANGUAGES["names"].values()
    asked = {name for name, tokeniser in LANGUAGES["names"].items() if tokeniser == "ask"}

    assert len(tokenisers) == 40
    assert set(tokenisers) == {"zh", "ja-mecab", "ko-mecab", "13a", "ask"}
    assert asked == set(LANGUAGES["because"])


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["name"])
def test_a_table_that_is_no_text_is_refused_in_one_line(case, gapless, tmp_path):
    """The line names what was found in the file; no run folder is left."""
    raw = case["text"].encode(case.get("encoding", "utf-8"))
    path = tmp_path / case["file"]
    path.write_bytes(gzip.compress(raw) if case.get("gzip") else raw)

    outcome = gapless("train", "--data", path, *case["options"], *TINY)

    outcome.check_refused()
    said = outcome.err.replace(str(tmp_path), "")
    assert [part for part in case["names"] if not re.search(part, said, re.IGNORECASE)] == []


@pytest.mark.parametrize("name", sorted(LANGUAGES["because"]))
def test_a_name_that_is_no_language_leads_to_a_question(name, gapless, tmp_path):
    """Before anything is trained: what was typed stands in the question."""
    lines = ["one day\tein Tag", "two days\tzwei Tage", "a week\teine Woche", "a year\tein Jahr"]
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    outcome = gapless("train", "--data", "pairs.tsv", "--src", "en", "--tgt", name, *TINY)

    outcome.check_refused(name, "language")
