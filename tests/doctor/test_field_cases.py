"""Faults that were seen on public code do not come back in other forms: lines and their mends."""

from __future__ import annotations

import re

import pytest

from doctor.field_tables import advice_cases, lines_cases
from doctor.not_yet import params
from gapless.doctor.static.look import findings_of


def is_as_marked(found, marker):
    """Whether the findings of a line are what its marker says."""
    if marker == "reported":
        return bool(found)
    if marker == "at most maybe":
        return all(one.certainty == "maybe" for one in found)
    code, _, certainty = marker.partition(" ")
    mine = [one for one in found if one.code == code]
    if certainty == "any":
        return len(mine) == len(found)
    return bool(mine) and certainty in ("", *(one.certainty for one in mine))


@pytest.mark.parametrize("snippet", params(lines_cases()))
def test_lines_are_reported_as_marked(snippet):
    """Each marked line as its marker says; no other line."""
    compile(snippet.source, "s.py", "exec")
    found = {}
    for one in findings_of(snippet.source, "s.py"):
        found.setdefault(one.site.line, []).append(one)

    wrong = [
        line
        for line, marker in snippet.markers.items()
        if not is_as_marked(found.get(line, []), marker)
    ]

    assert [wrong, sorted(set(found) - set(snippet.markers))] == [[], []], found


@pytest.mark.parametrize("snippet", params(advice_cases()))
def test_a_mend_is_one_for_its_case(snippet):
    """It says what helps here, and nothing that cannot."""
    compile(snippet.source, "s.py", "exec")
    (line,) = snippet.markers

    mends = [one.mend for one in findings_of(snippet.source, "s.py") if one.site.line == line]

    assert mends
    for mend in mends:
        missing = [one for one in snippet.more["says"] if not re.search(one, mend, re.IGNORECASE)]
        assert missing == [], mend
        said = [one for one in snippet.more["says_not"] if re.search(one, mend, re.IGNORECASE)]
        assert said == [], mend
