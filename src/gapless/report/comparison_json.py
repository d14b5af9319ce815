"""Comparisons of plans as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from gapless.records.comparison import ComparisonReport


def comparison_json(report: ComparisonReport) -> str:
    """Return a comparison as JSON: `rows` has one object for each plan, with its name in `plan`.

    The verification is left out, as `rows` say which plans compute the same; so are timelines.
    """
    values = asdict(replace(report, verification=None, timelines=()))
    del values["verification"], values["timelines"]
    for row, values_of_row in zip(report.rows, values["rows"], strict=True):
        values_of_row["tokens_per_second"] = (
            row.throughput if report.unit.endswith("tokens") else None
        )
        values_of_row["busy_share"] = row.busy_share
    return json.dumps(_finite(values), indent=2, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
