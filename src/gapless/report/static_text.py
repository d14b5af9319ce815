"""What a look at source files has found, as text: a line for each finding, as linters write it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gapless.report.text import counted


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.records.finding import Finding


def static_text(findings: Sequence[Finding], *, num_files: int) -> str:
    """Return findings as lines of text, then how many there are.

    A mend stands where its kind is found first.

    Args:
        findings: of the syntax, by file and line.
        num_files: that were looked at.
    """
    lines: list[str] = []
    told: set[str] = set()
    for one in findings:
        mark = " maybe:" if one.certainty == "maybe" else ""
        lines.append(f"{one.site or '?'}: {one.code}{mark} {one.cause}")
        if one.mend not in told:
            told.add(one.mend)
            lines += [f"    {line}" for line in one.mend.splitlines()]
    return "\n".join([*lines, _total(findings, num_files)]) + "\n"


def _total(findings: Sequence[Finding], num_files: int) -> str:
    num_maybe = Counter(one.certainty for one in findings)["maybe"]
    maybe = f", {num_maybe} of them maybe," if num_maybe else ""
    return f"{counted(len(findings), 'finding')}{maybe} in {counted(num_files, 'file')}"
