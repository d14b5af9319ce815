"""`gapless explain`: what a code of the doctor means."""

from __future__ import annotations

import pytest

from gapless.doctor.advice.explanations import explanations, mend_of, title_of


def test_a_code_is_explained_with_an_example(gapless):
    """Meaning, reason, mend, and what changes in an example."""
    outcome = gapless("explain", "gap004")

    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"GAP004  {title_of('GAP004')}: ")
    assert "\nWhy. The host stands still" in outcome.out
    assert f"\nInstead. {mend_of('GAP004')}\n" in outcome.out
    assert "`" * 3 not in outcome.out
    assert "\n-    x, y = x.to(device), y.to(device)\n" in outcome.out
    assert "\n+for x, y in gapless.prefetch(loader, device):\n" in outcome.out


def test_without_a_code_all_are_listed(gapless):
    """One line each."""
    outcome = gapless("explain")

    assert outcome.out.splitlines() == [f"{code}  {title_of(code)}" for code in explanations()]


@pytest.mark.parametrize("code", ["GAP999", "wait", ""])
def test_an_unknown_code_is_refused_in_one_line(gapless, code):
    """It names what was typed, and which codes there are."""
    outcome = gapless("explain", code)

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    assert repr(code) in outcome.err
    assert "GAP001 to GAP021" in outcome.err
