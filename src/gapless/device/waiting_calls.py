"""The one interceptor of calls by which the host waits for a device, and reads its values.

A listener hears of each call of a tensor method that reads or copies (`loss.item()`, `x.to("cuda")`), and of each
function that waits (`torch.cuda.synchronize()`): which operation it is, at its beginning and its end, in the frame
that made it. Calls that do not wait are passed over: those for tensors on the host, and copies that do not block by
`gapless.device.waiting_operations`. It works on every device. It does not see what C++ reads by itself: for that
there are torch's warnings (`gapless.device.sync_warnings`) and a dispatch mode (`read_by`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch.compiler import is_dynamo_compiling

from gapless.device import script_tensors
from gapless.device.cuda_waits import is_capturing
from gapless.device.torch_private import (
    ACCELERATOR_EMPTY_CACHE,
    ACCELERATOR_SYNCHRONIZE,
    CUDA_EMPTY_CACHE,
    CUDA_SYNCHRONIZE,
    DisableTorchFunction,
    is_traced,
    keep_from_compiler,
    local_scalar_dense,
    parse_to,
)
from gapless.device.waiting_operations import (
    READING_METHODS,
    READING_OPERATORS,
    Copy,
    CopyCause,
    Read,
    is_dense,
    why_it_blocks,
)
from gapless.python_private import getframe
from gapless.unnoticed import StandIn, is_of_signal_handler, unseen


if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from gapless.unnoticed import Patches


WaitingOperation: TypeAlias = (
    Read | CopyCause | Literal["host allocation", "device", "stream", "event", "empty_cache"]
)


class Listener(Protocol):
    """Hears of calls that wait."""

    @property
    def are_wanted(self) -> bool:
        """Whether it wants this thread's calls now."""

    @property
    def around(self) -> Callable[[WaitingOperation, str, str], AbstractContextManager[None]]:
        """Return what makes a context for a call that waits; it is entered in the frame of the call.

        It takes the operation, the name of the call, "Tensor.item" for example, and its size or "".
        """


# What a call of a method waits for, and what to say of it; None if it does not wait.
_Question = Callable[..., "tuple[WaitingOperation, str] | None"]


# What operators of torch read, in the form that a dispatch mode sees.
_READING: dict[Any, Read] = {
    local_scalar_dense: READING_OPERATORS["aten::_local_scalar_dense"],
    torch.ops.aten.equal.default: READING_OPERATORS["aten::equal"],
}


def read_by(
    operator: Any,
    given: Iterable[torch.Tensor],
    result: Any,
    *,
    is_on_host: Callable[[torch.Tensor], bool],
) -> Read | None:
    """Return by what an operator has read values of a device on the host; None if it has read none.

    For dispatch modes, which see all that is read, also by C++, but not the method that was called.

    Args:
        operator: overload.
        given: tensors among its arguments.
        result: what it returned.
        is_on_host: whether a tensor is.

    Sync: Does not block the host.
    """
    if all(map(is_on_host, given)):
        return None
    if isinstance(result, torch.Tensor) and is_on_host(result):
        return "cpu"
    return _READING.get(operator)


def intercept_waits(listener: Listener, patches: Patches) -> None:
    """Tell a listener of each call that waits, as long as the patches are in."""
    _intercept_tensors(listener, patches)
    for function in waiting_functions():
        make = partial(_telling, function.operation, function.call, listener)
        if isinstance(function.holder, type):
            patches.put_method(function.holder, function.name, make)
        else:
            original = getattr(function.holder, function.name)
            patches.put(function.holder, function.name, make(original))


class WaitingFunction(NamedTuple):
    """A function that makes the host wait.

    Attributes:
        holder: module or class that it is an attribute of.
        name: of the attribute.
        operation: what it waits for.
        call: how users call it.
    """

    holder: Any
    name: str
    operation: WaitingOperation
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


def named_like(stand_in: Callable[..., Any], original: Any) -> Callable[..., Any]:
    """Return a function with the name and the docstring of the one that it stands for."""
    stand_in.__name__ = getattr(original, "__name__", stand_in.__name__)
    stand_in.__qualname__ = getattr(original, "__qualname__", stand_in.__name__)
    stand_in.__module__ = getattr(original, "__module__", None) or stand_in.__module__
    stand_in.__doc__ = getattr(original, "__doc__", None)
    return stand_in


