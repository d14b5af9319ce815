"""Read the tables of faults that were seen on public code: lines, and advice by case."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


HERE = Path(__file__).parent
_MARKER = re.compile(r"  #!(.*)$")


@dataclass(frozen=True)
class Snippet:
    """A script without its markers, and what they say of its lines, from 1."""

    source: str
    markers: dict[int, str]
    more: dict[str, Any]


def lines_cases() -> dict[str, Snippet]:
    """Return the snippets of `field_lines.toml` by name."""
    table, around = _read("field_lines.toml"), _around()
    return {
        f"{section}: {name}": _snippet(around["setup"] + code.replace("LOOP\n", around["loop"]))
        for section, snippets in table.items()
        if section != "around"
        for name, code in snippets.items()
    }


def advice_cases() -> dict[str, Snippet]:
    """Return those of `field_advice.toml`."""
    around = _around()
    cases = {}
    for section, snippets in _read("field_advice.toml").items():
        for name, one in snippets.items():
            before = one.get("before", "") + "\n"
            body = one.get("whole", around["loop"])
            source = around["setup"] + before + body + one.get("code", "")
            cases[f"advice on {section}: {name}"] = _snippet(source, one)
    return cases


def _read(name: str) -> dict:
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


def _around() -> dict[str, str]:
    around: dict[str, str] = _read("field_lines.toml")["around"]
    return around


def _snippet(code: str, more: dict[str, Any] | None = None) -> Snippet:
    lines, markers = [], {}
    for number, line in enumerate(code.splitlines(), start=1):
        if marker := _MARKER.search(line):
            markers[number] = marker.group(1).strip()
        lines.append(_MARKER.sub("", line))
    return Snippet("\n".join(lines) + "\n", markers, more or {})
