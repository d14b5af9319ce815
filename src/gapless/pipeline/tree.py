"""Find and replace the tensors of a batch, whatever its structure."""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any

import torch

from gapless.errors import BatchError


_PLAIN = (str, bytes, int, float, complex, type(None), enum.Enum, torch.dtype, torch.device)


def map_tensors(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the batch with every tensor replaced by `change(tensor)`.

    Walks tuples, named tuples, lists, mappings and dataclasses to any depth, always in the same
    order; plain values (numbers, strings, None) stay as they are.

    Raises:
        BatchError: the batch holds something else; guessing would leave it on the wrong device.
    """
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, _PLAIN):
        return batch
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _map_dataclass(batch, change)
    if isinstance(batch, tuple | list):
        return _map_sequence(batch, change)
    if isinstance(batch, Mapping):
        return _map_mapping(batch, change)
    raise BatchError(
        f"cannot move a {type(batch).__module__}.{type(batch).__qualname__} to the device; a "
        "batch may hold tensors, numbers, strings, tuples, lists, mappings and dataclasses: "
        "convert it in the loader's collate_fn"
    )


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch in the order of `map_tensors`.

    Raises:
        BatchError: the batch holds something that is neither tensor, container nor plain value.
    """
    found: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(batch, keep)
    return found


def _map_dataclass(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    moved = copy.copy(batch)
    for field in dataclasses.fields(batch):
        # object.__setattr__, because the dataclass may be frozen.
        value = map_tensors(getattr(batch, field.name), change)
        object.__setattr__(moved, field.name, value)
    return moved


def _map_sequence(
    batch: tuple[Any, ...] | list[Any], change: Callable[[torch.Tensor], torch.Tensor]
) -> Any:
    parts = [map_tensors(part, change) for part in batch]
    kind = type(batch)
    if kind in (tuple, list):
        return kind(parts)
    make = getattr(kind, "_make", None)
    if make is None or kind.__module__ == "torch.nn.utils.rnn":
        raise BatchError(
            f"cannot rebuild a {kind.__qualname__} on the device; use a plain tuple or list"
        )
    return make(parts)


def _map_mapping(batch: Mapping[Any, Any], change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    parts = {key: map_tensors(part, change) for key, part in batch.items()}
    if type(batch) is dict:
        return parts
    moved = copy.copy(batch)
    for key, part in parts.items():
        moved[key] = part  # type: ignore[index]  # a read-only mapping fails here, loudly
    return moved
