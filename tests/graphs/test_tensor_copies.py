"""Copies of tensors have all bits of the originals, and memory of their own."""

from __future__ import annotations

import pytest
import torch

from gapless.graphs.replay.alignment import aligned_as
from gapless.graphs.replay.tensor_copies import TensorCopies
from gapless.pipeline.tree.tensor_layout import misalignment


# NaN with payloads, quiet and signalling, both zeros, infinities, the smallest and a plain number.
_BITS = {
    torch.float32: [0x7FC00000, 0x7F800001, -1, 1, 0, -0x80000000, 0x7F800000, -0x800000],
    torch.float64: [0x7FF8 << 48, (0x7FF0 << 48) + 1, -1, 1, 0, -(1 << 63), 0x7FF0 << 48],
    torch.bfloat16: [0x7FC0, 0x7F81, -1, 1, 0, -0x8000, 0x7F80],
    torch.float16: [0x7E00, 0x7C01, -1, 1, 0, -0x8000, 0x7C00],
}
_INTEGERS = {4: torch.int32, 8: torch.int64, 2: torch.int16}


def bits_of(tensor):
    return tensor.view(_INTEGERS[tensor.element_size()]).tolist()


@pytest.mark.parametrize("dtype", _BITS)
def test_copies_have_all_bits(dtype):
    """A NaN keeps its payload, and a zero its sign."""
    given = torch.tensor(_BITS[dtype], dtype=_INTEGERS[dtype.itemsize]).view(dtype)
    tensors = [given.clone(), given.flip(0), given[:3].clone()]

    copies = TensorCopies(tensors).make()

    assert list(map(bits_of, copies)) == list(map(bits_of, tensors))


def test_copies_have_memory_and_strides_of_their_own():
    """What is written to the originals does not reach a copy, which lies as the original does."""
    tensors = [torch.arange(6.0).reshape(2, 3).t(), torch.ones(4), torch.zeros(())]

    copies = TensorCopies(tensors, apart=True).make()
    for tensor in tensors:
        tensor.fill_(-1)

    assert [copy.stride() for copy in copies] == [(1, 3), (1,), ()]
    assert [copy.flatten().tolist() for copy in copies] == [
        [0.0, 3.0, 1.0, 4.0, 2.0, 5.0],
        [1.0] * 4,
        [0.0],
    ]


@pytest.mark.parametrize("dtype", [*_BITS, torch.complex64])
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("start", range(9))
def test_copies_begin_as_far_from_a_multiple_of_16_bytes(dtype, apart, start):
    """Kernels add up in another order where a tensor begins elsewhere."""
    base = torch.arange(400).to(dtype)
    layouts = [((6, 5), (5, 1)), ((5, 6), (1, 5)), ((4, 3), (7, 2)), ((3, 4), (0, 1)), ((), ())]
    for size, stride in layouts:
        one = base.as_strided(size, stride, start)
        tensors = [one, one[1:] if one.dim() else base[90:97]]
        copies = TensorCopies(tensors, apart=apart).make()
        copies.append(aligned_as(one.clone(), misalignment(one)))

        for tensor, copy in zip([*tensors, one], copies, strict=True):
            assert torch.equal(copy, tensor)
            assert misalignment(copy) == misalignment(tensor)
