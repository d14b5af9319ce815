"""docs/findings.md says what the codes say, and its examples compute the same after the edit."""

from __future__ import annotations

import pytest
import torch

from doctor.findings_page import PAGE, page, run
from gapless.doctor.advice.causes import CODE_OF
from gapless.doctor.advice.explanations import CODES, find_code


EDITS = [
    (code, kind)
    for code, its in CODES.items()
    for kind in ("after", "with_gapless")
    if getattr(its, kind)
]


def test_every_code_is_explained_and_there_are_no_others():
    """What the doctor can find, `gapless explain` knows."""
    assert list(CODES) == sorted(set(CODE_OF.values()))


def test_the_page_says_what_the_codes_say():
    """It is made from them: run `python -m doctor.findings_page`."""
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize(("code", "kind"), EDITS)
def test_an_example_computes_the_same_after_its_edit(code, kind):
    """Every printed line is the same; weights are, but for the order in which sums are rounded."""
    before, after = run(CODES[code].before), run(getattr(CODES[code], kind))

    assert after.printed == before.printed
    torch.testing.assert_close(after.weights, before.weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("code", dict(EDITS))
def test_an_example_trains_or_prints(code):
    """Otherwise that it is the same after the edit would say nothing."""
    done, untrained = run(CODES[code].before), run("").weights

    assert done.printed or any(not done.weights[name].equal(untrained[name]) for name in untrained)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("GAP001", "GAP001"),
        ("gap007", "GAP007"),
        ("GAP-12", "GAP012"),
        ("12", "GAP012"),
        ("GAP999", None),
        ("GAP", None),
        ("GAP001x", None),
        ("", None),
    ],
)
def test_a_code_is_found_however_it_is_written(text, code):
    """People type it from a report, or only its number."""
    assert find_code(text) == code
