"""See every wait of the host for a GPU, with the line that made it.

Torch calls back before each synchronisation of a stream, an event or the device, on the thread
that waits. A copy from or to memory that is not page-locked, or not dense, blocks inside the
driver without a synchronisation, even when `non_blocking` is asked for; a dispatch mode sees it.

Source: `torch.cuda._gpu_trace`, which torch's own CUDA sanitizer stands on. It is private: where
it is missing, `watch_waits` says so instead of counting nothing.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gapless.device.call_site import call_site
from gapless.errors import DeviceError


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless.device.base import WaitObserver


_COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


@contextmanager
def watch_waits(observer: WaitObserver) -> Iterator[None]:
    """Call `observer(what, site)` before every host wait of the body, on any thread.

    Raises:
        DeviceError: this torch does not tell about synchronisations.
    """
    callbacks = _register(observer)
    try:
        with _StagedCopies(observer):
            yield
    finally:
        for registry, callback in callbacks:
            registry.callback_list.remove(callback)


def _register(observer: WaitObserver) -> list[tuple[Any, Callable[..., None]]]:
    try:
        from torch.cuda import _gpu_trace

        registries: dict[str, Any] = {
            "stream synchronize": _gpu_trace.StreamSynchronizationCallbacks,
            "event synchronize": _gpu_trace.EventSynchronizationCallbacks,
            "device synchronize": _gpu_trace.DeviceSynchronizationCallbacks,
        }
        torch._C._activate_gpu_trace()
    except (ImportError, AttributeError) as error:
        raise DeviceError(
            f"torch {torch.__version__} does not tell about synchronisations ({error}), so host "
            "waits cannot be counted; use torch 2.11 or later"
        ) from error
    callbacks = []
    for what, registry in registries.items():

        def callback(*_: Any, what: str = what) -> None:
            observer(what, call_site())

        registry.add_callback(callback)
        callbacks.append((registry, callback))
    return callbacks


class _StagedCopies(TorchDispatchMode):
    """Tell about copies that block although they were asked not to."""

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
    on_host = source if target.is_cuda else target
    return not (on_host.is_pinned() and on_host.is_contiguous())
