"""Labels are read from the comments of a case, and every case of the corpus has them."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from doctor.labels import CORPUS, LabelError, all_cases, read_case, read_labels


SCRIPT = """
from _helper import read
for step in range(3):  # step
    text = "# waits: item"
    x = (  # an ordinary comment
        loss
        .item()  # waits: item, 2-3 a step, static surely
    )
    if loss > 1:  # waits: bool, 1/10 a step, unseen; waits: shape, in autograd, unsure
        read(x)  # harmless: a helper, and nothing else
"""
HELPER = "def read(x):\n    return x.cpu()  # waits: cpu, in other, static no\n"


@pytest.fixture
def case(tmp_path):
    (tmp_path / "_helper.py").write_text(HELPER)
    (tmp_path / "case.py").write_text(SCRIPT)
    return read_case(tmp_path / "case.py")


def test_details_of_a_wait_are_read(case):
    """Cause, count, thread, sync debug mode, static verdict and doubt."""
    found = [
        (w.cause, w.least, w.most, w.thread, w.in_sync_debug, w.static, w.unsure)
        for w in case.waits
    ]

    assert found == [
        ("item", 2, 3, "main", True, "surely", False),
        ("bool", Fraction(1, 10), Fraction(1, 10), "main", False, "maybe", False),
        ("shape", 1, 1, "autograd", True, "maybe", True),
        ("cpu", 1, 1, "other", True, "no", False),
    ]


def test_a_label_covers_its_statement_and_no_more(case):
    """Any line of the statement is right; of a block, only its header is meant."""
    item, bool_, *_ = case.waits

    assert (item.first_line, item.last_line) == (5, 8)
    assert (bool_.first_line, bool_.last_line) == (9, 9)
    assert item.covers(case.path, 5)
    assert not item.covers(case.path, 9)


def test_a_label_of_a_match_statement_covers_its_header(tmp_path):
    """And that of a case its pattern and guard, but not what follows."""
    path = tmp_path / "case.py"
    path.write_text(
        "match loss.item():  # waits: item\n"
        "    case value if (\n"
        "        value > limit\n"
        "    ):  # waits: bool\n"
        "        print(value)\n"
    )

    labels = read_labels(path)

    assert [(label.first_line, label.last_line) for label in labels] == [(1, 1), (2, 4)]


def test_labels_of_helpers_belong_to_the_case(case):
    """A wait in a helper has the helper's path."""
    assert case.waits[-1].path.name == "_helper.py"
    assert [line.reason for line in case.harmless] == ["a helper, and nothing else"]
    assert case.step == (case.path, 3)


@pytest.mark.parametrize(
    "line",
    ["x = 1  # waits: item, often", "x = 1  # waits: item; perhaps", "x = 1  # step; costs"],
)
def test_a_marker_that_cannot_be_read_is_an_error(tmp_path, line):
    """A slip of the pen does not become a missing label."""
    path = tmp_path / "case.py"
    path.write_text(line + "\n")

    with pytest.raises(LabelError, match=r"case\.py:1"):
        read_labels(path)


def test_a_case_has_one_step(tmp_path):
    """Counts a step need a step."""
    path = tmp_path / "case.py"
    path.write_text("x = 1\n")

    with pytest.raises(LabelError, match="`# step`"):
        read_case(path)


def test_the_corpus_has_both_kinds():
    """Lines that wait and lines that only look so; cases without a wait as well."""
    cases = [case for case in all_cases() if not case.apart]
    waits = sum(len(case.waits) for case in cases)
    harmless = sum(len(case.harmless) for case in cases)

    assert harmless >= waits > 100
    assert sum(not case.waits for case in cases) > 10


def test_every_cause_of_the_corpus_is_explained():
    """The words for causes are those of the README, and all of them occur."""
    readme = (CORPUS / "README.md").read_text()
    table = readme.split("## Causes")[1]
    known = {
        word
        for row in table.splitlines()
        if row.startswith("| `")
        for word in row.split("|")[1].replace("`", "").strip().split(", ")
    }
    used = Counter(wait.cause for case in all_cases() for wait in case.waits)

    assert set(used) == known


def test_cases_apart_are_there():
    """Loops through frameworks, and loops with one planted wait."""
    cases = all_cases()
    apart = Counter(case.apart for case in cases)

    assert apart["frameworks"] >= 6
    assert apart["planted"] >= 10
    assert all(case.is_blocking for case in cases if case.apart == "planted")
