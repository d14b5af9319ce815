"""The versions that the integrations are tested with: `python -m integrations.matrix [REGEX]` in `tests`.

Prints, for each framework: its version, torch's, how many cases there are, how many were run, how many of
these were right, and of how many at least half of the training steps were replays.
"""

from __future__ import annotations

import re
import sys
import warnings

import torch

from hazards.harness import GPU, SIMULATED
from integrations.cases import CASES
from integrations.frameworks import FRAMEWORKS, version_of
from integrations.harness import judged


HEADER = ("framework", "version", "torch", "device", "cases", "run", "right", "replayed")


def rows(kind, chosen):
    """Run the chosen cases, and return one row for each framework."""
    found = []
    for framework in FRAMEWORKS:
        own = [case for case in CASES if case.framework == framework and kind in case.devices]
        run = [judged(case, kind) for case in own if case in chosen]
        right = sum(not one.wrong for one in run)
        replayed = sum(one.replayed >= 0.5 for one in run)
        version = version_of(framework)
        found.append(
            (framework, version, torch.__version__, kind, len(own), len(run), right, replayed)
        )
    return found


def as_text(table):
    """Return the table as aligned columns."""
    lines = [tuple(map(str, row)) for row in (HEADER, *table)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def main():
    """Run all cases whose name matches, on the GPU if there is one."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else "."
    warnings.simplefilter("ignore")
    kind = GPU if torch.cuda.is_available() else SIMULATED
    print(as_text(rows(kind, [case for case in CASES if re.search(wanted, str(case))])))


if __name__ == "__main__":
    main()
