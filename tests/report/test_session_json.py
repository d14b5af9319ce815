"""Sessions are saved and come back as they were; what is no session is refused in one line."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from doctor.any_session import sessions
from gapless.errors import UserError
from gapless.records.comparison import Spread
from gapless.records.finding import Finding, Session, Site, StepTimes, Trial
from gapless.records.timeline import Gap, Lane, Span, Timeline
from gapless.report.session_json import read_session, session_json
from made_up_session import made_up_session


KEYS = """
format version command device versions step steps findings verdict notes trials num_ranks timeline
"""

# Of a span, which is a row without keys.
ROW = {one.name for one in fields(Span)}

FINDING_KEYS = """
code site thread call per_step waited_ms exposed_ms gain_ms share certainty cause mend forward rank
"""


@given(sessions)
@settings(deadline=None, max_examples=20)
def test_a_session_comes_back_as_it_was_saved(session):
    """Every field of it, whatever is in the texts."""
    text = session_json(session)

    assert read_session(text, "a.session") == session
    assert text.isascii()


def test_a_made_up_session_comes_back_as_it_was_saved():
    """With a timeline of ten steps; a name that comes often is written once."""
    session = made_up_session()
    text = session_json(session)

    assert read_session(text, "a.session") == session
    assert text.count("flash_fwd_kernel") == 1


def test_the_keys_of_the_file_are_those_written_down():
    """Scripts read these keys: adding, removing or renaming one is a change that users see."""
    found = json.loads(session_json(made_up_session(num_steps=1)))

    assert list(found) == KEYS.split()
    assert list(found["findings"][0]) == FINDING_KEYS.split()
    assert found["version"] == 1


def test_the_page_on_the_file_names_all_its_keys():
    """docs/doctor-json.md is what scripts are written by."""
    page = (Path(__file__).parents[2] / "docs" / "doctor-json.md").read_text(encoding="utf-8")
    records = (Finding, Gap, Lane, Session, Site, Span, StepTimes, Timeline, Trial, Spread)
    named = set(re.findall(r"`(\w+)`", page))
    keys = {one.name for record in records for one in fields(record)} - ROW

    assert keys - named == set()


def test_what_is_not_finite_is_null_and_comes_back_as_nan():
    """JSON has neither NaN nor infinity."""
    session = made_up_session(num_steps=1)
    session = replace(session, findings=(replace(session.findings[0], per_step=math.inf),))
    text = session_json(session)

    assert json.loads(text, parse_constant=pytest.fail)["findings"][0]["per_step"] is None
    assert math.isnan(read_session(text, "a.session").findings[0].per_step)


def test_a_key_that_is_new_is_left_out_and_one_with_a_default_may_be_absent():
    """Files of one version differ in fields that came later."""
    session = made_up_session(num_steps=1)
    values = json.loads(session_json(session))
    values["weather"] = "sunny"
    del values["findings"][0]["thread"]

    assert read_session(json.dumps(values), "a.session") == session


def changed(*keys, to):
    """Return a saved session with one value replaced."""
    values = json.loads(session_json(made_up_session(num_steps=1)))
    place = values
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = to
    return json.dumps(values)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a whole session"),
        (session_json(made_up_session(num_steps=1))[:-100], "is not a whole session"),
        ("[" * 100_000, "is not a whole session"),
        ("[]", "is not a session of the doctor; `gapless doctor --save"),
        ('{"rows": []}', "is not a session of the doctor"),
        (changed("version", to=2), "newer gapless: it has version 2 .* reads up to 1"),
        (changed("version", to="1"), "version must be a whole number, but is '1'"),
        (changed("findings", to=None), r"the session\.findings must be a list, but is None"),
        (
            changed("findings", 0, "waited_ms", to="a"),
            r"findings\[0\]\.waited_ms must be a number",
        ),
        (changed("findings", 0, "per_step", to=10**400), r"per_step is too large a number"),
        (changed("findings", 0, "site", to={"path": "a"}), r"findings\[0\]\.site has no line"),
        (changed("findings", 0, "site", "line", to=True), r"line must be a number, but is True"),
        (changed("findings", 0, "certainty", to="so"), "must be one of seen, surely, maybe"),
        (changed("timeline", "lanes", 0, "spans", 0, to=[0, 1]), "must have 5 values, but has 2"),
        (changed("timeline", "lanes", 0, "spans", 0, 0, to=-1), "names the text -1"),
        (changed("timeline", "lanes", 0, "spans", 0, 1, to="x"), "spans must be one of kernel"),
    ],
)
def test_what_is_no_session_is_refused_in_one_line(text, said):
    """It names the file, the place in it, and what was found there."""
    with pytest.raises(UserError, match=said) as refused:
        read_session(text, "a.session")

    assert str(refused.value).startswith("a.session ")
    assert "\n" not in str(refused.value)
