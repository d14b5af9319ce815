"""Commands in a pseudo-terminal of their own, whose keys a test presses."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

from terminal.screen import Screen


SRC = Path(__file__).parents[2] / "src"

# Seconds after which a command counts as stuck. Far more than any of them needs.
LIMIT = 400


class Session:
    """A command in a terminal that it controls, as one that a user types.

    Args:
        arguments: of `gapless`.
        folder: where it runs.
        columns: of the terminal.
        command: instead of `gapless`.

    Attributes:
        screen: what the terminal shows.
    """

    def __init__(self, *arguments, folder, columns=80, command=("-m", "gapless")):
        self.screen = Screen(columns)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        self._process = subprocess.Popen(
            [sys.executable, *command, *map(str, arguments)],
            cwd=folder,
            env={
                **environment,
                "PYTHONPATH": str(SRC),
                "XDG_CACHE_HOME": str(folder / "cache"),
                "TERM": "xterm",
                "OMP_NUM_THREADS": "1",
            },
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self._end = time.monotonic() + LIMIT

    @property
    def pid(self):
        """The process of the command."""
        return self._process.pid

    def until(self, is_so, *, what):
        """Let it run until the screen is so.

        Args:
            is_so: is asked with the screen after each piece of output.
            what: is waited for.
        """
        while not is_so(self.screen):
            assert self._read(), f"ended before {what}:\n" + "\n".join(self.screen.lines())

    def press(self, keys):
        """Press keys."""
        os.write(self._master, keys.encode())

    def send(self, number):
        """Send a signal to the command alone."""
        os.kill(self.pid, number)

    def wait(self):
        """Let it run to its end; return its exit code."""
        while self._read():
            pass
        return self._process.wait(timeout=LIMIT)

    def close(self):
        """End whatever is left of it."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._master)

    def _read(self):
        """Show the next piece of output; return whether there was one."""
        left = self._end - time.monotonic()
        is_ready = left > 0 and select.select([self._master], [], [], left)[0]
        assert is_ready, "no end in sight:\n" + "\n".join(self.screen.lines())
        try:
            piece = os.read(self._master, 1 << 16)
        except OSError:  # its last process has gone
            return False
        self.screen.feed(self._decoder.decode(piece))
        return bool(piece)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def _take_terminal():
    """Make standard input the terminal that sends its signals to this process."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # A shell starts its background processes with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
