"""What names torch.cuda for the doctor: functions that wait, and torch's own reports of waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from gapless.device.torch_private import (
    ACCELERATOR_EMPTY_CACHE,
    ACCELERATOR_SYNCHRONIZE,
    CUDA_EMPTY_CACHE,
    CUDA_SYNCHRONIZE,
    GET_SYNC_MODE,
    SET_SYNC_MODE,
)
from gapless.unnoticed import FilterInFront


if TYPE_CHECKING:
    from collections.abc import Callable


# What torch says of a wait. Other text follows.
SYNC_WARNING = "called a synchronizing CUDA operation"

_WARN = 1


class WaitingFunction(NamedTuple):
    """A function that makes the host wait.

    Attributes:
        holder: module or class that it is an attribute of.
        name: of the attribute.
        cause: what it waits for.
        call: how users call it.
    """

    holder: Any
    name: str
    cause: Literal["device", "stream", "event", "empty_cache"]
    call: str


def waiting_functions() -> list[WaitingFunction]:
    """Return those that this torch has and that can be replaced.

    Private functions are what the public ones call, also where a script has bound those to names of
    its own. `torch.Event` and `torch.Stream` cannot be changed; `torch.cuda` has classes of its own.
    """
    known = [
        WaitingFunction(*CUDA_SYNCHRONIZE, "device", "torch.cuda.synchronize"),
        WaitingFunction(*ACCELERATOR_SYNCHRONIZE, "device", "torch.accelerator.synchronize"),
        WaitingFunction(*CUDA_EMPTY_CACHE, "empty_cache", "torch.cuda.empty_cache"),
        WaitingFunction(*ACCELERATOR_EMPTY_CACHE, "empty_cache", "torch.accelerator.empty_cache"),
        WaitingFunction(torch.cuda.Stream, "synchronize", "stream", "Stream.synchronize"),
        WaitingFunction(torch.cuda.Event, "synchronize", "event", "Event.synchronize"),
    ]
    return [one for one in known if hasattr(one.holder, one.name)]


def askable_classes() -> tuple[type, ...]:
    """Return the classes whose `query()` says whether work is done."""
    return (torch.cuda.Event, torch.cuda.Stream)


def is_capturing() -> bool:
    """Whether the current stream is being captured into a graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class WarningsOfWaits:
    """Lets torch warn of waits, while the script believes that the mode is what it has set.

    The mode of the script is kept: "error" goes on to raise, and what it sets in the meantime holds
    afterwards.
    """

    def __init__(self) -> None:
        self._wished = 0
        self._is_on = False
        self._set: Callable[[int], None] | None = None

    @property
    def script_wants_them(self) -> bool:
        """Whether the script itself has asked for warnings."""
        return self._wished == _WARN

    def start(self, put: Callable[[Any, str, Any], None]) -> bool:
        """Begin, if CUDA is at work; `put` replaces an attribute. Return whether it has begun."""
        if self._is_on or not torch.cuda.is_initialized():
            return self._is_on
        if not (GET_SYNC_MODE.is_there and SET_SYNC_MODE.is_there):
            return False
        self._wished = GET_SYNC_MODE.value()
        self._set = set_original = SET_SYNC_MODE.value

        def set_mode(level: int) -> None:
            self._wished = int(level)
            set_original(max(_WARN, self._wished))

        def get_mode() -> int:
            return self._wished

        _set_unnoticed(set_original, max(_WARN, self._wished))
        put(*SET_SYNC_MODE, set_mode)
        put(*GET_SYNC_MODE, get_mode)
        self._is_on = True
        return True

    def stop(self) -> None:
        """End; the mode is what the script has set. To be called before the attributes are put back."""
        if self._set is not None:
            _set_unnoticed(self._set, self._wished)
        self._set, self._is_on = None, False


def _set_unnoticed(set_mode: Callable[[int], None], level: int) -> None:
    """Set a mode without what torch says of it, which it says once: the script may be the first."""
    says_always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # such a warning does not count as said
    try:
        with FilterInFront("ignore", message="Synchronization debug mode"):
            set_mode(level)
    finally:
        torch.set_warn_always(says_always)
