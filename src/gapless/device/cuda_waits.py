"""What waits for a GPU, and how torch reports it: with the line that waits, or as an error.

Torch offers two mechanisms. Neither is complete, so both are used:

* `watch_waits` registers callbacks that torch calls before each synchronisation of a stream, an
  event or the device, on the thread that waits. A copy whose host side is not page-locked, or not
  dense, blocks inside the driver without a synchronisation, even if `non_blocking` was asked for,
  unless it is a small one to the device; a dispatch mode sees it. Torch also calls back when it
  frees memory; where an exception frees it while it propagates, as in `torch.utils.checkpoint`, torch's
  own import fails, and the exception becomes a SystemError. So torch's flag is cleared when the body
  is over, which torch itself never does.
* The sync debug mode makes torch warn (`watch_reads`) or raise (`forbid_waits`) when a value is
  read. It costs nothing once it is off, but does not see explicit synchronisation. While the doctor
  watches a script, torch warns and the script believes in the mode that it has set (`WarningsOfWaits`).

Source: `torch.cuda._gpu_trace`, which torch's own CUDA sanitizer uses, and
`torch.cuda.set_sync_debug_mode`. The former is private: if it is missing, `watch_waits` raises
instead of counting nothing. The flag is `GPUTrace::haveState` (`c10/core/impl/GPUTrace.h`): where it
is missing, torch goes on to look for callbacks. Torch sets it once in a process: its sanitizer, if it is
switched on after waits have been counted, sees nothing.
"""

from __future__ import annotations

import threading
import warnings
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from gapless.device import script_tensors
from gapless.device.sync_warnings import SyncWarnings
from gapless.device.torch_private import (
    GET_SYNC_MODE,
    SET_SYNC_MODE,
    TorchDispatchMode,
    gpu_trace,
    to_copy,
)
from gapless.device.user_line import call_site
from gapless.device.waiting_operations import Copy, why_it_blocks
from gapless.unnoticed import FilterInFront


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from gapless.device.base import WaitObserver


_COPIES = (torch.ops.aten.copy_.default, to_copy)

# What torch.cuda.get_sync_debug_mode returns for the modes "default", "warn" and "error".
_DEFAULT, _WARN, _RAISES = 0, 1, 2

# One thread may begin to count while another ends. A thread may also end one count while it begins
# another, where the garbage collector closes a generator that counted.
_registering = threading.RLock()


@contextmanager
def watch_waits(observer: WaitObserver) -> Iterator[None]:
    """Call `observer(what, site)` before every synchronisation of the body, on any thread.

    It is also called after copies of this thread that block although `non_blocking` was asked for.

    Raises:
        DeviceError: this torch does not report synchronisations.
    """
    forget = call_before_waits(lambda what: observer(what, call_site()))
    try:
        with _BlockingCopies(observer):
            yield
    finally:
        forget()


def call_before_waits(callback: Callable[[str], None]) -> Callable[[], None]:
    """Call `callback(what)` before every synchronisation, on the thread that waits.

    Return a function that ends it. Until then torch also looks for callbacks at each event, stream
    and allocation of the process.

    Raises:
        DeviceError: this torch does not report synchronisations.
    """
    trace = gpu_trace()
    registries, flag = trace.registries, trace.flag
    calls = {what: _calling(callback, what) for what in registries}
    with _registering:
        for what, registry in registries.items():
            registry.add_callback(calls[what])
        if flag is not None:
            # Torch sets it at the first activation only. Last: another watch that ends in between clears it.
            flag.value = True

    def forget() -> None:
        with _registering:
            for what, registry in registries.items():
                registry.callback_list.remove(calls[what])
            if flag is not None and not trace.has_callbacks():
                flag.value = False

    return forget


def _calling(callback: Callable[[str], None], what: str) -> Callable[..., None]:
    return lambda *_: callback(what)


class _BlockingCopies(TorchDispatchMode):
    """Report copies that block although `non_blocking` was asked for."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch compile what is called in here first: up to 2.13 it would never do so later."""
        return True

    def __init__(self, observer: WaitObserver) -> None:
        super().__init__()
        self._observer = observer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in _COPIES:
            source = args[1] if func is _COPIES[0] else args[0]
            is_asked = kwargs.get("non_blocking") or (func is _COPIES[0] and args[2:3] == (True,))
            if is_asked and _blocks(source, result):
                self._observer("copy through staging memory", call_site())
        return result


def _blocks(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether a copy blocks that was asked not to, and crosses between the host and a GPU."""
    to_device = _is_on_gpu(target)
    if to_device == _is_on_gpu(source):
        return False
    copy = Copy.between(
        source,
        target,
        to_device=to_device,
        non_blocking=True,
        is_pinned=script_tensors.is_pinned,
    )
    # To ask whether memory is page-locked would break the capture.
    return not (copy.depends_on_memory and is_capturing()) and why_it_blocks(copy) is not None


def _is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda


def watch_reads(observer: Callable[[str], None]) -> AbstractContextManager[None]:
    """Call `observer(site)` for every read of a value in the body.

    It sees nothing where torch's sync debug mode is on already: inside `forbid_waits`, inside another
    `watch_reads`, or where the user has set it.
    """
    if torch.cuda.get_sync_debug_mode() != _DEFAULT:
        return nullcontext()
    return _reads_reported_to(observer)


def forbid_waits() -> AbstractContextManager[None]:
    """Make every read of a value in the body raise RuntimeError at once."""
    return _sync_mode("error")


def allow_waits() -> AbstractContextManager[None]:
    """Lift `forbid_waits` and `watch_reads` in the body."""
    if torch.cuda.get_sync_debug_mode() == _DEFAULT:
        return nullcontext()
    return _sync_mode("default")


def lift_sync_errors() -> AbstractContextManager[None]:
    """Lift `forbid_waits` in the body, for a wait that a user declares.

    Not during a capture: a wait there is an error of CUDA that spoils the capture, and torch's
    error comes before it. `watch_reads` goes on, since it has to find what cannot be captured.
    """
    # Without CUDA there is no mode, and asking for it would start CUDA.
    if (
        not torch.cuda.is_initialized()
        or torch.cuda.get_sync_debug_mode() != _RAISES
        or torch.cuda.is_current_stream_capturing()
    ):
        return nullcontext()
    return _sync_mode("default")


@contextmanager
def _sync_mode(mode: str) -> Iterator[None]:
    previous = torch.cuda.get_sync_debug_mode()
    set_sync_mode(mode)
    try:
        yield
    finally:
        set_sync_mode(previous)


def set_sync_mode(mode: str | int) -> None:
    """Set the sync debug mode without what torch says of it."""
    with warnings.catch_warnings():
        # Torch warns that it does not see every synchronisation; the docstrings here say which.
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def _reads_reported_to(observer: Callable[[str], None]) -> Iterator[None]:
    """Turn torch's warnings about synchronisations into calls of an observer."""
    reads = SyncWarnings(lambda _: observer(call_site()), are_wanted=lambda: False)
    reads.start()
    try:
        with _sync_mode("warn"):
            yield
    finally:
        reads.stop()


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
    torch.set_warn_always(
        True
    )  # a warning shown in this mode does not use up the one that torch shows
    try:
        with FilterInFront("ignore", message="Synchronization debug mode"):
            set_mode(level)
    finally:
        torch.set_warn_always(says_always)
