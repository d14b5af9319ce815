"""Reports as JSON. Sessions come back as they were saved; what is no session is refused in one line."""

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
from gapless.records.finding import (
    Finding,
    PartTimes,
    RankTimes,
    Session,
    Site,
    StepTimes,
    Trial,
)
from gapless.records.session_difference import SessionDifference
from gapless.records.timeline import Gap, Lane, Span, Timeline
from gapless.report.json_reports import (
    comparison_json,
    difference_json,
    read_session,
    session_json,
)
from made_up_session import COPY, ITEM, LOADER, UNKNOWN, made_up_session
from toys import made_up_report, made_up_rows


KEYS = """
format version command device versions step steps findings verdict notes trials num_ranks ranks timeline
"""

# Of a span, which is a row without keys.
ROW = {one.name for one in fields(Span)}

FINDING_KEYS = """
code site thread call per_step waited_ms exposed_ms gain_ms share certainty cause mend part forward rank
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
    records = (
        *(Finding, Gap, Lane, PartTimes, RankTimes, Session, Site, Span, Spread),
        *(StepTimes, Timeline, Trial),
    )
    named = set(re.findall(r"`(\w+)`", page))
    keys = {one.name for record in records for one in fields(record)} - ROW

    assert keys - named == set()


def test_what_is_not_finite_is_null_and_comes_back_as_nan():
    """JSON has neither NaN nor infinity."""
    session = made_up_session(num_steps=1)
    session = replace(
        session, ranks=(RankTimes(rank=0, step_ms=math.inf, data_ms=1.0, own_ms=1.0),)
    )
    text = session_json(session)

    assert json.loads(text, parse_constant=pytest.fail)["ranks"][0]["step_ms"] is None
    assert math.isnan(read_session(text, "a.session").ranks[0].step_ms)


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


# --- what changed between two sessions ---


def test_findings_are_gone_new_changed_or_the_same():
    """A finding has the keys that it has in a session; a pair has it as it was and as it is."""
    made_up = made_up_session(num_steps=2)
    before = replace(made_up, findings=(ITEM, LOADER, UNKNOWN))
    after = replace(made_up, findings=(replace(LOADER, exposed_ms=0.2), UNKNOWN, COPY))

    found = json.loads(difference_json(SessionDifference.of(before, after)))

    assert (found["format"], found["version"]) == ("gapless doctor difference", 1)
    assert [one["code"] for one in found["gone"]] == ["GAP001"]
    assert [one["code"] for one in found["new"]] == ["GAP005"]
    (pair,) = found["changed"]
    assert (pair["before"]["exposed_ms"], pair["after"]["exposed_ms"]) == (0.93, 0.2)
    assert [pair["after"]["code"] for pair in found["same"]] == ["GAP021"]
    assert (found["speedup"], found["is_clear"]) == (1.0, False)
    assert found["before"]["wall_ms"]["median"] == made_up.steps.wall_ms.median


@given(sessions, sessions)
@settings(deadline=None, max_examples=20)
def test_each_finding_is_in_one_place(before, after):
    """Whatever the sessions are; and JSON has no number that is not finite."""
    text = difference_json(SessionDifference.of(before, after))
    found = json.loads(text, parse_constant=pytest.fail)

    pairs = len(found["changed"]) + len(found["same"])
    assert len(found["gone"]) + pairs == len(before.findings)
    assert len(found["new"]) + pairs == len(after.findings)


# --- comparisons ---


COMPARISON_KEYS = """
workload device hardware is_accelerator torch commit unit settings rows recommendation notes
reproducible in_turns
"""

ROW_KEYS = """
plan identical ms_per_step steps_per_epoch throughput waits_per_step waited_ms_per_step
waits_by_reason data_wait_ms_per_step launch_ms_per_step host_cpu_percent own_cpu_percent
busy_ms_per_step
overlap_share stream_shares kernels_per_step gap_share meter_busy_ms_per_step meter_gap_share
nvml_percent
peak_memory_bytes held_memory_bytes grown_memory_bytes capture_seconds compile_seconds capture
diagnosis late_captures
settings tokens_per_second busy_share
"""


def test_the_keys_of_a_comparison_are_those_written_down():
    """Scripts read these keys: adding, removing or renaming one is a change that users see."""
    found = json.loads(comparison_json(made_up_report()))

    assert list(found) == COMPARISON_KEYS.split()
    assert list(found["rows"][0]) == ROW_KEYS.split()


def test_a_comparison_has_a_row_a_plan_and_no_number_that_json_lacks():
    """Rows are found by their key `plan`, and what is not finite is null."""
    first, *rest = made_up_rows()
    report = made_up_report(rows=(replace(first, throughput=math.nan, gap_share=0.25), *rest))

    found = json.loads(comparison_json(report), parse_constant=pytest.fail)

    assert [row["plan"] for row in found["rows"]] == ["blocking", "captured", "auto"]
    assert found["rows"][0]["throughput"] is None
    assert found["rows"][0]["busy_share"] == 0.75
    assert found["rows"][1]["tokens_per_second"] == 75_000.0
    assert found["rows"][1]["capture"]["refusal"] == "train.py:7: a host wait"
    assert "claims" not in found
    assert found["recommendation"]["plan"] == "captured"
    assert (found["torch"], found["commit"]) == ("2.11.0", "abc1234")
