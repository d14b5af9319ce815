"""What changed between two sessions of the doctor, as JSON; docs/doctor-json.md describes it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gapless.report.session_json import VERSION, plain


if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.records.finding import Finding
    from gapless.records.session_difference import SessionDifference


FORMAT = "gapless doctor difference"


def difference_json(difference: SessionDifference) -> str:
    """Return which findings are gone, new, changed or the same, and what became of the step."""
    changed = difference.changed
    same = [pair for pair in difference.kept if pair not in changed]
    values = {
        "format": FORMAT,
        "version": VERSION,
        "speedup": plain(difference.speedup),
        "is_clear": difference.is_clear,
        "before": plain(difference.before.steps),
        "after": plain(difference.after.steps),
        "gone": plain(difference.gone),
        "new": plain(difference.new),
        "changed": _pairs(changed),
        "same": _pairs(same),
    }
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def _pairs(pairs: Iterable[tuple[Finding, Finding]]) -> list[dict[str, object]]:
    return [{"before": plain(before), "after": plain(after)} for before, after in pairs]
