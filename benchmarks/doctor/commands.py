"""Run scripts under the doctor, and scripts as they are in turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Sequence


ROOT = Path(__file__).resolve().parents[2]
LOOPS = Path(__file__).parent / "loops"
PLANTED = ROOT / "tests" / "doctor" / "corpus" / "planted"

# Loops lock this file while they run: cases side by side have the device in turns.
TURN = os.environ.get("DEVICE_TURN", f"{tempfile.gettempdir()}/device-turn-{os.getpid()}")

# A script and its arguments.
Command = tuple[Path, tuple[str, ...]]


class RunError(RuntimeError):
    """A process failed, or left nothing that can be read."""


def run_doctor(
    script: Path,
    arguments: Sequence[str] = (),
    *,
    options: Sequence[str] = (),
    limit_s: float = 240,
) -> dict[str, Any]:
    """Run a script under the doctor; return its session as JSON holds it.

    Raises:
        RunError: it failed, or wrote no session.
    """
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "session.json"
        doctor = ["-m", "gapless", "doctor", "--format", "json", "--out", str(out), *options]
        done = run([*doctor, str(script), *arguments], limit_s=limit_s)
        if not out.exists():
            raise RunError(f"the doctor wrote no session: {last_line(done.stderr)}")
        session: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return session


def in_turns(
    commands: Sequence[Command], *, rounds: int, limit_s: float = 580
) -> list[list[float]]:
    """Run scripts in turns in one process; return the ms a step of each, one for each round.

    Each prints JSON with `ms_per_step` as its last line. A round before the others is not counted.

    Raises:
        RunError: one of them failed.
    """
    described = json.dumps([[str(script), *arguments] for script, arguments in commands])
    turns = ["-m", "benchmarks.doctor.turns", "--rounds", str(rounds), "--commands", described]
    done = run(turns, limit_s=limit_s)
    found: list[list[float]] = [[] for _ in commands]
    for line in done.stdout.splitlines():
        place, ms = json.loads(line)
        found[place].append(ms)
    return found


def run(command: Sequence[str], *, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run Python with arguments, from the root of the repository.

    Raises:
        RunError: its exit code is not 0, or it took too long.
    """
    try:
        done = subprocess.run(
            [sys.executable, *command],
            check=False,
            capture_output=True,
            text=True,
            timeout=limit_s,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": _path(), "DEVICE_TURN": TURN},
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"took more than {limit_s:.0f} s") from None
    if done.returncode:
        raise RunError(f"exit code {done.returncode}: {last_line(done.stderr)}")
    return done


def last_line(text: str) -> str:
    """Return the last line of a text that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _path() -> str:
    return os.pathsep.join([str(ROOT / "src"), str(ROOT)])
