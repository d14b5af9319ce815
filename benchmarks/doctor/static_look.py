"""`gapless doctor --static` over many lines, on one core."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.doctor.commands import ROOT, last_line


if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.doctor.options import Options


NUM_LINES = 300_000
MOST_SECONDS = 10.0


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield the seconds of each round over installed packages, torch's own first."""
    wanted = 5_000 if options.is_small else NUM_LINES
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        num_files, num_lines = copy_sources(tree, wanted)
        rounds = [_seconds(tree, Path(name) / "found.json") for _ in range(options.rounds)]
    # What other processes take of the core is not the command's.
    middle = sorted(cpu for _, cpu in rounds)[len(rounds) // 2]
    yield {
        "name": "one core",
        "files": num_files,
        "lines": num_lines,
        "seconds": [seconds for seconds, _ in rounds],
        "cpu_seconds": [cpu for _, cpu in rounds],
        "is_right": None if options.is_small else middle <= MOST_SECONDS,
    }


def copy_sources(tree: Path, wanted: int) -> tuple[int, int]:
    """Copy files of installed packages until they have so many lines; return files and lines."""
    # Where torch is, whichever way packages were installed.
    packages = Path(torch.__file__).parents[1]
    names = ["torch", *sorted(path.name for path in packages.iterdir() if path.is_dir())]
    num_files = num_lines = 0
    for name in dict.fromkeys(names):
        for path in sorted((packages / name).rglob("*.py")):
            if num_lines >= wanted:
                return num_files, num_lines
            # Tests are not looked at, so their lines do not count.
            if "test" in str(path.relative_to(packages)):
                continue
            text = path.read_bytes()
            to = tree / path.relative_to(packages)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(text)
            num_files += 1
            num_lines += text.count(b"\n")
    return num_files, num_lines


def _seconds(tree: Path, out: Path) -> tuple[float, float]:
    """Return the seconds of the whole command, and those of its processor, on one core."""
    options = ["--static", "--format", "json", "--out", str(out)]
    began = perf_counter()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 2)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        path = {"PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-m", "gapless", "doctor", *options, str(tree)]
        os.execve(sys.executable, command, os.environ | path)
    os.close(write)
    with os.fdopen(read, "rb") as errors:
        said = errors.read()
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"gapless doctor --static: {last_line(said.decode())}")
    return perf_counter() - began, usage.ru_utime + usage.ru_stime
