"""Real processes of the command line: start them, watch them, end them, and see who is left."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest


TESTS = Path(__file__).parents[1]
SRC = TESTS.parent / "src"

# Seconds after which a process counts as stuck. Far more than any of them needs.
LIMIT = 90

# Seconds that all processes of a run have to be gone in, once its fault was seen.
LIMIT_OF_FAULTS = 30


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    out: str
    err: str

    @property
    def errors(self):
        """The lines of error: what the command says when it fails."""
        # Torch's own word on a worker that was killed ends in a zero byte.
        lines = (line.lstrip("\0") for line in self.err.splitlines())
        return [line for line in lines if line.startswith("gapless: error: ")]

    def check_done(self):
        """Check that the command did what was asked."""
        assert self.code == 0, self.err[-2000:] or self.out[-2000:]
        assert "Traceback" not in self.out + self.err

    def check_refused(self, *parts):
        """Check that the command ended with one line of error that holds all parts."""
        self.check_no_traceback()
        assert self.code in (1, 2), (self.code, self.err[-2000:])
        assert len(self.errors) == 1, self.err[-2000:]
        missing = [part for part in map(str, parts) if part not in self.errors[0]]
        assert missing == [], f"{missing} is not in {self.errors[0]}"

    def check_no_traceback(self):
        assert "Traceback" not in self.out + self.err, self.err[-3000:]


class Running:
    """A process in a session of its own, whose output goes to files."""

    def __init__(self, pid, *, folder, number, poll):
        self.pid = pid
        self._out, self._err = (folder / f".{number}.{name}" for name in ("out", "err"))
        self._poll = poll

    @property
    def out(self):
        return self._read(self._out)

    @property
    def err(self):
        return self._read(self._err)

    def _read(self, file):
        # What was given to the process in its place is read by who gave it.
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""

    @property
    def code(self):
        """The exit code; None while the process runs."""
        return self._poll()

    @property
    def is_running(self):
        return self._poll() is None

    def members(self):
        """Return the numbers of all processes of the session that are not dead."""
        return [pid for pid, _, session in all_processes() if session == self.pid]

    def children(self):
        """Return the numbers of the processes that this one started."""
        return [pid for pid, parent, _ in all_processes() if parent == self.pid]

    def send(self, number):
        """Send a signal to this process alone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def send_all(self, number):
        """Send a signal to the whole group, as a terminal does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def until(self, condition, *, what, limit=LIMIT):
        """Wait until something is so, while the process runs."""
        end = time.monotonic() + limit
        while not condition():
            if not self.is_running:
                if condition():
                    return
                pytest.fail(
                    f"the process ended before {what}: {self.err[-2000:]}{self.out[-500:]}"
                )
            if time.monotonic() > end:
                self.stop()
                pytest.fail(f"after {limit} s still not: {what}: {self.err[-2000:]}")
            time.sleep(0.002)

    def end(self, *, limit=LIMIT):
        """Wait for the end of the process and of all that it started."""
        end = time.monotonic() + limit
        while (code := self._poll()) is None or self.members():
            if time.monotonic() > end:
                left = self.members()
                self.stop()
                pytest.fail(
                    f"{len(left)} processes left after {limit} s, exit code {code}: "
                    f"{self.err[-2000:]}{self.out[-500:]}"
                )
            time.sleep(0.005)
        return Ended(code, self.out, self.err)

    def stop(self):
        """Kill what is left, each by its number."""
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def all_processes():
    """Yield number, parent and session of every process that is not a zombie.

    Tests look again and again until a process is gone, so this does without `Path` and text.
    """
    with os.scandir("/proc") as folders:
        numbers = [folder.name for folder in folders if folder.name.isdecimal()]
    for number in numbers:
        try:
            file = os.open(f"/proc/{number}/stat", os.O_RDONLY)
        except OSError:
            continue
        try:
            stat = os.read(file, 4096)
        except OSError:
            continue
        finally:
            os.close(file)
        state, parent, _, session, _ = stat.rpartition(b")")[2].split(maxsplit=4)
        if state not in b"ZX":
            yield int(number), int(parent), int(session)


class Launcher:
    """Starts processes of the command line; `real=True` imports everything anew, as users do."""

    def __init__(self):
        ours, theirs = socket.socketpair()
        self._server = subprocess.Popen(
            [sys.executable, "-m", "faults.fork_server", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # A session of its own: Ctrl-C during the tests reaches pytest alone.
            start_new_session=True,
        )
        theirs.close()
        self._link = ours
        self._unread = b""
        self._codes = {}
        self._count = 0
        self._running = []
        self._answer("ready")

    def close(self):
        """Kill what still runs, and the server."""
        self.stop_all()
        self._link.close()
        self._server.wait()

    def stop_all(self):
        """Kill what still runs of all that was started."""
        for running in self._running:
            running.stop()
        for running in self._running:
            while running.is_running:
                time.sleep(0.002)
        self._running.clear()

    def start(
        self,
        *arguments,
        folder,
        real=False,
        stdin=None,
        stdout=None,
        stderr=None,
        ignored=(),
        before="",
        module="gapless",
        **variables,
    ):
        """Start `gapless ARGUMENTS` in a folder.

        Args:
            arguments: of the command line.
            folder: to run in; the output goes to files there, whose names begin with a dot.
            real: whether to start Python anew.
            stdin: an open file, or None for nothing to read.
            stdout: an open file; None for one in the folder, that `Running.out` reads.
            stderr: likewise.
            ignored: names of signals that are ignored from the start, as SIGHUP under nohup.
            before: Python code that runs in the process before gapless does.
            module: whose `main` runs, with the arguments.
            variables: of the environment.
        """
        self._count += 1
        number = self._count
        arguments = [str(argument) for argument in arguments]
        with contextlib.ExitStack() as opened:
            files = [
                opened.enter_context(Path(os.devnull).open("rb")) if stdin is None else stdin,
                *(
                    opened.enter_context((folder / f".{number}.{name}").open("wb"))
                    if given is None
                    else given
                    for name, given in (("out", stdout), ("err", stderr))
                ),
            ]
            start = self._start_anew if real else self._fork
            pid, poll = start(arguments, folder, files, ignored, before, module, variables)
        running = Running(pid, folder=folder, number=number, poll=poll)
        self._running.append(running)
        return running

    def run(self, *arguments, limit=LIMIT, **options):
        """Run a command to its end."""
        return self.start(*arguments, **options).end(limit=limit)

    def _fork(self, arguments, folder, files, ignored, before, module, variables):
        request = {
            "arguments": arguments,
            "folder": str(folder),
            "environment": environment(**variables),
            "ignored": list(ignored),
            "before": before,
            "module": module,
        }
        raw = json.dumps(request).encode()
        socket.send_fds(self._link, [raw], [file.fileno() for file in files])
        pid = self._answer("started")

        def poll():
            self._take()
            return self._codes.get(pid)

        return pid, poll

    def _start_anew(self, arguments, folder, files, ignored, before, module, variables):
        assert module == "gapless"
        named = ["-c", f"{before}\nfrom gapless.cli.main import main\nmain()"]
        command = [sys.executable, *(named if before else ["-m", "gapless"]), *arguments]

        def ignore():
            for name in ignored:
                signal.signal(signal.Signals[name], signal.SIG_IGN)

        stdin, stdout, stderr = files
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(**variables),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=ignore if ignored else None,
        )
        return process.pid, process.poll

    def _answer(self, key):
        """Wait for an answer of one kind, and return its value."""
        end = time.monotonic() + LIMIT
        while True:
            for answer in self._take():
                if key in answer:
                    return answer[key]
            if self._server.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the fork server has ended or is stuck")
            select.select([self._link], [], [], 1)

    def _take(self):
        """Read what the server has sent by now; return all but the ends, which are kept."""
        with contextlib.suppress(BlockingIOError):
            while part := self._link.recv(1 << 16, socket.MSG_DONTWAIT):
                self._unread += part
        *lines, self._unread = self._unread.split(b"\n")
        answers = [json.loads(line) for line in lines]
        self._codes |= {one["ended"]: one["code"] for one in answers if "ended" in one}
        return [one for one in answers if "ended" not in one]


@functools.cache
def shared_launcher():
    """Return the launcher of this process: the rooms of tests share one."""
    return Launcher()


def environment(**variables):
    """Return the environment of a process under test."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (SRC, TESTS))),
        "OMP_NUM_THREADS": "1",
        "TERM": "xterm",
        "COLUMNS": "100",
        **{name: str(value) for name, value in variables.items()},
    }
