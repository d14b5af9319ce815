"""Runs Python programs in forks of a process that has imported torch, so that none of them waits for that.

A line on stdin is a program: JSON with `words`, as they follow `python`, its `folder` and its `path` for
modules, its `cores`, the `seconds` that it may take, and `out`, `err` and `code`, files for what it prints and,
at its end, its exit code.
Nothing in here uses the device.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  # which every optimizer imports


def main() -> None:
    """Run what is asked for, side by side, until stdin ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _run(json.loads(line))


def _run(asked: dict[str, Any]) -> None:
    program = os.fork()
    if program:
        code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        file = Path(asked["code"])
        file.with_suffix(".new").write_text(str(code), encoding="utf-8")
        file.with_suffix(".new").replace(file)
        os._exit(0)
    for number, name in enumerate((os.devnull, asked["out"], asked["err"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    os.sched_setaffinity(0, asked["cores"])
    os.chdir(asked["folder"])
    sys.path[1:1] = asked["path"]
    signal.alarm(asked["seconds"])
    sys.argv = asked["words"]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(sys.argv[0]).parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit(0)


if __name__ == "__main__":
    main()
