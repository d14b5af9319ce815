"""Signals that end a command: the first politely, the second at once, whatever it is doing."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import threading
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, NoReturn, Self

from gapless.cli.ranks import is_rank_0, resume_command
from gapless.python_private import exit_now, temporary_folder


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType


_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# A program that started us may pass on the Ctrl-C that the terminal has sent to us as well, and
# `timeout` sends a signal to its process and to the whole group.
_SAME_SIGNAL_SECONDS = 0.25

# Erase the line, on which a bar may be.
_CLEAR_LINE = "\r\x1b[K"


class Interrupted(KeyboardInterrupt):
    """A signal asked the process to end before it had begun what takes long.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Signals:
    """Sees to it that a process which is asked to stop does end, inside a `with` block.

    SIGTERM, SIGINT and SIGHUP end the process at once until `may_raise`; then they raise `Interrupted`,
    until somebody else takes them, as `gapless.nmt.run.stopping.StopRequest` does. From the first of
    them on a thread waits: it ends the process at once after a second SIGINT, or when the grace has
    passed. The thread works while the main thread is in the middle of a capture, or waits for a device
    or a disk. What was ignored at start stays so: SIGHUP under nohup, SIGINT in the background of a
    script.

    Attributes:
        grace_seconds: that the process has from the first signal on.
        run_dir: of the run, None as long as there is none.
        on_stop: is called once, in the thread, when the process is asked to stop.
    """

    def __init__(self) -> None:
        self.grace_seconds = 20.0
        self.run_dir: Path | None = None
        self.on_stop: Callable[[], None] | None = None
        self._former: dict[int, object] = {}
        self._first = 0
        self._is_asked = self._may_raise = self._is_done = False
        self._ends_at_once = True
        self._saying = threading.Lock()
        self._receiver, self._sender = socket.socketpair()
        self._thread = threading.Thread(target=self._watch, name="gapless-signals", daemon=True)

    def __enter__(self) -> Self:
        self._sender.setblocking(False)
        self._former_fd = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in _STOP:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, self._interrupt)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            self._former[number] = signal.signal(number, _ignore)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(self._former_fd)
        self._sender.close()
        self._thread.join()
        self._receiver.close()
        for number, handler in self._former.items():
            # A process that was asked to end is about to: what comes now would only break that.
            late = signal.SIG_IGN if self._first else handler
            signal.signal(number, late)  # type: ignore[arg-type]

    def may_raise(self) -> None:
        """Let signals raise from now on. Libraries that are being loaded may not survive that.

        Raises:
            Interrupted: a signal has asked the process to end.
        """
        self._may_raise, self._ends_at_once = True, False
        self.check()

    def check(self) -> None:
        """Raise what waited, or what a destructor has swallowed.

        Raises:
            Interrupted: a signal has asked the process to end.
        """
        if self._first:
            raise Interrupted(self._first)

    def note_done(self) -> None:
        """Raise and say nothing from now on: all is done, and the process is about to end."""
        self._may_raise = False
        with self._saying:
            self._is_done = True

    @contextmanager
    def ending_at_once(self) -> Iterator[None]:
        """Let a signal end the process at once: the body waits for others where none is read."""
        self._ends_at_once = True
        try:
            yield
        finally:
            self._ends_at_once = False

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        del frame
        if not self._is_asked:
            self._first, self._is_asked = number, True
            if self._may_raise:
                raise Interrupted(number)

    # --- in the thread ---

    def _watch(self) -> None:
        asked_at = 0.0
        while True:
            left = asked_at + self.grace_seconds - monotonic() if asked_at else None
            if left is not None and left <= 0:
                name = signal.Signals(self._first).name
                self._leave(self._first, f"not done {self.grace_seconds:g} s after {name}")
            for number in self._received(left):
                if not number:
                    return
                if number in _STOP and not asked_at:
                    self._first, asked_at = number, monotonic()
                    if self._ends_at_once:
                        self._leave(number, f"interrupted by {signal.Signals(number).name}")
                    with self._saying:
                        if self.run_dir is not None and not self._is_done:
                            _say("stopping; Ctrl-C again ends it at once")
                    if self.on_stop is not None:
                        self.on_stop()
                elif number == signal.SIGINT and monotonic() - asked_at > _SAME_SIGNAL_SECONDS:
                    self._leave(number, "stopped at once")

    def _received(self, timeout: float | None) -> bytes:
        """Return the numbers of the signals that came; a zero at the end of the `with` block."""
        if not select.select([self._receiver], [], [], timeout)[0]:
            return b""
        return self._receiver.recv(64) or b"\0"

    def _leave(self, number: int, why: str) -> NoReturn:
        # Neither streams nor locks are used, since the main thread may hold them.
        import multiprocessing

        for child in multiprocessing.active_children():
            child.kill()
        # Of the sockets of workers; Python would remove it at an end of its own.
        folder = temporary_folder()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        _say(f"error: {why}{self._hint()}")
        exit_now(128 + number)

    def _hint(self) -> str:
        if self.run_dir is None:
            return ""
        saved = sorted(path.name for path in (self.run_dir / "checkpoints").glob("step-*"))
        if not saved:
            return "; nothing is saved yet"
        return f"; {saved[-1]} is saved; go on with: {resume_command(self.run_dir)}"


def _ignore(number: int, frame: FrameType | None) -> None:
    del number, frame


def _say(text: str) -> None:
    """Write a line to the user, in the place of a bar."""
    # At once: the main thread may be drawing the bar, which would stay in front of the line.
    place = _CLEAR_LINE if os.isatty(2) else ""
    _write(2, f"{place}gapless: {text}\n" if is_rank_0() else place)


def _write(descriptor: int, text: str) -> None:
    """Write a line if there is room for it, so that nobody who does not read can hold us up."""
    with suppress(OSError):
        if select.select([], [descriptor], [], 0)[1]:
            os.write(descriptor, text.encode(errors="replace"))
