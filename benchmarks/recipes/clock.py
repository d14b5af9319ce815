"""What a program of `benchmarks.recipes` tells of its updates: when they begin, end, and how many there were."""

from __future__ import annotations

import json
import sys
from time import perf_counter
from typing import Any

import torch


class Stopped(BaseException):
    """Ends a program when it has been measured; nothing that a framework catches."""


class Clock:
    """Counts updates in windows, and waits for its turn after each.

    Attributes:
        device: on which a program trains.
        length: updates of a window, which a program sets.
        tiny: whether sizes are for a CPU.
    """

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.length = 100
        self.tiny = False
        self._began = 0.0
        self._seconds = 0.0
        self._num = 0
        self._is_first = True

    def start(self) -> None:
        """Begin to measure: what was queued before is waited for."""
        if self._is_first:
            self._is_first = False
            self._tell({"ready": True})
        self._wait()
        self._began = perf_counter()

    def stop(self, num: int = 1) -> None:
        """End to measure, after so many updates more; end the window if they fill it."""
        self._wait()
        self._seconds += perf_counter() - self._began
        self._num += num
        if self._num >= self.length:
            told, self._seconds, self._num = (self._num, self._seconds), 0.0, 0
            self._tell({"updates": told[0], "seconds": told[1]})

    def count(self) -> None:
        """One update more in a loop that is nothing but updates: begun by `start`."""
        self._num += 1
        if self._num >= self.length:
            self.stop(0)
            self.start()

    def timed(self, function: Any, num: int) -> Any:
        """Return a function that is measured as so many updates."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.start()
            done = function(*args, **kwargs)
            self.stop(num)
            return done

        return timed

    def _tell(self, what: dict[str, Any]) -> None:
        """Say something, and wait for the turn."""
        sys.__stdout__.write(json.dumps(what) + "\n")
        sys.__stdout__.flush()
        if sys.__stdin__.readline().strip() != "go":
            raise Stopped

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


clock = Clock()
