"""What `gapless doctor` says first of programs of others, which run untouched."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from benchmarks.doctor.commands import ROOT, RunError, last_line
from benchmarks.doctor.side_by_side import side_by_side
from benchmarks.programs_of_others import PROGRAMS, placed


if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.doctor.options import Options


NUM_LINES = 12
LIMIT_S = 120.0


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield the first lines of the report of each program that is there."""
    chosen = [name for name in PROGRAMS if name in (options.cases or PROGRAMS)]
    return side_by_side(chosen, lambda name: _said_of(name, options), options)


def _said_of(name: str, options: Options) -> dict[str, Any]:
    _, commit, inside, words, more = PROGRAMS[name]
    with placed(name, options.programs) as (root, folder):
        out = root.parent / "report.txt"
        done = subprocess.run(
            [sys.executable, "-m", "gapless", "doctor", "--stop-after", "--out", str(out),
             *f"{words} {more}".split()],
            check=False, capture_output=True, text=True, timeout=LIMIT_S, cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(
                [str(ROOT / "src"), str(root), os.environ.get("PYTHONPATH", "")]
            )},
        )  # fmt: skip
        if not out.exists():
            raise RunError(f"{name} has no report: {last_line(done.stderr)}")
        report = out.read_text(encoding="utf-8").splitlines()
    return {
        "at": f"{PROGRAMS[name][0]}/{inside}@{commit}",
        "lines": report[:NUM_LINES],
        "report": report,
        "is_right": None,
    }
