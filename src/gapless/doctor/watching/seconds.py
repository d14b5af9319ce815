"""Watches seconds where no step is seen: a script that only infers, or whose loop calls nothing known."""

from __future__ import annotations

import threading
from itertools import pairwise
from time import perf_counter_ns
from typing import TYPE_CHECKING

from gapless.doctor.watching.windows import SeenWindow


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.doctor.seen_waits import Pass


# The first use of a GPU loads libraries and models; what follows is the script's work. What is seen in
# this time is what remains of a script that is over before it is.
_FIRST_SECONDS = 1
_MOST_SECONDS = 20


class Seconds:
    """Lets a pass watch for some seconds, in which each second is a step; `end` ends it at once.

    The first second has a pass of its own, which is forgotten if the script goes on.

    Args:
        make_pass: returns a pass.
        on_problem: called with what goes wrong, in the thread of this object.
        on_seen: called there with what was seen so far.
        seconds: that one step takes.
    """

    def __init__(
        self,
        make_pass: Callable[[], Pass],
        *,
        on_problem: Callable[[Exception], None],
        on_seen: Callable[[SeenWindow], None] = lambda _: None,
        seconds: float = 1.0,
    ) -> None:
        self._make_pass = make_pass
        self._on_problem = on_problem
        self._on_seen = on_seen
        self._seconds = seconds
        self._over = threading.Event()
        self._seen: SeenWindow | None = None
        self._thread = threading.Thread(target=self._watch, name="gapless-doctor", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def end(self) -> SeenWindow | None:
        """Watch no longer, and return what was seen; None if that was nothing."""
        self._over.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        return self._seen

    def _watch(self) -> None:
        try:
            self._seen = self._watched(_FIRST_SECONDS)
            if not self._over.is_set():
                self._on_seen(self._seen)
                later = self._watched(_MOST_SECONDS)
                if later.num_steps > 1:
                    self._seen = later
                    if not self._over.is_set():
                        self._on_seen(later)
        except Exception as error:
            self._on_problem(error)

    def _watched(self, most: int) -> SeenWindow:
        one = self._make_pass()
        one.start()
        borders = [perf_counter_ns()]
        try:
            while not self._over.wait(self._seconds) and len(borders) < most:
                one.next_step()
                borders.append(perf_counter_ns())
        finally:
            borders.append(perf_counter_ns())
            one.stop()
        step_ns = [end - begin for begin, end in pairwise(borders)]
        return SeenWindow(phase="sites", num_steps=len(step_ns), passes=[one], step_ns=step_ns)
