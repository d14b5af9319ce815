"""Walk a batch and move what is in it, by the type of each part."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gapless.errors import BatchError
from gapless.pipeline.tree.containers import (
    PLAIN,
    OddContainerError,
    cannot_rebuild,
    container_of_type,
    taken_apart,
    tensors_inside,
)


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.pipeline.tree.containers import Container


class BatchWalk:
    """Rebuild batches around tensors and objects that a function has moved.

    How a type is handled is found out once; a batch then costs one look into a table for each of
    its parts. A list or tuple of plain values alone, such as strings, is handed through.

    Args:
        move_tensor: called with each tensor; returns what takes its place.
        move_object: called with each value that has a `to` of its own; likewise.
        leave: called with each value that nobody can take apart, and that stays as it is.
    """

    def __init__(
        self,
        move_tensor: Callable[[torch.Tensor], Any],
        move_object: Callable[[Any], Any],
        leave: Callable[[Any], None] = lambda value: None,
    ) -> None:
        self._move_tensor = move_tensor
        self._move_object = move_object
        self._leave = leave
        self._handlers: dict[type, Callable[[Any], Any]] = {torch.Tensor: move_tensor}

    def move(self, value: Any) -> Any:
        """Return the batch with everything in it moved.

        Raises:
            BatchError: a container in it cannot be rebuilt.

        Sync: As the functions that it was made with.
        """
        handler = self._handlers.get(type(value)) or self._handler(type(value))
        return handler(value)

    def _handler(self, kind: type) -> Callable[[Any], Any]:
        handler = self._handlers[kind] = self._new_handler(kind)
        return handler

    def _new_handler(self, kind: type) -> Callable[[Any], Any]:
        if issubclass(kind, torch.Tensor):
            return self._move_tensor
        if issubclass(kind, PLAIN):
            return _itself
        if _has_own_to(kind):
            return self._move_object
        if kind is tuple:
            return self._move_tuple
        if kind is list:
            return self._move_list
        if kind is dict:
            return self._move_dict
        container = container_of_type(kind)
        if container is None:
            return self._left
        return partial(
            self._move_parts if container.is_object else self._move_container, container
        )

    def _left(self, value: Any) -> Any:
        self._leave(value)
        return value

    def _move_parts(self, container: Container, value: Any) -> Any:
        # An object without tensors stays the very same.
        return self._move_container(container, value) if tensors_inside(value) else value

    def _move_container(self, container: Container, value: Any) -> Any:
        try:
            _, parts = taken_apart(container, value)
        except OddContainerError:
            raise BatchError(cannot_rebuild(value, "a dict")) from None
        return container.with_parts(value, [self.move(part) for part in parts])

    def _move_tuple(self, value: tuple[Any, ...]) -> Any:
        return value if self._is_plain(value) else tuple([self.move(part) for part in value])

    def _move_list(self, value: list[Any]) -> Any:
        return value if self._is_plain(value) else [self.move(part) for part in value]

    def _move_dict(self, value: dict[Any, Any]) -> Any:
        handlers, find = self._handlers.get, self._handler
        return {
            name: (handlers(type(part)) or find(type(part)))(part) for name, part in value.items()
        }

    def _is_plain(self, values: Any) -> bool:
        return all(
            (self._handlers.get(kind) or self._handler(kind)) is _itself
            for kind in set(map(type, values))
        )


def _itself(value: Any) -> Any:
    return value


def _has_own_to(kind: type) -> bool:
    """Return whether values of this type move themselves, as `value.to(device)`.

    A tensor does as well, but is not meant here.
    """
    return callable(getattr(kind, "to", None)) and not issubclass(kind, torch.Tensor)


def takes_non_blocking(kind: type) -> bool:
    """Return whether `to` of this type takes the argument `non_blocking`."""
    try:
        parameters = inspect.signature(kind.to).parameters.values()  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return False
    return any(one.name == "non_blocking" or one.kind is one.VAR_KEYWORD for one in parameters)
