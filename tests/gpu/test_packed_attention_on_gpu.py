"""Attention within packed rows, by Triton's kernels and by the plain way."""

from __future__ import annotations

import pytest
import torch

from gapless.nmt.model.attention import (
    Attention,
    Dense,
    Packed,
    PackedRows,
    _attend_packed,
    _attend_padded,
    _is_for_kernel,
)


pytestmark = [
    pytest.mark.gpu,
    # The first work of the thread of backward passes is a matrix product here.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]

# Of the largest number of a tensor.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}

# Blocks have 16 to 64 tokens: rows of several blocks, of one token, at their edges, and empty ones.
QUERIES = [1, 200, 64, 65, 3, 0, 127, 128, 1, 1, 1, 31, 0]
KEYS = [5, 9, 64, 1, 200, 0, 70, 3, 128, 1, 2, 65, 0]


def rows_of(lengths):
    starts = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    return PackedRows.of(starts, num_tokens=sum(lengths), longest=200)


def pattern_of(kind):
    queries = rows_of(QUERIES)
    keys = rows_of(KEYS) if kind == "to source" else queries
    return Packed(queries, keys, is_causal=kind == "causal")


def parts_of(pattern, *, dtype, width=64):
    """Return queries, keys beside values, and a gradient of the output."""
    torch.manual_seed(0)
    num_queries, num_keys = (len(side.of_token) for side in (pattern.queries, pattern.keys))
    sizes = [(num_queries, 4, width), (num_keys, 2, 4, width), (num_queries, 4, width)]
    queries, keys_values, grad = (
        torch.randn(size, device="cuda", dtype=dtype, requires_grad=True) for size in sizes
    )
    return queries, keys_values, grad.detach()


def both_passes(attend, parts, pattern):
    """Return the output and the gradients of queries, keys and values."""
    *heads, grad = parts
    out = attend(*heads, pattern, 0.0)
    of_queries, of_keys_values = torch.autograd.grad(out, heads, grad)
    return out, of_queries, *of_keys_values.unbind(1)


kinds = pytest.mark.parametrize("kind", ["whole", "causal", "to source"])


@kinds
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_the_kernels_agree_with_padded_rows_in_float64(dtype, kind, width):
    """Output and three gradients, for rows of 0 to 200 tokens."""
    pattern = pattern_of(kind)
    parts = parts_of(pattern, dtype=dtype, width=width)
    in_float64 = [part.detach().double().requires_grad_() for part in parts]
    assert _is_for_kernel(parts[0], 0.0)

    found = both_passes(_attend_packed, parts, pattern)
    expected = both_passes(_attend_padded, in_float64, pattern)

    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        error = (one.double() - other).abs().max() / other.abs().max()
        assert float(error.detach()) < TOLERANCE[dtype]


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_equal_calls_give_equal_bits(dtype, kind):
    """Eager, again, and in a replayed graph: no number depends on which program comes first."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        pattern = pattern_of(kind)
        parts = parts_of(pattern, dtype=dtype)
        first, again = (both_passes(_attend_packed, parts, pattern) for _ in range(2))
        with torch.cuda.graph(graph, stream=stream):
            captured = both_passes(_attend_packed, parts, pattern)
        graph.replay()
    torch.cuda.synchronize()

    for one, other, replayed in zip(first, again, captured, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, replayed)


# Torch's compiler looks at whatever may warn; as errors those stop it.
@pytest.mark.filterwarnings("ignore")
@kinds
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_compiled_layer_attends_as_an_eager_one(kind, precision):
    """Under autocast and without, and in inference mode."""
    torch.manual_seed(0)
    pattern = pattern_of(kind)
    attention = Attention(128, heads=2).to("cuda")
    x, memory = (
        torch.randn(len(side.of_token), 128, device="cuda", requires_grad=True)
        for side in (pattern.queries, pattern.keys)
    )
    compiled = torch.compile(attention, fullgraph=True)

    def run(layer):
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            out = layer(x, memory, pattern)
            with torch.inference_mode():
                without_gradients = layer(x, memory, pattern)
        return (
            out,
            without_gradients,
            *torch.autograd.grad(out.float().square().sum(), [x, memory]),
        )

    tolerance = {"fp32": 1e-4, "bf16": 3e-2}[precision]
    for found, expected in zip(run(compiled), run(attention), strict=True):
        error = (found - expected).abs().max() / expected.abs().max()
        assert float(error.detach()) < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("layout", ["packed", "padded", "masked"])
def test_dropout_drops_the_same_weights_in_both_passes(dtype, is_causal, layout):
    """The output is linear in the values, so that its gradient gives the output back."""
    torch.manual_seed(0)
    attention = Attention(64, heads=4, dropout=0.3).to("cuda", dtype)
    for part in (attention.key_value, attention.out):
        torch.nn.init.zeros_(part.bias)
    if layout == "packed":
        rows = rows_of([1, 30, 64, 65, 100, 30])
        pattern = Packed(rows, rows, is_causal=is_causal)
        x = torch.randn(290, 64, device="cuda", dtype=dtype)
    else:
        mask = torch.ones(70, 70, dtype=torch.bool, device="cuda")
        mask = mask.tril() if is_causal else mask
        pattern = Dense(mask) if layout == "masked" else Dense(is_causal=is_causal)
        x = torch.randn(8, 70, 64, device="cuda", dtype=dtype)
    weight = attention.key_value.weight

    out = attention(x, x, pattern)
    upstream = torch.randn_like(out)
    (gradient,) = torch.autograd.grad(out, weight, upstream)

    # Only the second half of these weights makes values.
    by_weights = (weight.double() * gradient.double())[64:].sum()
    by_output = (out.double() * upstream.double()).sum()
    size = (out.double() * upstream.double()).square().sum().sqrt()
    assert abs(float((by_output - by_weights).detach() / size.detach())) < 0.05
