"""Run scripts under the doctor, and scripts as they are in turns."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from threading import Lock
from time import sleep
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


_ASKING = Lock()


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
    commands: Sequence[Command], *, rounds: int, uncounted: int = 1, limit_s: float = 580
) -> list[list[dict[str, Any]]]:
    """Run scripts in turns in one process; return what each says of itself, once for each round.

    Each prints JSON with `ms_per_step` as its last line. Rounds before the others may not be counted.

    Raises:
        RunError: one of them failed.
    """
    described = json.dumps([[str(script), *arguments] for script, arguments in commands])
    counts = ["--rounds", str(rounds), "--uncounted", str(uncounted)]
    turns = ["-m", "benchmarks.doctor.turns", *counts, "--commands", described]
    done = run(turns, limit_s=limit_s)
    found: list[list[dict[str, Any]]] = [[] for _ in commands]
    for line in done.stdout.splitlines():
        place, said = json.loads(line)
        found[place].append(said)
    return found


def ms_of(turns: Sequence[dict[str, Any]]) -> list[float]:
    """Return the ms a step of each round."""
    return [said["ms_per_step"] for said in turns]


def run(
    command: Sequence[str], *, limit_s: float, folder: Path = ROOT, path: Sequence[Path] = ()
) -> subprocess.CompletedProcess[str]:
    """Run Python with arguments, from a folder and with more folders of modules, on the cores of this thread.

    Raises:
        RunError: its exit code is not 0, or it took too long.
    """
    with tempfile.TemporaryDirectory() as name:
        out, err, code = (Path(name) / which for which in ("out", "err", "code"))
        asked = {
            "words": list(command),
            "folder": str(folder),
            "path": list(map(str, path)),
            "cores": sorted(os.sched_getaffinity(0)),
            "seconds": int(limit_s),
            "out": str(out),
            "err": str(err),
            "code": str(code),
        }
        with _ASKING:
            server = warm_python()
            assert server.stdin is not None
            server.stdin.write(json.dumps(asked) + "\n")
            server.stdin.flush()
        while not code.exists():
            if server.poll() is not None:
                raise RunError("the process that runs programs has ended")
            sleep(0.02)
        number = int(code.read_text())
        done = subprocess.CompletedProcess(command, number, out.read_text(), err.read_text())
    if number == -signal.SIGALRM:
        raise RunError(f"took more than {limit_s:.0f} s")
    if number:
        raise RunError(f"exit code {number}: {last_line(done.stderr)}")
    return done


@cache
def warm_python() -> subprocess.Popen[str]:
    """Return the process that runs programs; begun early, it imports torch while others do."""
    path = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.doctor.warm"],
        stdin=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path), "DEVICE_TURN": TURN},
    )
    atexit.register(server.communicate)
    return server


def last_line(text: str) -> str:
    """Return the last line of a text that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
