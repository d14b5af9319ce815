"""Findings of source files as lines of text."""

from __future__ import annotations

from dataclasses import replace

from gapless.records.finding import Finding, Site
from gapless.report.session_text import static_text


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
