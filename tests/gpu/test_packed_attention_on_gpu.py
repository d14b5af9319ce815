"""Attention within packed sentences, by the GPU's kernel and by the plain way."""

from __future__ import annotations

import pytest
import torch

from gapless.nmt.model.attention import Packed, _attend_packed, _attend_padded


pytestmark = pytest.mark.gpu

TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 3e-2, torch.float16: 3e-3}


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("width", [8, 32, 64])
def test_the_kernel_agrees_with_padded_rows(dtype, is_causal, width):
    """Output and gradients, for rows of 1 to 200 tokens, empty ones among them."""
    torch.manual_seed(0)
    lengths = [1, 200, 64, 65, 3, 0, 127, 128, 0]
    queries = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    sources = torch.tensor([0, 5, 9, 64, 1, 200, 0, 70, 3, 0], device="cuda").cumsum(0).int()
    keys = queries if is_causal else sources
    pattern = Packed(queries, keys, 200, is_causal=is_causal)
    sizes = [(int(starts[-1]), 4, width) for starts in (queries, keys, keys)]
    heads = [torch.randn(size, device="cuda", dtype=dtype, requires_grad=True) for size in sizes]
    upstream = torch.randn(sizes[0], device="cuda", dtype=dtype)

    def run(attend):
        out = attend(*heads, pattern, 0.0)
        return out, *torch.autograd.grad(out, heads, upstream)

    for found, expected in zip(run(_attend_packed), run(_attend_padded), strict=True):
        torch.testing.assert_close(
            found.float(), expected.float(), rtol=TOLERANCE[dtype], atol=10 * TOLERANCE[dtype]
        )
