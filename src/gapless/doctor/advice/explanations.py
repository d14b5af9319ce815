"""What each code of a finding means: the sections of findings.md, which `gapless explain` prints.

The examples there go on from the lines above the first section. A test runs them on the CPU: after the
edit they compute the same.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path


PAGE = Path(__file__).with_name("findings.md")
_MEND = "**Instead.** "


@cache
def explanations() -> dict[str, tuple[str, ...]]:
    """Return the paragraphs of each code: title and meaning, why it waits, what to write instead, examples."""
    _, *sections = PAGE.read_text(encoding="utf-8").split("\n## ")
    return {section[:6]: tuple(_paragraphs(section[6:])) for section in sections}


def title_of(code: str) -> str:
    """Return what a code means in a few words."""
    return explanations()[code][0].partition(": ")[0]


def mend_of(code: str) -> str:
    """Return what to write instead, in general."""
    return next(one for one in explanations()[code] if one.startswith(_MEND)).removeprefix(_MEND)


def lines_added(code: str) -> str:
    """Return what the first example of a code adds to a loop, without its indents."""
    example = next(one for one in explanations()[code] if one.startswith("```"))
    return "\n".join(one[1:].strip() for one in example.splitlines() if one[0] == "+")


def find_code(text: str) -> str | None:
    """Return the code that somebody means: in any case, without leading zeros or "GAP"."""
    found = re.fullmatch(r"\s*(?:gap)?[-_ ]?0*(\d+)\s*", text, re.IGNORECASE)
    code = f"GAP{int(found[1]):03}" if found else ""
    return code if code in explanations() else None


def _paragraphs(section: str) -> list[str]:
    """Return paragraphs without their line breaks, and fenced examples as they are."""
    parts = re.split(r"^(```\w*\n.*?^```)$", section, flags=re.MULTILINE | re.DOTALL)
    return [
        part if part.startswith("```") else " ".join(part.split())
        for text in parts
        for part in ([text] if text.startswith("```") else text.split("\n\n"))
        if part.strip()
    ]
