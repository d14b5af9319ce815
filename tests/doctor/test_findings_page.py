"""findings.md explains each code, and its examples compute the same after the edit."""

from __future__ import annotations

import pytest
import torch

from doctor.findings_page import edits, run
from gapless.doctor.advice.causes import CODE_OF
from gapless.doctor.advice.explanations import explanations, find_code, mend_of, title_of


def test_every_code_is_explained_and_there_are_no_others():
    """What the doctor can find, `gapless explain` knows: title and meaning, why, and what to write instead."""
    assert list(explanations()) == sorted(set(CODE_OF.values()))
    for code, (first, why, mend, *_) in explanations().items():
        assert title_of(code) in first
        assert why.startswith("**Why.** ")
        assert mend.endswith(mend_of(code))


def test_many_codes_have_examples():
    """All but three: asked again and again, lost to a thread of C++, and none."""
    assert len({code for code, _, _ in edits()}) >= 19


@pytest.mark.parametrize(("code", "before", "after"), edits(), ids=lambda one: one[:6])
def test_an_example_computes_the_same_after_its_edit(code, before, after):
    """Every printed line is the same; weights are, but for the order in which sums are rounded."""
    before, after, untrained = run(before), run(after), run("").weights

    assert after.printed == before.printed
    torch.testing.assert_close(after.weights, before.weights, rtol=1e-5, atol=1e-6)
    assert before.printed or any(
        not before.weights[name].equal(untrained[name]) for name in untrained
    )


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
