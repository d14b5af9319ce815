"""Operators that take some of their arguments on the host, as a GPU's do: packed sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import pack_padded_sequence, pack_padded_sequence_backward
from gapless.testing.simulated.places import HOST


if TYPE_CHECKING:
    from collections.abc import Callable


def _pack(
    padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Join the sequences step by step; the sizes of the steps stay on the host."""
    on_host = torch.zeros(padded.shape, device=HOST)
    sizes = pack_padded_sequence(on_host, lengths, batch_first)[1]
    steps = padded.transpose(0, 1) if batch_first else padded
    parts = [steps[number, :size] for number, size in enumerate(sizes.tolist())]
    return torch.cat(parts), sizes


def _pack_backward(
    grad: torch.Tensor, shape: list[int], sizes: torch.Tensor, batch_first: bool
) -> torch.Tensor:
    first, second, *rest = shape
    padded = grad.new_zeros([second, first, *rest] if batch_first else shape)
    start = 0
    for number, size in enumerate(sizes.tolist()):
        padded[number, :size].copy_(grad[start : start + size])
        start += size
    return padded.transpose(0, 1) if batch_first else padded


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    pack_padded_sequence: _pack,
    pack_padded_sequence_backward: _pack_backward,
}
