"""The look at the syntax tree finds the waits of public files that were read by hand before it ran."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from doctor.not_yet import params
from doctor.public_look import (
    PARTS,
    TABLE,
    File,
    Finding,
    Line,
    Look,
    look_at,
    read_table,
    say,
    what_is_absent,
)


FOLDER = Path(
    os.environ.get(
        "GAPLESS_PUBLIC_FILES", Path(__file__).resolve().parents[2] / "runs" / "public_files"
    )
)
LOOPS = PARTS[:3]


@pytest.fixture(scope="module")
def public_look():
    files = read_table()
    if why := what_is_absent(FOLDER, files):
        pytest.skip(why)
    return look_at(FOLDER, files)


def test_the_table_has_many_kinds_of_files():
    """Both kinds of lines in at least fourteen repositories; what is listed is known."""
    files = read_table()
    verdicts = [line.verdict for file in files for line in file.lines]

    assert len({file.repository for file in files}) >= 14
    assert verdicts.count("sure") >= 200
    assert verdicts.count("no") >= 200
    unseen = {file.repository for file in read_table(TABLE.with_name("unseen.toml"))}
    assert len(unseen) == 11
    assert not unseen & {file.repository for file in files}


def test_words_stand_where_the_table_says():
    """Each row is of the line that it names."""
    files = read_table()
    if why := what_is_absent(FOLDER, files):
        pytest.skip(why)

    wrong = []
    for file in files:
        text = (FOLDER / file.place).read_text(encoding="utf-8").splitlines()
        for line in file.lines:
            if line.words not in "\n".join(text[line.first - 1 : line.last]):
                wrong.append((file.place, line))

    assert wrong == []


DEMANDS = {
    # Nine of ten waits are found.
    "public: the step": lambda look: look.recall("step") >= 0.9,
    "public: the step and what it calls": lambda look: look.recall("step", "called") >= 0.9,
    "public: with evaluation": lambda look: look.recall(*LOOPS) >= 0.9,
    # What is called sure does wait, but for one at most; of all findings, nine of ten.
    "public: sure": lambda look: len(look.judged("surely")[1]) <= 1,
    "public: right": lambda look: look.precision() >= 0.9,
    # In each repository findings of the step stand before all others.
    "public: the step first": lambda look: not look.out_of_order(),
}


@pytest.mark.parametrize("is_met", params(DEMANDS))
def test_public_files(is_met, public_look):
    """What is asked of the look over files that its rules were not made on."""
    assert is_met(public_look), say(public_look)


def line(first, verdict, part):
    return Line(first=first, last=first, verdict=verdict, part=part, mend="-", words="x", why="y")


def test_shares_are_counted():
    """A line that is not listed is wrong to report; maybe and via count nowhere; set-up is not missed."""
    file = File(
        repository="a/b",
        commit="0",
        path="c.py",
        sha256="0",
        lines=(
            line(1, "sure", "step"),
            line(2, "sure", "step"),
            line(3, "sure", "evaluation"),
            line(4, "no", "step"),
            line(5, "maybe", "step"),
            line(6, "via", "step"),
            line(7, "sure", "set-up"),
        ),
    )
    found = tuple(
        Finding(file=file, number=number, code="GAP001", certainty=certainty, line=file.at(number))
        for number, certainty in [
            (3, "surely"),
            (1, "maybe"),
            (4, "surely"),
            (5, "surely"),
            (6, "maybe"),
            (9, "maybe"),
        ]
    )
    look = Look(files=(file,), findings={"a/b": found})

    assert look.recall("step") == 0.5
    assert [one.first for _, one in look.missed(*LOOPS)] == [2]
    assert look.recall(*LOOPS) == pytest.approx(2 / 3)
    assert look.precision("surely") == 0.5
    assert look.precision() == 0.5
    assert [(early.number, late.number) for early, late in look.out_of_order()] == [(3, 1), (3, 5)]
