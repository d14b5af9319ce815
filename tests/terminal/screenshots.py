"""Screens of a terminal of 80 columns, as text: commands that really run, and what is seen then.

`make screens` writes them into docs/terminal.md, below "Screens".
"""

from __future__ import annotations

import argparse
import re
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

from gapless.nmt.data.demo import demo_pairs
from terminal.sessions import Session


PAGE = Path(__file__).parents[2] / "docs" / "terminal.md"
HEADING = "## Screens\n"
INTRODUCTION = """\
The last lines that a terminal of 80 columns showed; `make screens` runs the commands in a real one. The table
`pairs.tsv` holds 300 pairs of the embedded corpus under a header.
"""
# Rows of a screen that the page shows, and columns of the terminal.
ROWS, COLUMNS = 6, 80

FULL_BAR = re.compile(r"\d\d/\d+ ==.* loss .* mean .* lr .* tok/s  BLEU .* ETA ")

TRAIN = ["train", "--data", "pairs.tsv", "--src", "en", "--tgt", "zh", "--device", "cpu"]


@dataclass(frozen=True)
class Shot:
    """What a terminal shows at some moment.

    Attributes:
        title: says which moment.
        command: that was typed.
        screen: of the terminal, with what has scrolled away.
        wrapped: lines that did not fit, from their second row on.
    """

    title: str
    command: str
    screen: list[str]
    wrapped: list[str]

    def text(self):
        """Return it as a part of a page."""
        typed = textwrap.wrap(f"$ {self.command}", COLUMNS - 2, break_on_hyphens=False)
        shown = self.screen
        if len(shown) > ROWS:
            shown = ["...", *shown[-ROWS:]]
        lines = "\n".join([" \\\n    ".join(typed), *shown])
        return f"{self.title}:\n\n```\n{lines}\n```\n"


def write_pairs(folder, *, count=300):
    """Write pairs of the embedded corpus, as a table that a user might have."""
    pairs = demo_pairs()["train"][:count]
    text = "".join(f"{source}\t{target}\n" for source, target in pairs)
    (folder / "pairs.tsv").write_text(f"en\tzh\n{text}", encoding="utf-8")


def shots(folder, *flags, before=""):
    """Yield all screens, each as soon as it is there.

    Args:
        folder: an empty one, where the commands run.
        flags: more of those that train.
        before: Python code that runs in their processes before gapless does.
    """
    write_pairs(folder)
    yield from _of_a_run(folder, [*TRAIN, *flags], before)
    yield from _of_an_interrupt(folder, [*TRAIN, *flags, "--run-dir", "interrupted"], before)
    yield _until_end(folder, "A mistake in what was typed", "train", "--seed", "two")


def _of_a_run(folder, command, before):
    with Session(*command, folder=folder, columns=COLUMNS, before=before) as run:
        run.until(lambda screen: FULL_BAR.match(screen.line()), what="all figures")
        yield _shot("A run after some epochs", command, run)
        run.wait()
        yield _shot("The same at its end", command, run)


def _of_an_interrupt(folder, command, before):
    with Session(*command, folder=folder, columns=COLUMNS, before=before) as run:
        run.until(lambda screen: "ETA" in screen.line(), what="the bar")
        run.press("\x03")
        run.wait()
        yield _shot("A run that was interrupted by Ctrl-C", command, run)


def _until_end(folder, title, *command):
    with Session(*command, folder=folder, columns=COLUMNS) as run:
        run.wait()
        return _shot(title, command, run)


def _shot(title, command, run):
    screen = run.screen
    lines = screen.lines()
    wrapped = [lines[row] for row in sorted(screen.wrapped) if row < len(lines)]
    return Shot(title, " ".join(["gapless", *command]), lines, wrapped)


def main():
    """Write the screens into the page."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        parts = [shot.text() for shot in shots(Path(folder))]
    text = PAGE.read_text(encoding="utf-8")
    before = text.partition(HEADING)[0].rstrip()
    PAGE.write_text("\n".join([before, "", HEADING, INTRODUCTION, *parts]), encoding="utf-8")


if __name__ == "__main__":
    main()
