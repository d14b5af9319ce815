"""Findings of source files as lines of text, and as SARIF."""

from __future__ import annotations

import json
from dataclasses import replace

from gapless.records.finding import Finding, Site
from gapless.report.sarif import sarif_json
from gapless.report.static_text import static_text


WAIT = Finding(
    code="GAP011",
    site=Site(path="src/train.py", line=3),
    call="torch.cuda.synchronize",
    per_step=1.0,
    certainty="surely",
    cause="torch.cuda.synchronize lets the host wait.",
    mend="Leave it out.\nevent.record()",
)
READ = replace(
    WAIT,
    code="GAP001",
    site=Site(path="/data/a b.py", line=9),
    certainty="maybe",
    cause="Tensor.item waits.",
    mend="Read it late.",
)


def test_each_finding_is_a_line_that_editors_open():
    """What is only maybe says so; a mend stands once; the last line counts."""
    assert static_text(
        [WAIT, READ, replace(WAIT, site=Site(path="x.py", line=4))], num_files=1
    ) == (
        "src/train.py:3: GAP011 torch.cuda.synchronize lets the host wait.\n"
        "    Leave it out.\n"
        "    event.record()\n"
        "/data/a b.py:9: GAP001 maybe: Tensor.item waits.\n"
        "    Read it late.\n"
        "x.py:4: GAP011 torch.cuda.synchronize lets the host wait.\n"
        "3 findings, 1 of them maybe, in 1 file\n"
    )


def test_nothing_found_is_said():
    """How many files there were is worth knowing then."""
    assert static_text([], num_files=12) == "0 findings in 12 files\n"


def test_sarif_has_a_rule_for_each_code_and_a_place_for_each_finding():
    """Paths are URIs; what is only maybe is a note; what has no line has no place."""
    text = sarif_json(
        [WAIT, READ, replace(WAIT, site=None)], titles={"GAP001": "A number is read"}
    )

    (run,) = json.loads(text)["runs"]
    assert json.loads(text)["version"] == "2.1.0"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["GAP001", "GAP011"]
    assert run["tool"]["driver"]["rules"][0]["shortDescription"] == {"text": "A number is read"}
    assert [(one["ruleId"], one["ruleIndex"], one["level"]) for one in run["results"]] == [
        ("GAP011", 1, "warning"),
        ("GAP001", 0, "note"),
    ]
    places = [one["locations"][0]["physicalLocation"] for one in run["results"]]
    assert places == [
        {"artifactLocation": {"uri": "src/train.py"}, "region": {"startLine": 3}},
        {"artifactLocation": {"uri": "file:///data/a%20b.py"}, "region": {"startLine": 9}},
    ]
    assert run["results"][0]["message"]["text"].endswith("Leave it out.")
