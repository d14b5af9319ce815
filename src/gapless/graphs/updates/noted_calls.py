"""Note the operations that some code calls, and show that other code calls the very same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class NotedCalls(TorchDispatchMode):
    """Notes the operations of the body that are work of the device, or write to a tensor.

    Args:
        is_on_host: says whether a tensor is not on the device.
    """

    def __init__(self, is_on_host: Callable[[torch.Tensor], bool]) -> None:
        super().__init__()
        self._is_on_host = is_on_host
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and note it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if _is_noted(func, (args, kwargs), self._is_on_host):
            self._calls.append((func, args, kwargs, out))
        return out

    def are_those_of(self, work: Callable[[], object]) -> bool:
        """Return whether a function calls the same operations, with the same arguments, in this order.

        None of them runs: each is given what the noted one has returned. Tensors are the same if they
        are one object, or two numbers on the host that are equal.
        """
        again = _CallsAgain(self._calls, self._is_on_host)
        try:
            with again:
                work()
        except _OtherCallError:
            return False
        return not again.left


class _OtherCallError(Exception):
    """An operation is another one than was noted."""


class _CallsAgain(TorchDispatchMode):
    def __init__(
        self, calls: list[tuple[Any, Any, Any, Any]], is_on_host: Callable[[torch.Tensor], bool]
    ) -> None:
        super().__init__()
        self.left = list(reversed(calls))
        self._is_on_host = is_on_host

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what the next of the noted calls has returned, if this is the same."""
        kwargs = kwargs or {}
        if not _is_noted(func, (args, kwargs), self._is_on_host):
            return func(*args, **kwargs)
        if not self.left:
            raise _OtherCallError
        known, *arguments, out = self.left.pop()
        if known is not func or not self._are_equal(arguments, [args, kwargs]):
            raise _OtherCallError
        return out

    def _are_equal(self, one: Any, other: Any) -> bool:
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            return one is other or self._are_equal_numbers(one, other)
        if isinstance(one, list | tuple) and isinstance(other, list | tuple):
            return len(one) == len(other) and all(map(self._are_equal, one, other))
        if isinstance(one, dict) and isinstance(other, dict):
            return one.keys() == other.keys() and all(
                self._are_equal(one[name], other[name]) for name in one
            )
        # Of floats the text tells all bits.
        return type(one) is type(other) and repr(one) == repr(other)

    def _are_equal_numbers(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        if any(part.dim() or not self._is_on_host(part) for part in (one, other)):
            return False
        return one.dtype is other.dtype and repr(one.item()) == repr(other.item())


def _is_noted(func: Any, arguments: Any, is_on_host: Callable[[torch.Tensor], bool]) -> bool:
    # What only reads on the host may be read in another way.
    return func._schema.is_mutable or not all(map(is_on_host, tensors_in(arguments)))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among the arguments of an operation."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
