"""Findings as SARIF."""

from __future__ import annotations

import json

from gapless.records.finding import Finding, Site
from gapless.report.sarif import sarif_json


def finding(code="GAP001", line=3, *, path="src/a b.py", source="loss.item()", certainty="surely"):
    return Finding(
        code=code,
        site=Site(path=path, line=line, function="train", source=source),
        call="Tensor.item",
        per_step=None,
        certainty=certainty,
        cause="It waits.",
        mend="Read it later.",
    )


def run_of(*findings, **options):
    log = json.loads(sarif_json(findings, **options))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    return run


def test_a_finding_stands_at_its_line():
    """With its code, its text, and a path that is a URI as it was given."""
    (result,) = run_of(finding())["results"]

    location = result["locations"][0]["physicalLocation"]
    assert location["artifactLocation"] == {"uri": "src/a%20b.py"}
    assert location["region"] == {"startLine": 3, "snippet": {"text": "loss.item()"}}
    assert (result["ruleId"], result["level"]) == ("GAP001", "warning")
    assert result["message"]["text"] == "It waits. Read it later."


def test_what_may_wait_is_a_note_and_says_so():
    """Nobody takes a guess for a fact."""
    (result,) = run_of(finding(certainty="maybe"))["results"]

    assert result["level"] == "note"
    assert result["message"]["text"].startswith("If this is on a device")


def test_each_code_is_one_rule():
    """Results point at their rules; titles are given by the caller."""
    run = run_of(
        finding("GAP003"), finding("GAP001"), finding("GAP003"), titles={"GAP001": "A read"}
    )

    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["GAP001", "GAP003"]
    assert [rule["shortDescription"]["text"] for rule in rules] == ["A read", "GAP003"]
    assert [rules[one["ruleIndex"]]["id"] for one in run["results"]] == [
        "GAP003",
        "GAP001",
        "GAP003",
    ]


def fingerprints(*findings):
    return [one["partialFingerprints"]["line/v1"] for one in run_of(*findings)["results"]]


def test_a_finding_stays_the_same_when_lines_are_added_above():
    """And two alike lines of a function are two findings."""
    before = fingerprints(finding(line=3), finding(line=9))

    assert fingerprints(finding(line=13), finding(line=19)) == before
    assert len(set(before)) == 2


def test_an_absolute_path_and_a_finding_without_a_line():
    """The first is a file's URI; code review has no place for the second."""
    nowhere = Finding(
        code="GAP021", site=None, call="cudaFree", per_step=1.0, cause="Unknown.", mend="Look."
    )
    (result,) = run_of(finding(path="/x/a.py"), nowhere)["results"]

    place = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "file:///x/a.py"}


def test_files_that_were_not_read_are_named():
    """They are no findings, but nobody takes them for clean."""
    run = run_of(unread=["a.py:1 does not parse: invalid syntax."])

    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["message"]["text"] == "a.py:1 does not parse: invalid syntax."
    assert run["results"] == []
