"""Read the tables that say what the doctor must say: of snippets, and on the command line."""

from __future__ import annotations

import re
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path


HERE = Path(__file__).parent
LOOP = """\
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    loss = model(torch.randn(4, 8, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    value = loss.item()
"""
_MARKER = re.compile(r"\s*#! (surely|maybe|any)$")


@dataclass(frozen=True)
class Snippet:
    """A short script without its markers, and the verdict expected of each line, from 1."""

    name: str
    source: str
    expected: dict[int, str]


def static_snippets() -> list[Snippet]:
    """Return the snippets of `static_cases.toml`, each behind the lines that stand before it."""
    table = tomllib.loads((HERE / "static_cases.toml").read_text(encoding="utf-8"))
    sections = (("in_a_step", table["step"], "    "), ("in_a_loop", table["loop"], "    "))
    return [
        _snippet(name, table["setup"] + head + textwrap.indent(code, indent))
        for section, head, indent in (*sections, ("alone", "", ""))
        for name, code in table[section].items()
    ]


def _snippet(name: str, code: str) -> Snippet:
    lines, expected = [], {}
    for number, line in enumerate(code.splitlines(), start=1):
        if marker := _MARKER.search(line):
            expected[number] = marker.group(1)
        lines.append(_MARKER.sub("", line))
    return Snippet(name, "\n".join(lines) + "\n", expected)


def read_command_line() -> dict[str, list[dict]]:
    """Return the entries of `command_line.toml`."""
    return tomllib.loads((HERE / "command_line.toml").read_text(encoding="utf-8"))


def files_of(run: dict) -> dict[str, str]:
    """Return the files that a run needs, with `LOOP` and `LOOP_OF_A_MILLION` put in."""
    endless = LOOP.replace("range(60)", "range(1_000_000)")
    return {
        name: text.replace("LOOP_OF_A_MILLION", endless).replace("LOOP", LOOP)
        for name, text in run["files"].items()
    }
