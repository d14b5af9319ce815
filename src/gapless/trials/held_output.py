"""Texts with late numbers in them, held back until the numbers are there, and written in order.

What is written to one output of the process waits for all texts before it, of the others as well:
they may be one file. Nobody else waits.
"""

from __future__ import annotations

import atexit
import builtins
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, TypeGuard

from gapless.trials.late_number import is_late, without_late
from gapless.trials.text_uses import goes_to_output
from gapless.unnoticed import Patches


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from gapless.trials.late_number import LateNumber
    from gapless.trials.reads import Reads


# Stands for a late number in a text; Unicode has these two for a program's own use alone.
_MARK = re.compile("\ufdd0(\\d+)\ufdd1")

# Functions of `os` after which nothing is written any more, or that write past the streams.
_LEAVE_OR_WRITE = (
    *("_exit", "abort", "execv", "execve", "kill", "killpg", "posix_spawn", "posix_spawnp"),
    *("forkpty", "system", "write", "writev", "dup2"),
)

# More is written before anything else is held.
_MOST_HELD = 10_000


@dataclass
class _Held:
    """Something to be done when numbers are there."""

    do: Callable[[], object]
    # No list: late numbers in lists are replaced by plain ones.
    numbers: tuple[LateNumber, ...] = ()


class HeldOutput:
    """Holds back what is printed of late numbers.

    Args:
        reads: whose numbers these are.
        is_inner: whether a frame is not the user's.
    """

    def __init__(self, reads: Reads, *, is_inner: Callable[[FrameType], bool]) -> None:
        self._reads = reads
        self._is_inner = is_inner
        self._lock = threading.RLock()
        self._queue: deque[_Held] = deque()
        self._is_writing = False
        self._streams: list[Any] = []
        # Those whose texts are not written yet, by the number in the mark.
        self._marked: dict[int, tuple[LateNumber, Callable[[Any], str]]] = {}
        self._num_marked = 0
        self._patches = Patches()
        self._pid = os.getpid()

    @staticmethod
    def refusal() -> str:
        """Return why outputs cannot be held back here, empty where they can."""
        for stream in (sys.stdout, sys.stderr):
            if not hasattr(stream, "write") or not hasattr(stream, "__dict__"):
                return f"what is written to a {type(stream).__qualname__} cannot be held back"
        return ""

    def start(self) -> None:
        """Hold back from now on."""
        outputs: dict[int, Any] = {id(stream): stream for stream in (sys.stdout, sys.stderr)}
        self._streams = list(outputs.values())
        put = self._patches.put
        for stream in self._streams:
            self._hold_back(stream)
        put(logging.Logger, "handle", self._handler(logging.Logger.handle))
        # Whoever else writes to the outputs comes after what is held back.
        put(builtins, "input", self._after_all(builtins.input))
        put(subprocess.Popen, "__init__", self._after_all(subprocess.Popen.__init__))
        put(os, "fork", self._alone(os.fork))
        for name in _LEAVE_OR_WRITE:
            if hasattr(os, name):
                put(os, name, self._after_all(getattr(os, name)))
        put(signal, "raise_signal", self._after_all(signal.raise_signal))
        put(BaseProcess, "start", self._after_all(BaseProcess.start))
        self._reads.texts = self._mark
        atexit.register(self.stop)

    def _hold_back(self, stream: Any) -> None:
        put = self._patches.put
        put(stream, "write", self._writer(stream))
        put(stream, "flush", self._flusher(stream.flush))
        raw = getattr(stream, "buffer", None)
        if raw is not None and hasattr(raw, "__dict__"):
            put(raw, "write", self._after_all(raw.write))

    def stop(self) -> None:
        """Write everything, and hold back nothing from now on.

        Sync: Blocks the host until all late numbers are there.
        """
        try:
            if os.getpid() == self._pid:
                self.finish()
        finally:
            self._reads.texts = None
            self._patches.take_out()
            self._marked.clear()
            atexit.unregister(self.stop)

    def finish(self) -> None:
        """Write everything that is held back.

        Sync: Blocks the host until all late numbers are there.
        """
        with self._lock:
            if self._queue and not self._is_writing:
                self._reads.finish()
                self._do_all()

    def write_arrived(self) -> None:
        """Write what is held back for nothing that is still late.

        Sync: Does not block the host on the device.
        """
        with self._lock:
            if self._queue and not self._is_writing:
                self._reads.take_arrived()
                self._do_all()

    def _do_all(self) -> None:
        problem: Exception | None = None
        while self._queue and all(late.number is not None for late in self._queue[0].numbers):
            try:
                self._do(self._queue.popleft().do)
            except Exception as error:  # the others are written all the same
                problem = problem or error
        if problem is not None:
            raise problem

    def _do(self, call: Callable[..., Any], *args: Any) -> Any:
        before, self._is_writing = self._is_writing, True
        try:
            return call(*args)
        finally:
            self._is_writing = before

    # --- texts ---

    def _mark(self, late: LateNumber, write: Callable[[Any], str]) -> str | None:
        """Return what stands for a late number in a text; None if the text may be looked at."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and self._is_inner(frame):
            frame = frame.f_back
        if not goes_to_output(frame, self._streams):
            return None
        with self._lock:
            self._num_marked += 1
            self._marked[self._num_marked] = late, write
            return f"\ufdd0{self._num_marked}\ufdd1"

    def _numbers_in(self, text: str) -> list[LateNumber]:
        found = [self._marked.get(int(mark)) for mark in _MARK.findall(text)]
        return [one[0] for one in found if one is not None]

    def _filled_in(self, text: str) -> str:
        """Return a text with its numbers.

        Sync: Blocks the host until they are there.
        """

        def number(mark: re.Match[str]) -> str:
            found = self._marked.pop(int(mark[1]), None)
            return mark[0] if found is None else found[1](found[0].forced("formats"))

        return _MARK.sub(number, text)

    # --- in the place of what writes ---

    def _writer(self, stream: Any) -> Callable[[str], Any]:
        write = stream.write

        def write_in_order(text: str) -> Any:
            with self._lock:
                if self._is_writing or not isinstance(text, str):
                    return write(text)
                numbers = self._numbers_in(text) if "\ufdd0" in text else []
                if not numbers and not self._queue:
                    return self._do(write, text)
                _check_encodable(text, stream)
                self._hold(lambda: write(self._filled_in(text)), numbers)
                return len(text)

        return write_in_order

    def _flusher(self, flush: Callable[[], object]) -> Callable[[], None]:
        def flush_in_order() -> None:
            with self._lock:
                if self._is_writing:
                    flush()
                elif self._queue:
                    self._hold(flush, [])
                else:
                    self._do(flush)

        return flush_in_order

    def _after_all(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that writes all that is held back before it does a call."""

        def after_all(*args: Any, **kwargs: Any) -> Any:
            self.finish()
            return call(*args, **kwargs)

        return after_all

    def _alone(self, fork: Callable[[], int]) -> Callable[[], int]:
        """Return a `fork` in which no other thread holds our locks: the child could never have them."""

        def fork_alone() -> int:
            with self._lock, self._reads.nobody_else():
                self.finish()
                return fork()

        return fork_alone

    def _hold(self, do: Callable[[], object], numbers: list[LateNumber]) -> None:
        self._queue.append(_Held(do, tuple(numbers)))
        if len(self._queue) > _MOST_HELD:
            self.finish()
        else:
            self.write_arrived()

    # --- logging ---

    def _handler(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        def handle_in_order(logger: logging.Logger, record: logging.LogRecord) -> Any:
            text = record.msg if isinstance(record.msg, str) else ""
            numbers = self._numbers_in(text) if "\ufdd0" in text else []
            numbers += _late_in(record.args)
            if not numbers:
                return handle(logger, record)
            outputs = self._outputs_of(logger, record)
            if outputs is None:
                self._fill_record(record)
                return handle(logger, record)
            for output in outputs:
                with self._lock:
                    self._hold(partial(self._log, record, output), numbers)
            return None

        return handle_in_order

    def _log(self, record: logging.LogRecord, output: logging.StreamHandler[Any]) -> None:
        """Write a record as the handler of an output does, without the handler's lock.

        Who logs in another thread has that, and waits for ours.
        """
        self._fill_record(record)
        try:
            output.stream.write(output.format(record) + output.terminator)
            output.stream.flush()
        except RecursionError:
            raise
        except Exception:
            output.handleError(record)

    def _fill_record(self, record: logging.LogRecord) -> None:
        if isinstance(record.msg, str):
            record.msg = self._filled_in(record.msg)
        record.args = without_late(record.args, "logs")

    def _outputs_of(
        self, logger: logging.Logger, record: logging.LogRecord
    ) -> list[logging.StreamHandler[Any]] | None:
        """Return the handlers that write a record, None if one may write it elsewhere."""
        if logger.disabled:
            return []
        each: logging.Logger | None = logger
        handlers: list[logging.Handler] = []
        while each is not None:
            handlers += each.handlers
            each = each.parent if each.propagate else None
        if not handlers and logging.lastResort is not None:
            handlers = [logging.lastResort]
        used = [handler for handler in handlers if record.levelno >= handler.level]
        has_filters = logger.filters or any(handler.filters for handler in used)
        outputs = [handler for handler in used if self._is_output(handler)]
        return None if has_filters or len(outputs) < len(used) else outputs

    def _is_output(self, handler: logging.Handler) -> TypeGuard[logging.StreamHandler[Any]]:
        is_plain = type(handler) in (logging.StreamHandler, type(logging.lastResort))
        stream = getattr(handler, "stream", None)
        return is_plain and any(stream is one for one in self._streams)


def _check_encodable(text: str, stream: Any) -> None:
    """Raise now what writing a text will raise because of its letters.

    Raises:
        UnicodeEncodeError: as the stream would.
    """
    encoding, errors = getattr(stream, "encoding", None), getattr(stream, "errors", None)
    if encoding and not text.isascii():
        _MARK.sub("0", text).encode(encoding, errors or "strict")


def _late_in(args: Any) -> list[LateNumber]:
    values = args.values() if isinstance(args, dict) else args if isinstance(args, tuple) else ()
    return [value for value in values if is_late(value) and value.number is None]
