"""What is left of a state of the device when the next one has taken its place.

A fingerprint has one row for each piece of memory (see `gapless.graphs.proof.packing`), of two parts:

* A checksum. The bits, read as 32-bit words, are multiplied by a weight of the word's position and
  summed modulo 2**64 (`gapless.device.bits` says what it detects). Equal bits always give
  equal checksums; a change of any one bit, and any two words that change places, always show.
* Projections. The numbers, in float64, are multiplied by `NUM_PROJECTIONS` fixed sequences of +1
  and -1, and summed. The mean square of the differences of two fingerprints' projections estimates
  the sum of squares of the differences of all their numbers, without either state at hand.

Source: the projections are those of Alon, Matias and Szegedy, "The space complexity of
approximating the frequency moments", STOC 1996, section 2.2. A sign is the product of one for the
column and one for the row of a buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gapless.device.bits import odd_weights
from gapless.device.numerics import any_algorithm
from gapless.graphs.proof.packing import ROW_BYTES


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.device.base import Device
    from gapless.graphs.proof.packing import Chunk


NUM_PROJECTIONS = 16

# Of these torch makes float64 numbers on every device.
_NAMES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint8 bool"
)
_NUMBERS = frozenset(getattr(torch, name) for name in _NAMES.split())
_PARTS = {torch.complex128: torch.float64, torch.complex64: torch.float32}


class Fingerprints:
    """Take fingerprints of memory on one device, in few launches.

    A chunk takes about ten launches. The extra memory is about ten times the largest chunk.

    Args:
        num_rows: of the largest chunk of which fingerprints will be taken.
    """

    def __init__(self, device: Device, *, num_rows: int) -> None:
        self.num_rows = num_rows
        self._device = device
        with torch.inference_mode(mode=False), torch.no_grad():
            place = device.torch_device
            self._buffer = device.device_buffer(max(num_rows, 1) * ROW_BYTES)
            self._weights = odd_weights(0, len(self._buffer) // 4, place)
            self._columns = _signs(ROW_BYTES, place)
            self._rows = _signs(max(num_rows, 1), place)

    @torch.no_grad()
    @torch.inference_mode(mode=False)
    def take(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Return the fingerprint of chunks: int64, one row for each piece.

        Its first column are the checksums, the others the bits of the projections.
        """
        with any_algorithm():
            parts = [self._take_one(chunk) for chunk in chunks]
        if not parts:
            return torch.zeros(
                (0, 1 + NUM_PROJECTIONS), dtype=torch.int64, device=self._device.torch_device
            )
        return torch.cat(parts)

    def _take_one(self, chunk: Chunk) -> torch.Tensor:
        buffer = self._buffer[: chunk.num_bytes]
        buffer.zero_()  # a piece may end inside its last row
        chunk.copy_out(buffer)
        index = chunk.piece_of_row(self._device)
        words = buffer.view(torch.int32)
        sums = (words * self._weights[: len(words)]).view(chunk.num_rows, -1).sum(dim=1)
        parts = [_by_piece(sums.unsqueeze(1), chunk, index)]
        numbers = _numbers(buffer, chunk.dtype)
        if numbers is None:
            parts.append(parts[0].new_zeros((len(chunk.pieces), NUM_PROJECTIONS)))
        else:
            rows = numbers.view(chunk.num_rows, -1)
            signed = (rows @ self._columns[: rows.shape[1]]) * self._rows[: chunk.num_rows]
            parts.append(_by_piece(signed, chunk, index).view(torch.int64))
        return torch.cat(parts, dim=1)


def _by_piece(rows: torch.Tensor, chunk: Chunk, index: torch.Tensor) -> torch.Tensor:
    """Return the sums of the rows of each piece."""
    sums = rows.new_zeros((len(chunk.pieces), rows.shape[1]))
    return sums.index_add_(0, index, rows)


def _numbers(buffer: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    dtype = _PARTS.get(dtype, dtype)
    return buffer.view(dtype).to(torch.float64) if dtype in _NUMBERS else None


def _signs(count: int, place: torch.device) -> torch.Tensor:
    bits = odd_weights(0, count * NUM_PROJECTIONS, place).view(count, NUM_PROJECTIONS) >> 63
    return (2 * bits + 1).to(torch.float64)
