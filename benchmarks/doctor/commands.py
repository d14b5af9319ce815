"""Run scripts under the doctor, and scripts as they are in turns."""

from __future__ import annotations

import atexit
import contextlib
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
from typing import TYPE_CHECKING, Any, Self


if TYPE_CHECKING:
    from collections.abc import Sequence


ROOT = Path(__file__).resolve().parents[2]
LOOPS = Path(__file__).parent / "loops"
PLANTED = ROOT / "tests" / "doctor" / "corpus" / "planted"

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


class Turns:
    """A process that runs scripts in turns, and the doctor: all cases of it share what starts once.

    It runs on the cores of the thread that asks first. Used as a context.
    """

    def __init__(self) -> None:
        path = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.doctor.turns"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._errors.close()

    def run(
        self,
        commands: Sequence[Command],
        *,
        rounds: int,
        uncounted: int = 1,
        doctor: Sequence[str] = (),
    ) -> tuple[list[list[dict[str, Any]]], dict[str, Any]]:
        """Run scripts in turns; return what each says of itself, once for each round, and the doctor's session.

        Each prints JSON with `ms_per_step` as its last line. Rounds before the others may not be counted.

        Args:
            commands: the scripts.
            rounds: that count.
            uncounted: those before.
            doctor: words of `gapless doctor`, if it is to run behind them.

        Raises:
            RunError: one of them failed.
        """
        case = {
            "commands": [[str(script), *arguments] for script, arguments in commands],
            "rounds": rounds,
            "uncounted": uncounted,
            "doctor": list(doctor),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(case) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RunError(last_line(self._errors.read()))
        found = json.loads(line)
        return found["turns"], found["session"]


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
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)},
    )
    atexit.register(server.communicate)
    return server


def last_line(text: str) -> str:
    """Return the last line of a text that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
