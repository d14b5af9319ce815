"""The corpus, as `doctor.judge` has judged it: counts by where the waits are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.doctor.options import Options


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield the counts of each group of labels, and of the cases."""
    if options.judged is None:
        raise FileNotFoundError(
            "the corpus is judged by `python -m doctor.judge`; name its file with --judged"
        )
    results = json.loads(options.judged.read_text(encoding="utf-8"))
    ran = [one for one in results if "skipped" not in one and one.get("device") != "cpu"]
    labels = [label for one in ran for label in one["labels"] if label["required"]]
    for group in sorted({label["group"] for label in labels}):
        mine = [label for label in labels if label["group"] == group]
        counts = {
            key: sum(label[key] for label in mine) for key in ("right", "line", "sync_debug")
        }
        yield {
            "name": group,
            "labels": len(mine),
            **counts,
            "is_right": counts["right"] == len(mine),
        }
    mistakes = [kind for one in ran for kind, _ in one["mistakes"]]
    alarms = sum(kind in ("false alarm", "unattributed") for kind in mistakes)
    yield {
        "name": "cases",
        "cases": len(ran),
        "right": sum(one["right"] for one in ran),
        "skipped": len(results) - len(ran),
        "harmless": sum(one["harmless"] for one in ran),
        "false_alarms": alarms,
        "mistakes": len(mistakes),
        "is_right": bool(ran) and all(one["right"] for one in ran),
    }
