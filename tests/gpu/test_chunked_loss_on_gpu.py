"""The loss in chunks, in 16 bits on a GPU, against that of all logits in float32."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from gapless.nmt.model import loss as losses


pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("compiled", [False, True], ids=["as written", "compiled"])
def test_gradients_are_added_up_in_float32(compiled, monkeypatch):
    """Seven chunks, the last one shorter and padding in it; the error is that of products in 16 bits."""
    for name in ("_CHUNK_ELEMENTS", "_CHUNK_ELEMENTS_COMPILED"):
        monkeypatch.setattr(losses, name, 48 * 1_000)
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 1_000, bias=False, device="cuda")
    hidden = torch.randn(300, 64, device="cuda", requires_grad=True)
    targets = torch.randint(0, 1_000, (300,), device="cuda")
    targets[290:] = losses.PAD
    criterion = losses.LabelSmoothing(0.1, compiled=compiled)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = criterion.of_hidden(hidden, layer, targets)
    gradients = torch.autograd.grad(found, (hidden, layer.weight))
    rounded = [
        value.detach().bfloat16().float().requires_grad_() for value in (hidden, layer.weight)
    ]
    expected = criterion(F.linear(*rounded), targets)

    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)
    for one, other in zip(gradients, torch.autograd.grad(expected, rounded), strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
