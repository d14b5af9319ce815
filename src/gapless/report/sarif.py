"""Findings as SARIF 2.1.0, which tools for code review read.

Source: "Static Analysis Results Interchange Format (SARIF) Version 2.1.0", OASIS Standard.
"""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from gapless import __version__


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gapless.records.finding import Certainty, Finding, Site


_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)

_LEVELS: dict[Certainty, str] = {"seen": "warning", "surely": "warning", "maybe": "note"}


def sarif_json(findings: Sequence[Finding], *, titles: Mapping[str, str] | None = None) -> str:
    """Return findings as the text of a SARIF file.

    Args:
        findings: of one run, or of one look at files; those without a line are left out.
        titles: of codes, in a few words.
    """
    titles = titles or {}
    with_lines = [(one, one.site) for one in findings if one.site is not None]
    codes = sorted({one.code for one, _ in with_lines})
    driver = {
        "name": "gapless doctor",
        "version": __version__,
        "rules": [_rule(code, titles.get(code, "")) for code in codes],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(one, site, codes.index(one.code)) for one, site in with_lines],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(code: str, title: str) -> dict[str, Any]:
    help_text = f"`gapless explain {code}` says what it means and what to write instead."
    rule: dict[str, Any] = {"id": code, "help": {"text": help_text}}
    return {**rule, "shortDescription": {"text": title}} if title else rule


def _result(one: Finding, site: Site, rule: int) -> dict[str, Any]:
    return {
        "ruleId": one.code,
        "ruleIndex": rule,
        "level": _LEVELS[one.certainty],
        "message": {"text": " ".join(_sentences(one))},
        "locations": [{"physicalLocation": _place(site)}],
    }


def _sentences(one: Finding) -> Iterable[str]:
    yield one.cause
    if one.exposed_ms is not None:
        yield f"The device is idle for {one.exposed_ms:.3g} ms a step because of it."
    yield one.mend.splitlines()[0] if one.mend else ""


def _place(site: Site) -> dict[str, Any]:
    path = PurePath(site.path)
    uri = path.as_uri() if path.is_absolute() else path.as_posix()
    return {"artifactLocation": {"uri": uri}, "region": {"startLine": site.line}}
