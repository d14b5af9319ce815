"""A session that is made private holds nothing of the script, and still says what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings

from doctor.any_session import sessions
from gapless.doctor.advice.explanations import mend_of, title_of
from gapless.doctor.session.private import private
from gapless.records.finding import Site
from gapless.report.json_reports import read_session, session_json
from gapless.report.session_text import session_text
from made_up_session import CLIP, COPY, ITEM, UNKNOWN, made_up_session


# Fields whose values are words of ours by their type.
_OWN = {"certainty", "kind", "device", "part"}


def told(value: Any, secret: str) -> Any:
    """Return a record in which every text is replaced by a secret."""
    if is_dataclass(value):
        changed = {
            one.name: told(getattr(value, one.name), secret)
            for one in fields(value)
            if one.name not in _OWN
        }
        if isinstance(value, Site):  # a path that is known would hide the same text elsewhere
            changed["path"] = f"{secret}/of_a_file.py"
        return replace(value, **changed)
    if isinstance(value, tuple):
        return tuple(told(item, secret) for item in value)
    if isinstance(value, dict):
        return value | {secret: secret}
    return secret if isinstance(value, str) else value


@pytest.mark.parametrize(
    "secret",
    [
        "/home/zara/qwx model/trainzz.py",
        "C:\\Zara\\qwxmodel.py:12",
        "qwx",
        "秘密/模型.py",
        "'qwx'",
        "QwxError: zara@example.org has no qwx.pt",
        "torch.qwx(zara)",
        "--qwx=zara",
        "qwx_kernel<float, 64>",
        "loss.item() # qwx",
        "loss.item()",
        "\udcffqwx",
        "123456789012",
        "10.11.12.13",
    ],
)
def test_no_word_of_a_script_is_left(secret):
    """Whatever its texts are and wherever they stand: also in fields that are new."""
    session = private(told(made_up_session(num_steps=1), secret))
    text = session_json(session)

    for word in ["qwx", "zara", "模型", "秘密", "item()", "123456", "10.11", "udcff"]:
        assert word not in text.lower()
        assert json.dumps(word)[1:-1] not in text.lower()


def test_no_word_of_a_sentence_with_an_exception_is_left():
    """What gapless says of it stays."""
    session = made_up_session(num_steps=1)
    note = (
        "The script ended with RuntimeError: no file /data/qwx.csv for Zarathustra Qwxes after 12 steps, at "
        "train.py:57."
    )
    session = private(replace(session, notes=(note,), findings=(ITEM,)))

    (said,) = session.notes
    assert "qwx" not in said
    assert "Zarathustra" not in said
    assert "RuntimeError:" in said
    assert "12 steps" in said
    assert "... ..." not in said
    assert said.endswith("file 1:57.")


def test_files_have_numbers_that_stay_the_same_and_lines_keep_theirs():
    """Two findings in one file are seen to be; a forward line may be in another."""
    session = private(replace(made_up_session(num_steps=1), findings=(ITEM, CLIP, COPY, UNKNOWN)))

    assert [str(one.site) for one in session.findings] == [
        "file 1:57",
        "file 2:112",
        "file 1:49",
        "None",
    ]
    assert str(session.findings[1].forward) == "file 3:31"
    assert {one.site.source for one in session.findings if one.site} == {""}
    assert {one.site.function for one in session.findings if one.site} == {""}


def test_what_was_measured_stays():
    """Figures, codes, calls of torch, and what the code means."""
    session = made_up_session(num_steps=1)
    found = private(session)

    assert found.steps == session.steps
    assert found.device == session.device
    assert found.versions == session.versions
    assert found.step == "a call of AdamW.step"
    assert [one.exposed_ms for one in found.findings] == [
        one.exposed_ms for one in session.findings
    ]
    assert found.findings[0].call == "Tensor.item"
    assert found.findings[0].cause == f"{title_of('GAP001')}."
    assert found.findings[0].mend == mend_of("GAP001")
    assert found.timeline.end_us == session.timeline.end_us
    assert {lane.name for lane in found.timeline.lanes} == {
        "main thread",
        "autograd thread",
        "thread 1",
        "stream 7",
        "stream 13",
    }
    assert "GAP001  file 1:57\n" in session_text(found)


@given(sessions)
@settings(deadline=None, max_examples=25)
def test_any_session_can_be_made_private_and_saved(session):
    """Twice is the same as once."""
    found = private(session)

    assert private(found).findings == found.findings
    assert read_session(session_json(found), "a.session") == found
