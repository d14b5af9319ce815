"""What makes two batches alike for a captured step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch


if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator


_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def shape_of(batch: Any) -> Hashable:
    """Return what two batches share that the same graph can take.

    Containers are gone through and not asked for their text, which may leave out what a step
    decides by.
    """
    if isinstance(batch, torch.Tensor):
        return (batch.shape, batch.dtype, batch.device)
    parts = _parts(batch, "")
    if parts is None:
        return (type(batch), repr(batch))
    return (type(batch), *((name, shape_of(part)) for name, part in parts.items()))


def difference(first: Any, second: Any) -> str:
    """Return what makes two batches of other shapes different, in a few words."""
    return next(_plain_differences(first, second, "batch"), "the shape of its tensors")


def _plain_differences(first: Any, second: Any, where: str) -> Iterator[str]:
    parts, others = _parts(first, where), _parts(second, where)
    if parts is None or others is None:
        if not hasattr(first, "data_ptr") and repr(first) != repr(second):
            yield f"{where} ({type(second).__name__})"
    elif parts.keys() != others.keys():
        yield f"what is in {where}"
    else:
        for name, part in parts.items():
            yield from _plain_differences(part, others[name], name)


def _parts(value: Any, where: str) -> dict[str, Any] | None:
    """Return the parts of a container by their name, None for anything else."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        return {f"{where}.{name}": part for name, part in (_extra(value) | fields).items()}
    if isinstance(value, Mapping):
        extra = {f"{where}.{name}": part for name, part in _extra(value).items()}
        return extra | {f"{where}[{key!r}]": part for key, part in value.items()}
    if isinstance(value, tuple | list):
        return {f"{where}[{number}]": part for number, part in enumerate(value)}
    return None


def _extra(value: Any) -> dict[str, Any]:
    """Return plain attributes beside a container's parts, by which a step may decide as well."""
    attributes = getattr(value, "__dict__", {})
    return {name: part for name, part in attributes.items() if isinstance(part, _PLAIN)}
