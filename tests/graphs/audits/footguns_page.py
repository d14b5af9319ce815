"""Print docs/footguns.md: `PYTHONPATH=tests python3 -m graphs.audits.footguns_page > docs/footguns.md`."""

from __future__ import annotations

from graphs.audits.footgun_classes import CLASSES
from graphs.audits.footguns import (
    AUDITED,
    CAPTURED,
    EITHER,
    GUARDED,
    NOT_AUDITED,
    REFUSED,
)


HEAD = """# Footguns: what a captured step can miss, and what happens

Each class has cases that run in four forms (a step, a method, in place, in groups), on the simulated device and on a GPU.
The cases of a class: `pytest tests/graphs/audits/test_footguns.py -k CLASS`. With any guard deleted, one of them fails
(`tests/graphs/audits/mutants_of_guards.py`). Whole loops: [`tests/hazards`](../tests/hazards/README.md).
"""

SECTIONS = {
    GUARDED: (
        "Guarded",
        "Compared before each replay. A change is captured anew, or runs eagerly.",
    ),
    CAPTURED: ("Captured", "Replays go on, with equal bits."),
    REFUSED: ("Refused", "The step runs eagerly; one line says why."),
    EITHER: ("Guarded or refused", "Never a stale result."),
    AUDITED: ("Not seen, told by audits", "Guards do not look there."),
    NOT_AUDITED: ("Not seen", "Neither promises to tell."),
}


def page():
    """Return the page of footguns."""
    parts = [HEAD]
    for verdict, (title, sentence) in SECTIONS.items():
        rows = [
            [f"`{one.key}`", str(len(one.rows)), one.words]
            for one in CLASSES
            if one.expect == verdict
        ]
        # What to do instead, where there is anything to be done.
        width = 3 if any(words for *_, words in rows) else 2
        parts.append(f"\n## {title}\n\n{sentence}\n\n")
        for row in (["class", "cases", "instead"], ["---"] * 3, *rows):
            parts.append("| " + " | ".join(row[:width]) + " |\n")
    return "".join(parts)


if __name__ == "__main__":
    print(page(), end="")
