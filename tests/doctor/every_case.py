"""Run every case of the corpus once, each in a fork of one process that has torch already.

cd tests && CASE_STEPS=4 python -m doctor.every_case
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from pathlib import Path

import torch._dynamo  # what every fork needs, which optimizers would load in each
import torch.utils.data  # noqa: F401

from doctor.labels import scripts


def runs(path: Path) -> bool:
    """Return whether a script runs to its end; what it prints is thrown away."""
    pid = os.fork()
    if pid == 0:
        os._exit(_run(path))
    return os.waitpid(pid, 0)[1] == 0


def _run(path: Path) -> int:
    sys.argv, sys.path[0] = [str(path)], str(path.parent)
    try:
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
            runpy.run_path(str(path), run_name="__main__")
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> int:
    """Print the names of the cases that fail; return their number."""
    wanted = sys.argv[1:]
    paths = [path for path in sorted(scripts().glob("*.py")) if not path.name.startswith("_")]
    paths = [path for path in paths if not wanted or path.stem in wanted]
    failed = [path.name for path in paths if not runs(path)]
    print(f"{len(paths)} cases ran; failed: {failed}")
    return len(failed)


if __name__ == "__main__":
    raise SystemExit(main())
