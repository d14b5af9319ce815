"""Commands in a pseudo-terminal of their own, whose keys a test presses."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import struct
import termios
import time

from faults.processes import shared_launcher
from terminal.screen import Screen


# Seconds after which a command counts as stuck. Far more than any of them needs.
LIMIT = 400

# Draws every state of the bar, however quick a run is.
ALL_DRAWN = """
from gapless.cli import progress
progress.BAR_SECONDS = 0.0
"""

# Makes standard input the terminal that sends its signals to the process, which leads a session.
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
# Python asks at its start whether these are a terminal.
sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))
"""


class Session:
    """A command in a terminal that it controls, as one that a user types.

    Args:
        arguments: of `gapless`.
        folder: where it runs.
        columns: of the terminal.
        before: Python code that runs in the process before gapless does.

    Attributes:
        screen: what the terminal shows.
    """

    def __init__(self, *arguments, folder, columns=80, before=""):
        self.screen = Screen(columns)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with os.fdopen(slave, "r+b", buffering=0) as terminal:
            self._process = shared_launcher().start(
                *arguments,
                folder=folder,
                stdin=terminal,
                stdout=terminal,
                stderr=terminal,
                before=TAKE_TERMINAL + before,
                XDG_CACHE_HOME=folder / "cache",
                TERM="xterm",
                COLUMNS="",
            )
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
        self._process.send(number)

    def wait(self):
        """Let it run to its end; return its exit code."""
        while self._read():
            pass
        return self._process.end(limit=LIMIT).code

    def close(self):
        """End whatever is left of it."""
        self._process.stop()
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
