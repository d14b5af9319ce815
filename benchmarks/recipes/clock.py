"""What a program of `benchmarks.recipes` tells of its updates: when they begin, end, and how many there were."""

from __future__ import annotations

import json
import sys
from time import perf_counter
from typing import Any

import torch


class Stopped(BaseException):
    """Ends a program when it has been measured; nothing that a framework catches."""


# What the host calls to give a GPU work; all else of a replay is one of them.
_LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")

# Updates whose launches are counted, at least.
_NUM_COUNTED = 8


class Clock:
    """Counts updates in windows, and waits for its turn after each; in the last one, launches of a GPU.

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
        self._profile: Any = None
        self._num_launches: int | None = None

    def start(self) -> None:
        """Begin to measure: what was queued before is waited for."""
        if self._is_first:
            self._is_first = False
            self._tell({"ready": True})
        self._wait()
        if self._num_launches is not None:
            self._profile = torch.profiler.profile()
            self._profile.__enter__()
        self._began = perf_counter()

    def stop(self, num: int = 1) -> None:
        """End to measure, after so many updates more; end the window if they fill it."""
        self._wait()
        self._seconds += perf_counter() - self._began
        self._num += num
        if self._profile is not None:
            self._profile.__exit__(None, None, None)
            names = [event.name for event in self._profile.events()]
            self._num_launches += sum(name.startswith(_LAUNCHES) for name in names)
            self._profile = None
        if self._is_full():
            told = {"updates": self._num, "seconds": self._seconds, "launches": self._num_launches}
            self._seconds, self._num, self._num_launches = 0.0, 0, None
            self._tell(told)

    def count(self) -> None:
        """One update more in a loop that is nothing but updates: begun by `start`."""
        self._num += 1
        if self._is_full():
            self.stop(0)
            self.start()

    def _is_full(self) -> bool:
        is_counted = self._num_launches is not None
        return self._num >= (min(_NUM_COUNTED, self.length) if is_counted else self.length)

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
        word = sys.__stdin__.readline().strip()
        if word == "profile":
            self._num_launches = 0
        elif word != "go":
            raise Stopped

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


clock = Clock()
