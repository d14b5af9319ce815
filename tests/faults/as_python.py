"""Run a script, or `-m MODULE`, as a new Python would: in a copy of the fork server, which has torch."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path


def main(*arguments):
    encoding = os.environ.get("PYTHONIOENCODING")
    if encoding:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(encoding=encoding)
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")
