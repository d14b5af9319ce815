"""Whether positions are those of several sequences in a row, which models of transformers read.

Without a mask they look at the positions on the host in each call. A model that is given none makes
them from the shape of its input, and expands them over its rows: then the answer is the same for
all inputs of a shape, and one look is enough.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


# What positions of a shape are, where a model has made them of it: whether they are packed.
_are_packed: dict[tuple[type, tuple[int, ...]], bool] = {}

# The class of the model of the call of now, if the call gives it no positions.
_makes_positions: type | None = None


def note_positions(model: type | None) -> None:
    """Say which model makes positions of its own in the call of now; None: no model does.

    Sync: Does not block the host.
    """
    global _makes_positions
    _makes_positions = model


def looking_once(find: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """Return `find_packed_sequence_indices` of transformers, with one look for each shape."""

    @wraps(find)
    def find_packed_sequence_indices(position_ids: torch.Tensor) -> Any:
        model = _makes_positions
        is_of_the_shape = position_ids.shape[0] > 1 and position_ids.stride(0) == 0
        if model is None or not is_of_the_shape:
            return find(position_ids)
        key = (model, tuple(position_ids.shape))
        if not _are_packed.get(key, True):
            return None
        found = find(position_ids)
        _are_packed[key] = found is not None
        return found

    return find_packed_sequence_indices
