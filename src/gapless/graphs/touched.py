"""Which memory of the device a run of a step reads and writes.

A graph reads and writes the memory that its capture found. What existed before a run and is
touched by an operation of it is what the graph will need again: its weights, buffers, optimizer
state, tensors that a step keeps. What the run makes itself is the graph's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gapless.device.base import Device


# What these write although their schemas do not say so (torch 2.13): running averages, and the
# state of cuDNN's random numbers.
_ALSO_WRITTEN = {
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "aten::cudnn_batch_norm": ("running_mean", "running_var"),
    "aten::miopen_batch_norm": ("running_mean", "running_var"),
    "aten::batch_norm_gather_stats": ("running_mean", "running_var"),
    "aten::batch_norm_gather_stats_with_counts": ("running_mean", "running_var"),
    "aten::batch_norm_update_stats": ("running_mean", "running_var"),
    "aten::_cudnn_rnn": ("dropout_state",),
    "aten::miopen_rnn": ("dropout_state",),
}

# Operators of others may write what their schemas call read.
_TRUSTED = ("aten::", "prims::", "prim::")

_BYTE = torch.uint8


class TouchWatch(TorchDispatchMode):
    """See which tensors of a device the body reads and writes, in backward passes too.

    What is found is the memory that existed before the body. It is held, so that it is not given
    to others. Operators that torch does not know by a schema it can trust count as writing all of
    their arguments.

    Not to be used where compiled code runs: it runs as always, and what it makes looks as if it
    had been there before. Not seen either: what extensions do without torch's dispatcher.

    Args:
        device: whose tensors are looked for.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code run as it does without this mode."""
        return True

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._generators: dict[int, torch.Generator] = {}
        self._device = device
        self._seen: dict[int, _Memory] = {}
        self._made: set[int] = set()

    @property
    def read(self) -> list[torch.Tensor]:
        """What was read, as `written` is."""
        return self._tensors("read")

    @property
    def written(self) -> list[torch.Tensor]:
        """What was written: tensors without gradients, no two of which share memory.

        A tensor that was seen as a whole is listed with its shape; views that overlap are joined
        to one tensor of bytes.
        """
        return self._tensors("written")

    @property
    def generators(self) -> list[torch.Generator]:
        """The generators that operations were given."""
        return list(self._generators.values())

    def _tensors(self, kind: str) -> list[torch.Tensor]:
        found = [tensor for memory in self._seen.values() for tensor in memory.tensors(kind)]
        return [tensor for tensor in found if not self._device.needs_copy(tensor)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and _is_made_of_others(func):
            with self:
                return func.decompose(*args, **kwargs)
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Generator):
                self._generators.setdefault(value._cdata, value)  # type: ignore[attr-defined]
        written = _written_by(func, args, kwargs)
        for tensor in _tensors_in((args, kwargs)):
            self._note(tensor, is_written=any(tensor is other for other in written))
        result = func(*args, **kwargs)
        for tensor in _tensors_in(result):
            self._note_made(tensor)
        return result

    def _note(self, tensor: torch.Tensor, *, is_written: bool) -> None:
        for part in plain_parts(tensor):
            storage = part.untyped_storage()
            key = storage._cdata
            if key not in self._made:
                memory = self._seen.setdefault(key, _Memory(storage))
                memory.add(part, is_written=is_written)

    def _note_made(self, tensor: torch.Tensor) -> None:
        for part in plain_parts(tensor):
            key = part.untyped_storage()._cdata
            if key not in self._seen:
                self._made.add(key)


@dataclass(frozen=True, slots=True)
class _Form:
    """How a tensor lies in its storage."""

    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def in_storage(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return a tensor of this form that knows no gradients."""
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.size, self.stride)


@dataclass(slots=True)
class _Memory:
    """A storage, held, and the bytes of it that were touched."""

    storage: torch.UntypedStorage
    read: dict[tuple[int, int], _Form] = field(default_factory=dict)
    written: dict[tuple[int, int], _Form] = field(default_factory=dict)

    def add(self, tensor: torch.Tensor, *, is_written: bool) -> None:
        found = self.written if is_written else self.read
        span = span_of(tensor)
        if span not in found and span[0] < span[1]:
            size, stride = tuple(tensor.size()), tuple(tensor.stride())
            found[span] = _Form(tensor.dtype, int(tensor.storage_offset()), size, stride)

    def tensors(self, kind: str) -> Iterator[torch.Tensor]:
        found: dict[tuple[int, int], _Form] = getattr(self, kind)
        end = self.storage.nbytes()  # a storage may have been made smaller since
        spans = [span for span in found if span[1] <= end]
        with torch.no_grad(), torch.inference_mode(mode=False):
            for span in joined(spans):
                form = found.get(span) or _Form(_BYTE, span[0], (span[1] - span[0],), (1,))
                yield form.in_storage(self.storage)


def span_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of a strided tensor in its storage, and the one after its last."""
    start = int(tensor.storage_offset()) * tensor.element_size()
    if not tensor.numel():
        return start, start
    pairs = zip(tensor.size(), tensor.stride(), strict=True)
    count = 1 + sum((size - 1) * stride for size, stride in pairs)
    return start, start + count * tensor.element_size()


def joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges that cover the same as these, and of which no two overlap."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def plain_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Return the strided tensors that hold the elements of any tensor."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            part = getattr(tensor, name)
            if isinstance(part, torch.Tensor):
                yield from plain_parts(part)
    elif tensor.layout is torch.strided:
        if not tensor._is_zerotensor() and not tensor.is_meta:
            yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())


# --- operators ---


@cache
def _is_made_of_others(func: Any) -> bool:
    """Whether torch takes an operator apart itself, outside of inference mode."""
    key = torch._C.DispatchKey
    return (
        isinstance(func, torch._ops.OpOverload)
        and func.has_kernel_for_dispatch_key(key.CompositeImplicitAutograd)
        and not func.has_kernel_for_dispatch_key(key.CUDA)
        and not func.has_kernel_for_dispatch_key(key.CPU)
    )


@cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...] | None:
    """Return position and name of the arguments that an operator writes; None for all."""
    if not isinstance(func, torch._ops.OpOverload):
        return None
    schema = func._schema
    if not schema.name.startswith(_TRUSTED):
        return None
    also = _ALSO_WRITTEN.get(schema.name, ())
    return tuple(
        (at, argument.name)
        for at, argument in enumerate(schema.arguments)
        if (argument.alias_info is not None and argument.alias_info.is_write)
        or argument.name in also
    )


def _written_by(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    places = _written_arguments(func)
    if places is None:
        return list(_tensors_in((args, kwargs)))
    found = [args[at] if at < len(args) else kwargs.get(name) for at, name in places]
    return list(_tensors_in(found))


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors_in(part)
