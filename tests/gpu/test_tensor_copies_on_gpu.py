"""Copies of tensors on a GPU have all bits of the originals."""

from __future__ import annotations

import pytest
import torch

from gapless.graphs.replay.tensor_copies import TensorCopies


pytestmark = pytest.mark.gpu

# NaN with payloads, quiet and signalling, both zeros, infinities, the smallest and a plain number.
_BITS = {
    torch.float32: [0x7FC00000, 0x7F800001, -1, 1, 0, -0x80000000, 0x7F800000, -0x800000],
    torch.float64: [0x7FF8 << 48, (0x7FF0 << 48) + 1, -1, 1, 0, -(1 << 63), 0x7FF0 << 48],
    torch.bfloat16: [0x7FC0, 0x7F81, -1, 1, 0, -0x8000, 0x7F80],
    torch.float16: [0x7E00, 0x7C01, -1, 1, 0, -0x8000, 0x7C00],
}
_INTEGERS = {4: torch.int32, 8: torch.int64, 2: torch.int16}


@pytest.mark.parametrize("dtype", _BITS)
def test_copies_have_all_bits_on_a_gpu(dtype):
    """A NaN keeps its payload, and a zero its sign."""
    whole = _INTEGERS[dtype.itemsize]
    given = torch.tensor(_BITS[dtype], dtype=whole).view(dtype).to("cuda")
    tensors = [given.clone(), given[:3].clone()]

    copies = TensorCopies(tensors).make()

    assert [copy.view(whole).tolist() for copy in copies] == [
        tensor.view(whole).tolist() for tensor in tensors
    ]
