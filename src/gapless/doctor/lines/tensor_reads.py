"""Methods of tensors that make the host wait, watched."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_dynamo_compiling

from gapless.device import script_tensors
from gapless.device.cuda_waits import is_capturing
from gapless.device.torch_private import (
    DisableTorchDispatch,
    DisableTorchFunction,
    is_traced,
    keep_from_compiler,
    parse_to,
)
from gapless.device.waiting_operations import MAX_INLINE_COPY_BYTES, Copy, is_dense, why_it_blocks
from gapless.doctor.lines.wait_notes import Noted, WaitNotes
from gapless.python_private import getframe
from gapless.unnoticed import StandIn, is_of_signal_handler, unseen


if TYPE_CHECKING:
    from gapless.doctor.advice.causes import Cause
    from gapless.unnoticed import Patches


# Always wait, if the tensor is on a device.
_READS: dict[str, Cause] = {
    "item": "item",
    "__bool__": "bool",
    "__float__": "float",
    "__complex__": "float",
    "__int__": "int",
    "__index__": "index",
    "tolist": "tolist",
    "cpu": "cpu",
}


# What a call of a method waits for, and what to say of it; None if it does not wait.
_Question = Callable[..., "tuple[Cause, str] | None"]


def watch_tensors(notes: WaitNotes, patches: Patches) -> None:
    """Note each wait of the methods of tensors that wait."""

    def is_watched(_: torch.Tensor) -> bool:
        # What torch.jit traces has the names and lines of the functions that it goes through.
        return notes.are_wanted and is_traced() is None

    def is_watched_read(tensor: torch.Tensor) -> bool:
        return is_watched(tensor) and script_tensors.is_on_accelerator(tensor)

    for name, cause in _READS.items():
        make = partial(_reading, name, cause, notes)
        patches.put_method(torch.Tensor, name, make, is_for=is_watched_read)
    questions: dict[str, _Question] = {
        "to": _to,
        "cuda": _cuda,
        "copy_": _copy,
        "numpy": _numpy,
        "pin_memory": _pin,
    }
    for name, question in questions.items():
        make = partial(_asking, name, question, notes)
        patches.put_method(torch.Tensor, name, make, is_for=is_watched)


def _reading(
    name: str, cause: Cause, notes: WaitNotes, original: Callable[..., Any]
) -> Callable[..., Any]:
    """Note a call if the tensor is on a device."""
    call = f"Tensor.{name}"

    def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return original(tensor, *args, **kwargs)
        with unseen:
            if not notes.are_wanted:
                return original(tensor, *args, **kwargs)
            with Noted(notes, cause, call):
                return original(tensor, *args, **kwargs)

    return _named(method, name)


def _asking(
    name: str, question: _Question, notes: WaitNotes, original: Callable[..., Any]
) -> Callable[..., Any]:
    """Note a call if it blocks, which depends on more than the tensor."""
    call = f"Tensor.{name}"

    def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return original(tensor, *args, **kwargs)
        with unseen:
            found = _answer(question, tensor, args, kwargs) if notes.are_wanted else None
            if found is None:
                return original(tensor, *args, **kwargs)
            with Noted(notes, found[0], call, found[1]):
                return original(tensor, *args, **kwargs)

    return _named(method, name)


def _answer(
    question: _Question, tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Cause, str] | None:
    try:
        return question(tensor, *args, **kwargs)
    except Exception as error:
        if is_of_signal_handler(error):
            raise
        return None  # torch is to say what is wrong, or takes more than we know


def _named(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    # By its name a method of an object is found again when a script sends it to another process.
    method.__name__, method.__qualname__, method.__module__ = name, f"Tensor.{name}", "torch"
    method.__doc__ = getattr(torch.Tensor, name).__doc__
    keep_from_compiler(method)
    return method


keep_from_compiler(StandIn.__get__)


def _to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[Cause, str] | None:
    if len(args) == 1 and isinstance(args[0], torch.dtype) and not kwargs:
        return None
    kwargs.pop("copy", None)
    with DisableTorchFunction():
        device, dtype, non_blocking, memory_format = parse_to(*args, **kwargs)
    if device is None:
        return None
    return _crossing(
        tensor, device, dtype=dtype, non_blocking=non_blocking, memory_format=memory_format
    )


def _cuda(
    tensor: torch.Tensor,
    device: Any = None,
    non_blocking: bool = False,
    *,
    memory_format: torch.memory_format | None = None,
) -> tuple[Cause, str] | None:
    return _crossing(
        tensor,
        torch.device("cuda"),
        dtype=None,
        non_blocking=non_blocking,
        memory_format=memory_format,
    )


def _crossing(
    tensor: torch.Tensor,
    device: torch.device,
    *,
    dtype: torch.dtype | None,
    non_blocking: bool,
    memory_format: torch.memory_format | None,
) -> tuple[Cause, str] | None:
    """Return why a copy into a new tensor blocks, if it leaves or enters the host."""
    to_device = script_tensors.is_accelerator(device)
    if to_device == script_tensors.is_on_accelerator(tensor) or device.type == "meta":
        return None
    if not script_tensors.holds_values(tensor):
        return None
    if non_blocking and not to_device:
        return None  # torch takes page-locked memory for it
    with DisableTorchFunction():
        if tensor.layout is not torch.strided:
            return None
        dtype = dtype or tensor.dtype
        return _judged(
            tensor,
            to_device=to_device,
            non_blocking=non_blocking,
            num_bytes=tensor.numel() * dtype.itemsize,
            is_same_type=dtype == tensor.dtype,
            lies_alike=lambda: (
                is_dense(tensor.shape, tensor.stride())
                if memory_format is None or memory_format is torch.preserve_format
                else tensor.is_contiguous(memory_format=memory_format)
            ),
        )


def _copy(
    target: torch.Tensor, other: torch.Tensor, non_blocking: bool = False
) -> tuple[Cause, str] | None:
    source = other
    to_device = script_tensors.is_on_accelerator(target)
    if to_device == script_tensors.is_on_accelerator(source):
        return None
    if not (script_tensors.holds_values(target) and script_tensors.holds_values(source)):
        return None
    with DisableTorchFunction():
        if not target.layout == source.layout == torch.strided:
            return None
        return _judged(
            source if to_device else target,
            to_device=to_device,
            non_blocking=non_blocking,
            num_bytes=target.nbytes,
            is_same_type=target.dtype == source.dtype,
            lies_alike=lambda: (
                target.shape == source.shape
                and (target.is_contiguous() or target.stride() == source.stride())
                and (source.is_contiguous() or target.stride() == source.stride())
                and is_dense(source.shape, source.stride())
            ),
        )


def _judged(
    on_host: torch.Tensor,
    *,
    to_device: bool,
    non_blocking: bool,
    num_bytes: int,
    is_same_type: bool,
    lies_alike: Callable[[], bool],
) -> tuple[Cause, str] | None:
    # The questions below cost a call of the driver: only where the answer depends on them.
    depends = non_blocking and not (to_device and num_bytes <= MAX_INLINE_COPY_BYTES)
    if depends and is_capturing():
        return None
    copy = Copy(
        to_device=to_device,
        non_blocking=non_blocking,
        num_bytes=num_bytes,
        pinned=depends and _is_pinned(on_host),
        is_same_type=is_same_type,
        is_dense=not depends or lies_alike(),
    )
    cause = why_it_blocks(copy)
    return None if cause is None else (cause, _size(num_bytes))


def _is_pinned(tensor: torch.Tensor) -> bool:
    # To torch this is an operation, which modes of the script would see.
    without_modes = DisableTorchDispatch()
    try:
        return tensor.is_pinned()
    finally:
        del without_modes


def _size(num_bytes: int) -> str:
    if num_bytes >= 1 << 20:
        return f"{num_bytes / (1 << 20):.1f} MiB"
    return f"{num_bytes / (1 << 10):.1f} KiB" if num_bytes >= 1 << 10 else f"{num_bytes} bytes"


def _numpy(tensor: torch.Tensor, *, force: bool = False) -> tuple[Cause, str] | None:
    return ("cpu", "") if force and script_tensors.is_on_accelerator(tensor) else None


def _pin(tensor: torch.Tensor, *_: Any, **__: Any) -> tuple[Cause, str] | None:
    # A loader that was asked for pinned batches makes them, mostly on a thread of its own.
    if str(getframe(3).f_globals.get("__name__")).startswith("torch.utils.data"):
        return None
    with DisableTorchFunction():
        if (
            not script_tensors.holds_values(tensor)
            or not tensor.is_cpu
            or not tensor.numel()
            or is_capturing()
            or _is_pinned(tensor)
        ):
            return None
        return "host allocation", _size(tensor.nbytes)