def _telling(
    operation: WaitingOperation, call: str, listener: Listener, original: Callable[..., Any]
) -> Callable[..., Any]:
    def wait(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return original(*args, **kwargs)
        with unseen:
            if not listener.are_wanted:
                return original(*args, **kwargs)
            with listener.around(operation, call, ""):
                return original(*args, **kwargs)

    return named_like(wait, original)


# --- methods of tensors ---


def _intercept_tensors(listener: Listener, patches: Patches) -> None:
    def is_watched(_: torch.Tensor) -> bool:
        # What torch.jit traces has the names and lines of the functions that it goes through.
        return listener.are_wanted and is_traced() is None

    def is_watched_read(tensor: torch.Tensor) -> bool:
        return is_watched(tensor) and script_tensors.is_on_accelerator(tensor)

    for name, read in READING_METHODS.items():
        make = partial(_reading, name, read, listener)
        patches.put_method(torch.Tensor, name, make, is_for=is_watched_read)
    questions: dict[str, _Question] = {
        "to": _to,
        "cuda": _cuda,
        "copy_": _copy,
        "numpy": _numpy,
        "pin_memory": _pin,
    }
    for name, question in questions.items():
        make = partial(_asking, name, question, listener)
        patches.put_method(torch.Tensor, name, make, is_for=is_watched)


def _reading(
    name: str, read: Read, listener: Listener, original: Callable[..., Any]
) -> Callable[..., Any]:
    """Tell of a call, which is one for a tensor on a device."""
    return _named(_telling(read, f"Tensor.{name}", listener, original), name)


def _asking(
    name: str, question: _Question, listener: Listener, original: Callable[..., Any]
) -> Callable[..., Any]:
    """Tell of a call if it blocks, which depends on more than the tensor."""
    call = f"Tensor.{name}"

    def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return original(tensor, *args, **kwargs)
        with unseen:
            found = _answer(question, tensor, args, kwargs) if listener.are_wanted else None
            if found is None:
                return original(tensor, *args, **kwargs)
            with listener.around(found[0], call, found[1]):
                return original(tensor, *args, **kwargs)

    return _named(method, name)


def _answer(
    question: _Question, tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[WaitingOperation, str] | None:
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


def _to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[WaitingOperation, str] | None:
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
) -> tuple[WaitingOperation, str] | None:
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
) -> tuple[WaitingOperation, str] | None:
    """Return why a copy into a new tensor blocks, if it leaves or enters the host."""
    to_device = script_tensors.is_accelerator(device)
    if to_device == script_tensors.is_on_accelerator(tensor) or device.type == "meta":
        return None
    if not script_tensors.holds_values(tensor):
        return None
    if non_blocking and not to_device:
        return None  # torch takes page-locked memory for it

    def lies_alike() -> bool:
        """Return whether the new tensor has the strides of this one."""
        if memory_format is None or memory_format is torch.preserve_format:
            return is_dense(tensor.shape, tensor.stride())
        return tensor.is_contiguous(memory_format=memory_format)

    with DisableTorchFunction():
        if tensor.layout is not torch.strided:
            return None
        dtype = dtype or tensor.dtype
        carried = tensor.dtype if to_device and non_blocking else dtype
        return _judged(
            Copy(
                to_device=to_device,
                non_blocking=non_blocking,
                num_bytes=tensor.numel() * carried.itemsize,
                is_pinned=lambda: script_tensors.is_pinned(tensor),
                is_direct=lambda: (
                    tensor.is_contiguous() or (dtype == tensor.dtype and lies_alike())
                ),
            )
        )


def _copy(
    target: torch.Tensor, other: torch.Tensor, non_blocking: bool = False
) -> tuple[WaitingOperation, str] | None:
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
            Copy.between(
                source,
                target,
                to_device=to_device,
                non_blocking=non_blocking,
                is_pinned=script_tensors.is_pinned,
            )
        )


def _judged(copy: Copy) -> tuple[WaitingOperation, str] | None:
    # To ask whether memory is page-locked would break the capture.
    if copy.depends_on_memory and is_capturing():
        return None
    cause = why_it_blocks(copy)
    return None if cause is None else (cause, _size(copy.num_bytes))


def _size(num_bytes: int) -> str:
    if num_bytes >= 1 << 20:
        return f"{num_bytes / (1 << 20):.1f} MiB"
    return f"{num_bytes / (1 << 10):.1f} KiB" if num_bytes >= 1 << 10 else f"{num_bytes} bytes"


def _numpy(tensor: torch.Tensor, *, force: bool = False) -> tuple[WaitingOperation, str] | None:
    return ("cpu", "") if force and script_tensors.is_on_accelerator(tensor) else None


def _pin(tensor: torch.Tensor, *_: Any, **__: Any) -> tuple[WaitingOperation, str] | None:
    # A loader that was asked for pinned batches makes them, mostly on a thread of its own.
    if str(getframe(3).f_globals.get("__name__")).startswith("torch.utils.data"):
        return None
    with DisableTorchFunction():
        if (
            not script_tensors.holds_values(tensor)
            or not tensor.is_cpu
            or not tensor.numel()
            or is_capturing()
            or script_tensors.is_pinned(tensor)
        ):
            return None
        return "host allocation", _size(tensor.nbytes)
