"""Which memory of the device a run of a step reads and writes.

A graph reads and writes the memory that its capture found. What existed before a run and is
touched by an operation of it is what the graph will need again: its weights, buffers, optimizer
state, tensors that a step keeps. What the run makes itself is the graph's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from sys import getprofile, setprofile
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from gapless.device.nondeterministic import may_be_nondeterministic, nondeterministic_name
from gapless.device.torch_private import leave_compiler_out
from gapless.device.user_line import call_site
from gapless.graphs.reads.addresses import address_of
from gapless.graphs.reads.batch_reads import Operands


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gapless.device.base import Device
    from gapless.graphs.reads.batch_reads import ReadWatch


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

# Fused updates write gradients only to unscale them, though their schemas say that they write.
_FUSED_UPDATES = "aten::_fused_"
_RECORD_STREAM = "aten::record_stream"  # writes nothing, though its schema says so

# Operators of others may write what their schemas call read.
_TRUSTED = ("aten::", "prims::", "prim::")

_BYTE = torch.uint8
_STRIDED = torch.strided
_is_zero = torch.Tensor._is_zerotensor

# The most common ones, which are no wrappers.
PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter))

# Arguments of operators in which there is no tensor.
_NO_TENSORS = frozenset(
    (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.Size)
)


class FirstUses(Protocol):
    """Is told what an operation is about to change.

    Attributes:
        made: addresses of the storages that runs were seen to make: what is written there is not told.
    """

    made: set[int]

    def writes(self, storage: torch.UntypedStorage) -> None:
        """See a storage that was there before."""

    def draws_from(self, generator: torch.Generator) -> None:
        """See a generator that an operation is given."""


class TouchWatch(TorchDispatchMode):
    """See which tensors of a device the body reads and writes, in backward passes too.

    What is found is the memory that existed before the body. It is held, so that it is not given
    to others. Operators that torch does not know by a schema it can trust count as writing all of
    their arguments.

    Not to be used where compiled code runs: it runs as always, and what it makes looks as if it
    had been there before. Not seen either: what extensions do without torch's dispatcher.

    Args:
        device: whose tensors are looked for.
        reads: is told of all operations; None: nobody is.
        may_wait: says whether a profiler of Python need not see what is done here: it would be told of each
            call; None: it sees it.
        first_uses: is told of each storage before it is written for the first time, and of generators.
        sees_reads: whether it sees what is read, and operators that may give other bits.

    Attributes:
        host_draws: file:line of every random tensor that was made on the host.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code run as it does without this mode."""
        return True

    def __init__(
        self,
        device: Device,
        *,
        reads: ReadWatch | None = None,
        may_wait: Callable[[Any], bool] | None = None,
        first_uses: FirstUses | None = None,
        sees_reads: bool = True,
    ) -> None:
        super().__init__()
        leave_compiler_out(TouchWatch)
        self._sees_reads = sees_reads
        self._first_uses = first_uses
        self._may_wait = may_wait
        self._profiler: Any = None
        self._reads = reads
        self._generators: dict[int, torch.Generator] = {}
        self.host_draws: list[str] = []
        self._device = device
        self._seen: dict[int, _Memory] = {}
        self._made: set[int] = set()
        self._nondeterministic: dict[str, None] = {}

    def __enter__(self) -> Self:
        profiler = getprofile()
        if self._may_wait is not None and self._may_wait(profiler):
            self._profiler = profiler
        super().__enter__()
        return self

    @property
    def read(self) -> list[torch.Tensor]:
        """What was read, as `written` is."""
        return self._tensors("read")

    @property
    def written(self) -> list[torch.Tensor]:
        """What was written: tensors without gradients; views that overlap are joined to one tensor of bytes."""
        return self._tensors("written")

    @cached_property
    def addresses(self) -> frozenset[int]:
        """Where all that was touched lies; to be asked for when nothing more is to come."""
        return frozenset(map(address_of, [*self.read, *self.written]))

    def storages(self) -> set[int]:
        """Return where all that was touched lies, on other devices too."""
        return {memory.storage.data_ptr() for memory in self._seen.values()}

    @property
    def surely_written(self) -> list[torch.Tensor]:
        """What was written by operators that say so themselves, as `written` is."""
        return self._tensors("surely_written")

    def has_seen(self, storage: int) -> bool:
        """Return whether a storage that was there before, named by its address, was touched."""
        return storage in self._seen

    @property
    def generators(self) -> list[torch.Generator]:
        """The generators that operations were given."""
        return list(self._generators.values())

    @property
    def nondeterministic(self) -> list[str]:
        """The operators on an accelerator that may give other bits each time."""
        return list(self._nondeterministic)

    def _tensors(self, kind: str) -> list[torch.Tensor]:
        with torch.no_grad(), torch.inference_mode(mode=False):
            found = [tensor for memory in self._seen.values() for tensor in memory.tensors(kind)]
        return [tensor for tensor in found if not self._device.needs_copy(tensor)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        profiler = self._profiler
        # In other threads there is another one, or none.
        if profiler is None or getprofile() != profiler:
            return self._see(func, args, kwargs or {})
        setprofile(None)
        try:
            return self._see(func, args, kwargs or {}, profiler)
        finally:
            setprofile(profiler)

    def _see(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], profiler: Any = None
    ) -> Any:
        if torch.is_inference_mode_enabled() and _is_made_of_others(func):
            with self:
                return _run(func.decompose, args, kwargs, profiler)
        # Called some thousand times a run: what is known of an operator is looked up by its id.
        known = (_KNOWN.get(id(func)) or _known_anew(func))[1]
        if not self._sees_reads and known.written == _NOTHING and not known.draws:
            result = _run(func, args, kwargs, profiler)
            self._note_result(known, result)
            return result
        given = self._note_arguments(known, args, kwargs)
        if known.may_be_nondeterministic and self._device.is_accelerator:
            name = nondeterministic_name(func, args, kwargs)
            if name is not None:
                self._nondeterministic[name] = None
        if known.draws and self._first_uses is not None:
            for value in (*args, *kwargs.values()):
                if isinstance(value, torch.Generator):
                    self._first_uses.draws_from(value)
        result = _run(func, args, kwargs, profiler)
        if known.draws or known.is_random:
            self._note_draws(known, (*args, *kwargs.values()), result)
        made = self._note_result(known, result)
        if self._reads is not None:
            self._reads.see(
                func, args, kwargs, result, given=given, made=made, is_pure=known.is_pure
            )
        return result

    def _note_arguments(
        self, known: _Knowledge, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Operands:
        """Note the tensors that an operator is given; return them."""
        given = Operands()
        writes, made = known.written, self._made
        for place, value in (*enumerate(args), *kwargs.items()) if kwargs else enumerate(args):
            kind = type(value)
            if kind in _NO_TENSORS:
                continue
            is_written = writes is None or place in writes
            is_sure = is_written and place in known.surely_written
            tensors = (value,) if kind in PLAIN_TYPES else _tensors_in(value)
            given.tensors += tensors
            for tensor in tensors:
                is_alone = type(tensor) in PLAIN_TYPES and tensor.layout is _STRIDED
                for part in (tensor,) if is_alone else plain_parts(tensor):
                    if _is_zero(part) or part.is_meta:
                        continue
                    storage = part.untyped_storage()
                    key = storage._cdata
                    if key not in made:
                        self._note(part, key, storage, is_written, is_sure)
                    if is_alone:
                        given.storages.append(key)
                        if is_written:
                            given.written.append(key)
        return given

    def _note_result(self, known: _Knowledge, result: Any) -> list[int]:
        """Note memory that an operator has made; return the addresses of its storages."""
        keys: list[int] = []
        if known.returns_given:
            return keys
        made, seen, first_uses = self._made, self._seen, self._first_uses
        for tensor in (result,) if type(result) in PLAIN_TYPES else _tensors_in(result):
            is_alone = type(tensor) in PLAIN_TYPES and tensor.layout is _STRIDED
            for part in (tensor,) if is_alone else plain_parts(tensor):
                if _is_zero(part) or part.is_meta:
                    continue
                key = part.untyped_storage()._cdata
                keys.append(key)
                if key not in seen:
                    made.add(key)
                    if first_uses is not None:
                        first_uses.made.add(key)
        return keys

    def _note_draws(self, known: _Knowledge, values: tuple[Any, ...], result: Any) -> None:
        if known.draws:
            for value in values:
                if isinstance(value, torch.Generator):
                    self._generators.setdefault(value._cdata, value)  # type: ignore[attr-defined]
        made = list(_tensors_in(result)) if known.is_random else []
        # Attention on the device also returns seeds that lie on the host.
        if made and all(map(self._device.needs_copy, made)):
            self.host_draws.append(call_site())

    def _note(
        self,
        part: torch.Tensor,
        key: int,
        storage: torch.UntypedStorage,
        is_written: bool,
        is_sure: bool,
    ) -> None:
        """Note that memory is used that no operator of the body has made."""
        memory = self._seen.get(key)
        if memory is None:
            memory = self._seen[key] = _Memory(storage)
        first_uses = self._first_uses
        if is_written and first_uses is not None and key not in first_uses.made:
            first_uses.writes(storage)
        memory.add(part, is_written=is_written, is_sure=is_sure)


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], profiler: Any) -> Any:
    """Call an operator, with the profiler that waits meanwhile: code of the user's may run in it."""
    if profiler is None:
        return func(*args, **kwargs)
    setprofile(profiler)
    try:
        return func(*args, **kwargs)
    finally:
        setprofile(None)


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
    surely_written: dict[tuple[int, int], _Form] = field(default_factory=dict)
    known: set[tuple[Any, ...]] = field(default_factory=set)

    def add(self, tensor: torch.Tensor, *, is_written: bool, is_sure: bool) -> None:
        size, stride, offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        # Most tensors are used again and again in the same way.
        key = (tensor.dtype, size, stride, offset, is_written, is_sure)
        if key in self.known:
            return
        self.known.add(key)
        span = span_of(tensor)
        if span[0] == span[1]:
            return
        form = _Form(tensor.dtype, int(offset), tuple(size), tuple(stride))
        (self.written if is_written else self.read).setdefault(span, form)
        if is_sure:
            self.surely_written.setdefault(span, form)

    def tensors(self, kind: str) -> Iterator[torch.Tensor]:
        found: dict[tuple[int, int], _Form] = getattr(self, kind)
        end = self.storage.nbytes()  # a storage may have been made smaller since
        spans = [span for span in found if span[1] <= end]
        for span in spans if len(spans) < 2 else joined(spans):
            form = found.get(span) or _Form(_BYTE, span[0], (span[1] - span[0],), (1,))
            yield form.in_storage(self.storage)


