"""Annotations of GitHub."""

from __future__ import annotations

from dataclasses import replace

from gapless.records.finding import Finding, Site
from gapless.report.annotations import annotations_text


READ = Finding(
    code="GAP001",
    site=Site(path="a,b.py", line=7),
    call="Tensor.item",
    per_step=None,
    certainty="surely",
    cause="It waits for 100 %.",
    mend="Do not.\nx = y",
)


def test_each_finding_with_a_line_is_one_command():
    """What ends a property or a line is escaped; what is only maybe is a notice."""
    findings = (READ, replace(READ, certainty="maybe"), replace(READ, site=None))

    first, second = annotations_text(findings, titles={"GAP001": "A read"}).splitlines()

    assert first == (
        "::warning file=a%2Cb.py,line=7,title=GAP001%3A A read::"
        "It waits for 100 %25.%0ADo not.%0Ax = y"
    )
    assert second.startswith("::notice file=")
