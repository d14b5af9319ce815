"""Findings of the doctor as annotations of GitHub: one line each, which a workflow shows at its line of a change."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gapless.records.finding import Finding

_LEVELS = {"seen": "warning", "surely": "warning", "maybe": "notice"}


def annotations_text(findings: Iterable[Finding], *, titles: Mapping[str, str]) -> str:
    """Return a command of GitHub's workflows for each finding that has a line.

    Args:
        findings: in the order in which they are to stand; GitHub shows ten of a step.
        titles: what each code means in a few words.
    """
    lines = []
    for one in findings:
        if one.site is None:
            continue
        where = f"file={_property(one.site.path)},line={one.site.line}"
        title = _property(f"{one.code}: {titles.get(one.code, one.code)}")
        text = _data(f"{one.cause}\n{one.mend}")
        lines.append(f"::{_LEVELS[one.certainty]} {where},title={title}::{text}\n")
    return "".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
