"""Findings of the doctor as SARIF 2.1.0, which code review and editors show at their lines.

Source: "Static Analysis Results Interchange Format (SARIF) Version 2.1.0", OASIS Standard.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gapless import __version__


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gapless.records.finding import Finding, Site


_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS = {"seen": "warning", "surely": "warning", "maybe": "note"}


def sarif_json(
    findings: Iterable[Finding],
    *,
    titles: Mapping[str, str] | None = None,
    unread: Iterable[str] = (),
) -> str:
    """Return findings as one run of SARIF. What only may wait is a note, the rest are warnings.

    Args:
        findings: in the order in which they are to stand; code review has no place for those
            without a line, which are left out.
        titles: what each code means in a few words; a code without one is its own title.
        unread: files that could not be looked at, with the reason.
    """
    placed = [(finding, finding.site) for finding in findings if finding.site is not None]
    codes = sorted({finding.code for finding, _ in placed})
    seen: Counter[str] = Counter()
    notes = [{"level": "error", "message": {"text": reason}} for reason in unread]
    run = {
        "tool": {
            "driver": {
                "name": "gapless doctor",
                "version": __version__,
                "rules": [_rule(code, (titles or {}).get(code, code)) for code in codes],
            }
        },
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, site, codes, seen) for finding, site in placed],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(code: str, title: str) -> dict[str, Any]:
    help_text = f"`gapless explain {code}` says what it means and what to write instead."
    return {"id": code, "shortDescription": {"text": title}, "help": {"text": help_text}}


def _result(finding: Finding, site: Site, codes: list[str], seen: Counter[str]) -> dict[str, Any]:
    return {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": _LEVELS[finding.certainty],
        "message": {"text": " ".join(_sentences(finding))},
        "locations": [_location(site)],
        "partialFingerprints": {"line/v1": _fingerprint(finding, site, seen)},
    }


def _sentences(finding: Finding) -> Iterable[str]:
    maybe = finding.certainty == "maybe"
    yield f"If this is on a device: {finding.cause}" if maybe else finding.cause
    if finding.exposed_ms is not None:
        yield f"The device is idle for {finding.exposed_ms:.3g} ms a step because of it."
    yield finding.mend.partition("\n")[0]


def _location(site: Site) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": site.line}
    if site.source:
        region["snippet"] = {"text": site.source}
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": _artifact(site.path), "region": region}
    }
    if site.function:
        location["logicalLocations"] = [{"fullyQualifiedName": site.function}]
    return location


def _artifact(path: str) -> dict[str, str]:
    pure = PurePath(path)
    if pure.is_absolute():
        return {"uri": pure.as_uri()}
    return {"uri": quote(pure.as_posix())}


def _fingerprint(finding: Finding, site: Site, seen: Counter[str]) -> str:
    """Return what stays as it is while lines above are added: the line's text, not its number."""
    key = f"{finding.code} {site.path} {site.function} {site.source}"
    seen[key] += 1
    return hashlib.sha256(f"{key} {seen[key]}".encode()).hexdigest()[:16]
