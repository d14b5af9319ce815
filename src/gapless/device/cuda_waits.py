"""How torch reports that the host waits for a GPU: with the line that waits, or as an error.

Torch offers two mechanisms. Neither is complete, so both are used:

* `watch_waits` registers callbacks that torch calls before each synchronisation of a stream, an
  event or the device, on the thread that waits. A copy whose host side is not page-locked, or not
  dense, blocks inside the driver without a synchronisation, even if `non_blocking` was asked for,
  unless it is a small one to the device; a dispatch mode sees it. Torch also calls back when it
  frees memory; where an exception that is on its way frees it, as in `torch.utils.checkpoint`, torch's
  own import fails, and the exception becomes a SystemError. So torch's flag is cleared when the body
  is over, which torch itself never does.
* The sync debug mode makes torch warn (`watch_reads`) or raise (`forbid_waits`) when a value is
  read. It costs nothing once it is off, but does not see explicit synchronisation.

Source: `torch.cuda._gpu_trace`, which torch's own CUDA sanitizer uses, and
`torch.cuda.set_sync_debug_mode`. The former is private: if it is missing, `watch_waits` raises
instead of counting nothing. The flag is `GPUTrace::haveState` (`c10/core/impl/GPUTrace.h`): where it
is missing, torch goes on to look for callbacks. Torch sets it once in a process: its sanitizer, if it is
switched on after waits have been counted, hears nothing.
"""

from __future__ import annotations

import threading
import warnings
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.blocking_copies import MAX_INLINE_COPY_BYTES
from gapless.device.torch_private import TorchDispatchMode, gpu_trace, to_copy
from gapless.device.user_line import call_site


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from gapless.device.base import WaitObserver


_COPIES = (torch.ops.aten.copy_.default, to_copy)

# What torch.cuda.get_sync_debug_mode returns for the modes "default" and "error"; "warn" is between.
_DEFAULT, _RAISES = 0, 2

# One thread may begin to count while another ends. A thread may also end one count while it begins
# another, where the garbage collector closes a generator that counted.
_registering = threading.RLock()

_SYNC_WARNING = "called a synchronizing CUDA operation"


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
            # Torch sets it at the first activation only. Last, since an end on the way clears it.
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

    def __init__(self, observer: WaitObserver) -> None:
        super().__init__()
        self._observer = observer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in _COPIES:
            source = args[1] if func is _COPIES[0] else args[0]
            is_asked = kwargs.get("non_blocking") or (func is _COPIES[0] and args[2:3] == (True,))
            if is_asked and _blocks(result, source):
                self._observer("copy through staging memory", call_site())
        return result


def _blocks(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether a copy between the host and a GPU passes through the driver's own memory."""
    if target.is_cuda == source.is_cuda:
        return False
    if target.is_cuda and source.nbytes <= MAX_INLINE_COPY_BYTES:
        return False
    on_host = source if target.is_cuda else target
    return not (on_host.is_pinned() and on_host.is_contiguous())


def watch_reads(observer: Callable[[str], None]) -> AbstractContextManager[None]:
    """Call `observer(site)` for every read of a value in the body.

    It hears nothing where torch's sync debug mode is on already: inside `forbid_waits`, inside another
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
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=_SYNC_WARNING)
        show = warnings.showwarning

        def note(message: Warning | str, *place: Any, **more: Any) -> None:
            if str(message).startswith(_SYNC_WARNING):
                observer(call_site())
            else:
                show(message, *place, **more)

        warnings.showwarning = note
        with _sync_mode("warn"):
            yield
