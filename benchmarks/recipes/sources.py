"""The programs of `benchmarks.recipes`: own ones that use a package, and scripts of others with a few lines changed.

An own program is a file of `programs`; lines that end in `# gapless` are its lines of gapless, and are left out where it
runs as written. A script of others is read from its repository at a named commit, never stored here.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from benchmarks.recipes.scripts import SCRIPTS, edited


PROGRAMS = Path(__file__).with_name("programs")
MARK = "  # gapless"
NAMES = sorted([*SCRIPTS, *(path.stem for path in PROGRAMS.glob("*.py"))])


def source_of(name, *, lines, others):
    """Return the text of a program, its words, and where it looks for its modules."""
    if name in SCRIPTS:
        script = SCRIPTS[name]
        root = others.absolute() / script.repository
        text = edited(root.joinpath(script.path).read_text(encoding="utf-8"), script.clock)
        text = edited(text, script.lines) if lines else text
        return text, script.words.split(), [str(root)]
    text = PROGRAMS.joinpath(f"{name}.py").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in text if lines or not line.rstrip().endswith(MARK)]
    return "".join(kept), [], []


def lines_added(name, others):
    """Return how many lines the program has with gapless that it has not without, wherever they stand."""
    both = [
        Counter(map(str.strip, source_of(name, lines=lines, others=others)[0].splitlines()))
        for lines in (False, True)
    ]
    return sum((both[1] - both[0]).values())