def span_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of a strided tensor in its storage, and the one after its last."""
    start = int(tensor.storage_offset()) * tensor.element_size()
    if not tensor.numel():
        return start, start
    if tensor.is_contiguous():
        return start, start + tensor.numel() * tensor.element_size()
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


def plain_parts(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    """Return the strided tensors that hold the elements of any tensor."""
    if type(tensor) in PLAIN_TYPES or not is_traceable_wrapper_subclass(tensor):
        if tensor.layout is torch.strided:
            return () if _is_zero(tensor) or tensor.is_meta else (tensor,)
        return _parts_of_sparse(tensor)
    parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    parts = [part for part in parts if isinstance(part, torch.Tensor)]
    return [plain for part in parts for plain in plain_parts(part)]


def _parts_of_sparse(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


# --- operators ---


@dataclass(frozen=True, slots=True)
class _Knowledge:
    """What is known of an operator.

    Attributes:
        written: positions and names of the arguments that it may write; None for all.
        surely_written: those that it says itself that it writes.
        draws: it may be given a generator.
        is_random: it draws random numbers.
        may_be_nondeterministic: it gives other bits each time for some arguments.
        is_pure: it is one of torch's own, writes nothing and draws nothing.
        returns_given: what it returns lies in the memory of what it is given.
    """

    written: frozenset[int | str] | None
    draws: bool
    is_random: bool = False
    surely_written: frozenset[int | str] = frozenset()
    may_be_nondeterministic: bool = False
    is_pure: bool = False
    returns_given: bool = False


_NOTHING: frozenset[int | str] = frozenset()

# By id of the operator, which is held: torch computes the hash of one in Python.
_KNOWN: dict[int, tuple[Any, _Knowledge]] = {}


def _known_anew(func: Any) -> tuple[Any, _Knowledge]:
    return _KNOWN.setdefault(id(func), (func, _knowledge_of(func)))


def _knowledge_of(func: Any) -> _Knowledge:
    if not isinstance(func, torch._ops.OpOverload):
        return _Knowledge(written=None, draws=True)
    schema = func._schema
    draws = any("Generator" in str(argument.type) for argument in schema.arguments)
    written: set[int | str] = set()
    surely_written: set[int | str] = set()
    also = _ALSO_WRITTEN.get(schema.name, ())
    for place, argument in enumerate(schema.arguments):
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        if is_written or argument.name in also:
            written |= {place, argument.name}
            if not _is_unsure(schema.name, argument.name):
                surely_written |= {place, argument.name}
    is_trusted = schema.name.startswith(_TRUSTED)
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    return _Knowledge(
        written=frozenset(written) if is_trusted else None,
        surely_written=frozenset(surely_written),
        draws=draws,
        is_random=is_random,
        is_pure=is_trusted and not written and not is_random,
        returns_given=all(each.alias_info is not None for each in schema.returns),
        may_be_nondeterministic=may_be_nondeterministic(func),
    )


def _is_unsure(operator: str, argument: str) -> bool:
    is_gradient = argument == "grads" and operator.startswith(_FUSED_UPDATES)
    return is_gradient or operator == _RECORD_STREAM


@cache
def _is_made_of_others(func: Any) -> bool:
    """Whether torch takes an operator apart itself, outside of inference mode."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    key = torch._C.DispatchKey
    try:
        return (
            func.has_kernel_for_dispatch_key(key.CompositeImplicitAutograd)
            and not func.has_kernel_for_dispatch_key(key.CUDA)
            and not func.has_kernel_for_dispatch_key(key.CPU)
        )
    except RuntimeError:
        return False  # one of torch's own, which has no kernels


def _tensors_in(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, list | tuple):
        found: list[torch.Tensor] = []
        for part in value:
            if type(part) not in _NO_TENSORS:
                found += (part,) if type(part) in PLAIN_TYPES else _tensors_in(part)
        return found
    if isinstance(value, dict):
        return [tensor for part in value.values() for tensor in _tensors_in(part)]
    return ()
