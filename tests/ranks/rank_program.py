"""What a rank under test runs first: it says who it is, and shows its stacks when asked.

As a program of torchrun, `python -m ranks.rank_program gapless train ...` is `python -m gapless
train ...`, and `python -m ranks.rank_program script.py ...` is `python script.py ...`.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import sys
from pathlib import Path


# Signal at which a rank writes the stacks of all its threads, whatever its main thread does. Gapless
# has a use for the usual ones.
STACKS = signal.SIGRTMIN

# Folder in which ranks leave their numbers of process, stacks and, under torchrun, code to run first.
FOLDER = "TEST_RANKS_FOLDER"


def file_of(folder: Path, kind: str, rank: int, attempt: int = 0) -> Path:
    """Return the file of a rank of an attempt: `pid`, `stacks`, or the code `before.py`."""
    return folder / f"attempt-{attempt}-rank-{rank}.{kind}"


def main(program: str, *arguments: str) -> None:
    rank = int(os.environ["RANK"])
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    folder = Path(os.environ[FOLDER])
    stacks = file_of(folder, "stacks", rank, attempt).open("w")
    faulthandler.register(STACKS, file=stacks, all_threads=True)
    written = file_of(folder, "pid.new", rank, attempt)
    written.write_text(str(os.getpid()))
    written.rename(file_of(folder, "pid", rank, attempt))
    before = file_of(folder, "before.py", rank, attempt)
    if before.exists():
        exec(before.read_text(), {})
    sys.argv = [program, *arguments]
    if program.endswith(".py"):
        sys.path.insert(0, str(Path(program).parent))
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
