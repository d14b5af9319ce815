"""Values that a step reads on the host, and that are computed from its batch alone.

A step that reads on the host is captured only if it does not read while a stream is captured, such as
code of transformers that looks for padding. But what it reads as written decides what it computes.
So such a value is part of the kind of a call: it is computed anew from each batch, before a graph is
chosen, by the operations that the step itself had done.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gapless.device.user_line import call_site
from gapless.device.waiting_calls import read_by
from gapless.pipeline.tree.tensor_layout import has_address


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from gapless.device.base import Device
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.tree.flatten import Tree


# Elements of the largest copy to the host that is compared.
_MAX_ELEMENTS = 4_096

# Operations between a batch and a value, at most.
_MAX_OPERATIONS = 64

# Values of one kind of call, at most: each has graphs of its own.
_MAX_VALUES = 8

# Where a tensor lies, and how.
_Place: TypeAlias = "tuple[torch.dtype, int, tuple[int, ...], tuple[int, ...]]"


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A tensor of the batch."""

    number: int

    def tensor(self, leaves: Sequence[torch.Tensor], known: dict[int, Any]) -> Any:
        del known
        return leaves[self.number]


@dataclass(frozen=True, slots=True)
class _Made:
    """What an operator returns for arguments that are computed from the batch.

    Attributes:
        part: which of its results; None if it has one.
        num_operations: up to here; one whose result is used twice counts twice.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: int | None
    num_operations: int

    def tensor(self, leaves: Sequence[torch.Tensor], known: dict[int, Any]) -> Any:
        if id(self) not in known:
            args, kwargs = _filled((self.args, self.kwargs), leaves, known)
            result = self.func(*args, **kwargs)
            known[id(self)] = result if self.part is None else result[self.part]
        return known[id(self)]


_Origin: TypeAlias = _Leaf | _Made


@dataclass(frozen=True, slots=True)
class BatchRead:
    """A value that a step reads, and how it is computed from a batch.

    Attributes:
        site: file:line of the read.
        found: the value that was read.
    """

    site: str
    found: Hashable
    _origin: _Made

    def value(self, leaves: Sequence[torch.Tensor]) -> Hashable:
        """Return the value for the tensors of a batch.

        It is the name of an error if it cannot be computed: a value that is read earlier has led the
        step another way.

        Sync: Blocks the host until the value is computed.
        """
        try:
            return _plain(self._origin.tensor(leaves, {}))
        except Exception as error:
            return type(error).__name__

    def is_like(self, other: BatchRead) -> bool:
        """Return whether another read is of a value that is computed in the same way."""
        return repr(self._origin) == repr(other._origin)


class Operands:
    """The tensors that an operator was given.

    Attributes:
        tensors: all of its arguments, in order.
        storages: addresses of the storages of plain ones.
        written: of those that it may write to.
    """

    __slots__ = ("storages", "tensors", "written")

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.storages: list[int] = []
        self.written: list[int] = []


class ReadWatch:
    """Find how the values that a run reads on the host are computed from its batch.

    Args:
        batch: its tensors.
        needs_copy: says whether a tensor is on the host.
        is_counted: says whether reads count now.

    Attributes:
        found: reads of values that are computed from the batch alone, in order.
        others: file:line of the other reads that were seen.
    """

    def __init__(
        self,
        batch: Sequence[torch.Tensor],
        *,
        needs_copy: Callable[[torch.Tensor], bool],
        is_counted: Callable[[], bool],
    ) -> None:
        self.found: list[BatchRead] = []
        self.others: list[str] = []
        self._needs_copy = needs_copy
        self._is_counted = is_counted
        # By storage. Memory of a tensor that is gone may be used again.
        self._origins: dict[int, dict[_Place, _Origin]] = {}
        for number, leaf in enumerate(batch):
            self._put(leaf, _Leaf(number))

    def see(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        *,
        given: Operands,
        made: Sequence[int],
        is_pure: bool,
    ) -> None:
        """Take note of an operation; to be told of all, in order.

        Args:
            func: the operator.
            args: its arguments by position.
            kwargs: its arguments by name.
            result: what it returned.
            given: the tensors among its arguments, and those that it may have written to.
            made: addresses of the storages of what it returned, but for those that it was given.
            is_pure: whether it is one of torch's own, writes nothing and draws nothing.
        """
        origins = self._origins
        origin = None
        # Called some thousand times a run; nearly all operations are on other memory.
        if is_pure and all(map(origins.__contains__, given.storages)):
            origin = self._origin_of(func, args, kwargs, given.tensors)
        is_tensor = isinstance(result, torch.Tensor)
        # What returns a tensor of the device has read none.
        if not is_tensor or self._needs_copy(result):
            read = read_by(func, given.tensors, result, is_on_host=self._needs_copy)
            if read is not None:
                self._note_read(origin, result)
                return
        for storage in given.written:
            origins.pop(storage, None)
        for storage in made:
            if storage not in given.storages:
                origins.pop(storage, None)
        if origin is None:
            return
        for number, part in enumerate(result if isinstance(result, tuple | list) else (result,)):
            if isinstance(part, torch.Tensor):
                self._put(part, origin if is_tensor else replace(origin, part=number))

    def unguarded(self, sites: Sequence[str]) -> list[str]:
        """Return the reads whose values are not known from a batch.

        Args:
            sites: of all reads that torch has reported.
        """
        seen = Counter([read.site for read in self.found]) + Counter(self.others)
        num_unseen = max(0, len(sites) - seen.total())
        return [*self.others, *[*(Counter(sites) - seen).elements()][:num_unseen]]

    def _note_read(self, origin: _Made | None, result: Any) -> None:
        if not self._is_counted():
            return
        is_large = isinstance(result, torch.Tensor) and result.numel() > _MAX_ELEMENTS
        if origin is None or is_large:
            self.others.append(call_site())
        else:
            self.found.append(BatchRead(call_site(), _plain(result), origin))

    def _origin_of(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: list[torch.Tensor],
    ) -> _Made | None:
        origins = list(map(self._find, given))
        many = 1 + sum(one.num_operations for one in origins if isinstance(one, _Made))
        if None in origins or many > _MAX_OPERATIONS:
            return None
        return _Made(func, self._named(args), self._named(kwargs), None, many)

    def _named(self, value: Any) -> Any:
        """Return a value with origins in the place of tensors."""
        if isinstance(value, torch.Tensor):
            return self._find(value)
        if isinstance(value, dict):
            return {name: self._named(part) for name, part in value.items()}
        if isinstance(value, tuple | list):
            return type(value)(map(self._named, value))
        return value

    def _find(self, tensor: torch.Tensor) -> _Origin | None:
        if not _has_memory(tensor):
            return None
        return self._origins.get(_storage_of(tensor), {}).get(_place_of(tensor))

    def _put(self, tensor: torch.Tensor, origin: _Origin) -> None:
        if _has_memory(tensor):
            known = self._origins.setdefault(_storage_of(tensor), {})
            known.setdefault(_place_of(tensor), origin)


@dataclass(frozen=True, slots=True)
class _Valued:
    """A kind of call whose batch has a value."""

    kind: Hashable
    value: Hashable


class BatchReads:
    """The values of batches that belong to the kinds of a step's calls.

    Args:
        host_waits: the door for these reads, counted as "batch_value".
        device: where the batches are.
    """

    def __init__(self, host_waits: HostWaits, device: Device) -> None:
        self._host_waits = host_waits
        self._device = device
        # By kind, what is read of its batches next.
        self._reads: dict[Hashable, BatchRead] = {}
        self._values: dict[Hashable, set[Hashable]] = {}
        self._skipped: set[str] = set()

    def kind_of(self, tree: Tree) -> Hashable:
        """Return the kind of a call, with the values of its batch that belong to it.

        Sync: Blocks the host for each of these values ("batch_value").
        """
        kind = tree.key()
        if kind not in self._reads:
            return kind
        device_type = self._device.torch_device.type
        with (
            self._host_waits.blocking("batch_value"),
            torch.no_grad(),
            torch.autocast(device_type, enabled=False),
        ):
            while kind in self._reads:
                value = self._reads[kind].value(tree.leaves)
                self._values[kind].add(value)
                kind = _Valued(kind, value)
        tree.known_key = kind
        return kind

    def skipped(self, reads: Iterable[BatchRead]) -> list[BatchRead]:
        """Return those reads of code that is known not to read while it is captured."""
        return [read for read in reads if read.site in self._skipped]

    def add(self, kind: Hashable, reads: Iterable[BatchRead]) -> Hashable:
        """Let values belong to a kind from now on; return the kind with those of this call.

        Args:
            kind: of a call.
            reads: of this call, in order, which its capture did not make.
        """
        known = [self._reads[one] for one in _outer(kind)]
        for read in reads:
            self._skipped.add(read.site)
            if any(read.is_like(one) for one in known):
                continue
            self._reads[kind], self._values[kind] = read, {read.found}
            known.append(read)
            kind = _Valued(kind, read.found)
        return kind

    def with_too_many_values(self, kind: Hashable) -> BatchRead | None:
        """Return a read of whose values a kind has too many for a graph of each, if there is one."""
        for one in _outer(kind):
            if len(self._values[one]) > _MAX_VALUES:
                return self._reads[one]
        return None

    def forget(self, kind: Hashable) -> None:
        """Let no value belong to a kind, nor to those it is made of."""
        base = without_values(kind)
        for one in list(self._reads):
            if without_values(one) == base:
                del self._reads[one], self._values[one]


def has_values(kind: Hashable) -> bool:
    """Return whether values of its batch belong to a kind."""
    return isinstance(kind, _Valued)


def without_values(kind: Hashable) -> Hashable:
    """Return the kind of a call without the values of its batch."""
    *_, base = kind, *_outer(kind)
    return base


def _outer(kind: Hashable) -> Iterator[Hashable]:
    """Return the kinds that a kind with values is made of, the outermost last."""
    while isinstance(kind, _Valued):
        kind = kind.kind
        yield kind


def _filled(value: Any, leaves: Sequence[torch.Tensor], known: dict[int, Any]) -> Any:
    """Return a value with tensors in the place of origins."""
    if isinstance(value, _Leaf | _Made):
        return value.tensor(leaves, known)
    if isinstance(value, dict):
        return {name: _filled(part, leaves, known) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_filled(part, leaves, known) for part in value)
    return value


def _plain(found: Any) -> Hashable:
    """Return a value that is equal to others of the same bits."""
    if isinstance(found, torch.Tensor):
        return found.dtype, repr(found.tolist())
    return type(found), repr(found)


def _has_memory(tensor: torch.Tensor) -> bool:
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return is_plain and has_address(tensor) and not tensor._is_zerotensor()


def _storage_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _place_of(tensor: torch.Tensor) -> _Place:
    return tensor.dtype, int(tensor.storage_offset()), tuple(tensor.size()), tuple(tensor.stride())
