"""Move a batch as a loop written by hand does, and list its tensors.

On purpose this shares nothing with `gapless.pipeline`, whose way of moving batches is what a plain
loop is compared with.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def move(batch: Any, device: torch.device) -> Any:
    """Return a batch with every tensor, and every object that has a `to`, moved by its own `to`.

    Containers are made anew, a read-only mapping as a dictionary; whatever else is in them stays as
    it is.

    Sync: May block the host, as `to` does for memory that is not page-locked.
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, type):
        return batch
    if callable(getattr(batch, "to", None)):
        moved = batch.to(device)
        # One that moves its own attributes may return nothing.
        return batch if moved is None else moved
    if isinstance(batch, tuple | list):
        make = getattr(type(batch), "_make", type(batch))
        return make([move(part, device) for part in batch])
    if isinstance(batch, Mapping):
        parts = {key: move(part, device) for key, part in batch.items()}
        if not isinstance(batch, MutableMapping):
            return parts
        mapping = copy.copy(batch)
        mapping.update(parts)
        return mapping
    if dataclasses.is_dataclass(batch):
        moved = copy.copy(batch)
        for field in dataclasses.fields(batch):
            # A frozen dataclass lets nobody else set its fields.
            object.__setattr__(moved, field.name, move(getattr(batch, field.name), device))
        return moved
    return batch


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch, those of objects that have a `to` among them.

    Sync: Does not block the host.
    """
    return list(_walk(batch, holders=()))


def _walk(value: Any, *, holders: tuple[int, ...]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    # An object may hold itself.
    elif id(value) not in holders:
        for part in _parts(value):
            yield from _walk(part, holders=(*holders, id(value)))


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, tuple | list):
        return value
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, type):
        return ()
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if callable(getattr(value, "to", None)):
        return getattr(value, "__dict__", {}).values()
    return ()
