"""Nested state as tensors and JSON, so that no file holds pickled objects."""

from __future__ import annotations

from typing import Any

import torch

from gapless.errors import CheckpointError


# Keys of dictionaries that encode what JSON lacks.
_TENSOR, _TUPLE, _ITEMS = "<tensor>", "<tuple>", "<items>"


def pack(state: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """Divide nested state into tensors by name and plain values that JSON can hold.

    Args:
        state: dictionaries, lists and tuples, to any depth, of tensors, numbers, text, True, False
            and None: what `state_dict` returns of modules, optimizers, schedulers and scalers, and
            `getstate` of Python's random generators. Keys may be text, whole numbers, tuples of
            them, True, False or None.

    Returns:
        The tensors, as they are, by their place in the state; one that occurs twice occurs once.
        And the rest, for `unpack`.

    Raises:
        CheckpointError: the state holds something else; the message names its place.
    """
    packer = _Packer()
    try:
        return packer.tensors, packer.pack(state, "")
    except RecursionError as error:
        raise CheckpointError(
            "the state holds itself, or is nested too deeply for a checkpoint"
        ) from error


def unpack(tensors: dict[str, torch.Tensor], packed: Any) -> Any:
    """Return the state that `pack` divided.

    Raises:
        CheckpointError: a tensor is missing.
    """
    if isinstance(packed, list):
        return [unpack(tensors, item) for item in packed]
    if not isinstance(packed, dict):
        return packed
    if _TENSOR in packed:
        name = packed[_TENSOR]
        if name not in tensors:
            raise CheckpointError(
                f"the checkpoint holds no tensor {name!r}, which its state names"
            )
        return tensors[name]
    if _TUPLE in packed:
        return tuple(unpack(tensors, item) for item in packed[_TUPLE])
    if _ITEMS in packed:
        return {unpack(tensors, key): unpack(tensors, value) for key, value in packed[_ITEMS]}
    return {key: unpack(tensors, value) for key, value in packed.items()}


class _Packer:
    """Collects the tensors of one state."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}

    def pack(self, value: Any, place: str) -> Any:
        if isinstance(value, torch.Tensor):
            return {_TENSOR: self._name(value, place)}
        # Not subclasses: a flag of an enumeration, or a number of numpy, would come back as another.
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, dict):
            return self._pack_dict(value, place)
        if type(value) in (list, tuple):
            items = [self.pack(item, _below(place, number)) for number, item in enumerate(value)]
            return items if type(value) is list else {_TUPLE: items}
        type_ = type(value)
        raise CheckpointError(
            f"{place or 'the state'} is a {type_.__module__}.{type_.__qualname__}, which a checkpoint "
            "cannot hold; turn it into tensors, numbers, text, lists or dictionaries"
        )

    def _pack_dict(self, value: dict[Any, Any], place: str) -> Any:
        if all(type(key) is str for key in value) and not value.keys() & {_TENSOR, _TUPLE, _ITEMS}:
            return {key: self.pack(item, _below(place, key)) for key, item in value.items()}
        return {
            _ITEMS: [
                [self.pack(key, f"a key of {place}"), self.pack(item, _below(place, key))]
                for key, item in value.items()
            ]
        }

    def _name(self, tensor: torch.Tensor, place: str) -> str:
        if id(tensor) not in self._names:
            name = place or "tensor"
            # Two places may have one name: key 1 and key "1", or a key that holds a full stop.
            while name in self.tensors:
                name += "_"
            self.tensors[name] = tensor
            self._names[id(tensor)] = name
        return self._names[id(tensor)]


def _below(place: str, key: object) -> str:
    return f"{place}.{key}" if place else str(key)
