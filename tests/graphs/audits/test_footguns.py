"""The page of footguns: each class has the verdict that it is said to have, in all four forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphs.audits.footgun_classes import CLASSES, FOOTGUNS
from graphs.audits.footguns import (
    AT,
    AUDITED,
    CALLS,
    CAPTURED,
    EITHER,
    FORMS,
    GUARDED,
    NOT_AUDITED,
    REFUSED,
    judged,
    trained,
)
from graphs.audits.footguns_page import page
from graphs.audits.harness import needs_audits


each_footgun = pytest.mark.parametrize("footgun", FOOTGUNS, ids=str)
each_form = pytest.mark.parametrize("form", FORMS)


def test_there_are_about_forty_classes():
    """Each case and class has a name of its own, and every verdict occurs."""
    assert len({footgun.name for footgun in FOOTGUNS}) == len(FOOTGUNS) >= 65
    assert len({one.name for one in CLASSES}) == len(CLASSES) >= 35
    assert all(1 <= len(one.rows) <= 7 for one in CLASSES)
    verdicts = {footgun.expect for footgun in FOOTGUNS}
    assert verdicts == {CAPTURED, GUARDED, REFUSED, AUDITED, EITHER, NOT_AUDITED}


def test_the_page_is_that_of_the_classes():
    """docs/footguns.md has a row for each class, under its verdict."""
    written = Path(__file__).parents[3] / "docs" / "footguns.md"

    assert written.read_text(encoding="utf-8") == page()


@pytest.mark.quick_cases(4)
@each_footgun
def test_the_loop_as_written_repeats_itself(footgun, tmp_path):
    """And its losses are others from the change on, if the row says so."""
    unchanged = trained(footgun, "step", tmp_path, at=None)
    changed = trained(footgun, "step", tmp_path)

    assert trained(footgun, "step", tmp_path) == changed
    assert changed.results[:AT] == unchanged.results[:AT]
    assert (changed.results[AT:CALLS] != unchanged.results[AT:CALLS]) == footgun.shows


@pytest.mark.slow
def test_all_forms_train_alike(tmp_path):
    """As written, a row's losses and weights are the same in each form."""
    # A group's loop stands still between its calls alone: nothing changes before each, and what it logs is
    # another thing.
    for footgun in [one for one in FOOTGUNS if one.when != "each call"][::8]:
        first, *others = (trained(footgun, form, tmp_path).results[: CALLS + 1] for form in FORMS)
        assert all(other == first for other in others), footgun.name


@needs_audits
@pytest.mark.quick_cases(4)
@each_form
@each_footgun
def test_each_class_has_its_verdict(footgun, form, tmp_path):
    """Nothing passes in silence, and what is guarded, refused or captured is."""
    assert judged(footgun, form, tmp_path) == []
