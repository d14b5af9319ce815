"""Attention within packed sentences, by the GPU's kernel and by the plain way."""

from __future__ import annotations

import pytest
import torch

from gapless.nmt.model.attention import Attention, Dense, Packed, _attend_packed, _attend_padded


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


# The first work of the thread of backward passes is a matrix product here.
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("layout", ["packed", "padded", "masked"])
def test_dropout_drops_the_same_weights_in_both_passes(dtype, is_causal, layout):
    """The output is linear in the values, so that its gradient gives the output back."""
    torch.manual_seed(0)
    attention = Attention(64, heads=4, dropout=0.3).to("cuda", dtype)
    torch.nn.init.zeros_(attention.out.bias)
    if layout == "packed":
        starts = torch.tensor([0, 1, 31, 95, 160, 260, 290], device="cuda", dtype=torch.int32)
        pattern = Packed(starts, starts, 128, is_causal=is_causal)
        x = torch.randn(290, 64, device="cuda", dtype=dtype)
    else:
        mask = torch.ones(70, 70, dtype=torch.bool, device="cuda")
        mask = mask.tril() if is_causal else mask
        pattern = Dense(mask) if layout == "masked" else Dense(is_causal=is_causal)
        x = torch.randn(8, 70, 64, device="cuda", dtype=dtype)
    keys, values = (part.detach() for part in attention.project(x))
    values.requires_grad_()

    out = attention.attend(x, keys, values, pattern)
    upstream = torch.randn_like(out)
    (gradient,) = torch.autograd.grad(out, values, upstream)

    by_output = (out.double() * upstream.double()).sum()
    by_values = (values.double() * gradient.double()).sum()
    size = (out.double() * upstream.double()).square().sum().sqrt()
    assert abs(float((by_output - by_values).detach() / size.detach())) < 0.05
