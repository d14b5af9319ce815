"""What processes of benchmarks share: how they start loaders, and how files are written."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def fork_loader_workers() -> None:
    """Let loaders of this process fork their workers, as those of a script do on Linux.

    A spawned process spawns in its turn: every start of a loader would then import torch anew in
    one worker after the other, which takes seconds each time.
    """
    if "fork" in multiprocessing.get_all_start_methods():
        multiprocessing.set_start_method("fork", force=True)


def replace_text(path: Path, text: str) -> None:
    """Write a file as a whole: whoever stops the run finds the old one or the new one."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let SIGTERM, as of a time limit, raise SystemExit in the body, so that what it started ends too."""
    former = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
