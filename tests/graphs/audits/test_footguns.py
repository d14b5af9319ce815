"""The page of footguns: each class has the verdict that it is said to have, in all four forms."""

from __future__ import annotations

import warnings

import pytest

from graphs.audits.footguns import (
    AUDITED,
    CAPTURED,
    EITHER,
    FOOTGUNS,
    FORMS,
    GUARDED,
    NOT_AUDITED,
    REFUSED,
    train,
)
from graphs.audits.harness import NEVER, Place, needs_audits


CALLS, AT = 20, 12

each_footgun = pytest.mark.parametrize("footgun", FOOTGUNS, ids=str)
each_form = pytest.mark.parametrize("form", FORMS)


def trained(footgun, form, folder, *, at=AT, options=None):
    with Place(folder) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(footgun, place, form, calls=CALLS, at=at, options=options)


def test_there_are_about_forty_classes():
    """Each has a name of its own, and every verdict occurs."""
    assert len({footgun.name for footgun in FOOTGUNS}) == len(FOOTGUNS) >= 40
    verdicts = {footgun.expect for footgun in FOOTGUNS}
    assert verdicts == {CAPTURED, GUARDED, REFUSED, AUDITED, EITHER, NOT_AUDITED}


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
    """As written, a row's losses, weights and log are the same in each form."""
    for footgun in FOOTGUNS[::8]:
        first, *others = (trained(footgun, form, tmp_path) for form in FORMS)
        assert all(other == first for other in others), footgun.name


@needs_audits
@pytest.mark.quick_cases(8)
@each_form
@each_footgun
def test_each_class_has_its_verdict(footgun, form, tmp_path):
    """With an audit of every replay nothing differs from the loop as written, but what none promises."""
    expected = footgun.verdict_of(form)
    plain = trained(footgun, form, tmp_path)
    audited = trained(footgun, form, tmp_path, options={"audit_every": 1})
    alone = trained(footgun, form, tmp_path, options={"audit_every": NEVER})
    told = audited.told_at() is not None
    is_stale = alone.results != plain.results
    seen = AT // 2 - 1 if form == "group" else AT - 1

    if expected != NOT_AUDITED:
        assert audited.results == plain.results
        assert told or audited.refusals or not is_stale, "replays differ, and nothing is said"
    if expected in (CAPTURED, GUARDED, REFUSED):
        assert not told
        assert not is_stale
    if expected in (CAPTURED, GUARDED):
        assert alone.replays[seen] > 0
    if expected == CAPTURED:
        assert alone.replays[-1] > alone.replays[seen]
        assert not alone.refusals
    if expected == REFUSED:
        assert alone.replays[-1] == 0
        assert alone.refusals
        assert not any("\n" in text for text in alone.refusals)
    if expected == AUDITED:
        assert told
