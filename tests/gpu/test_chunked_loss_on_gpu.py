"""The loss in chunks, in 16 bits on a GPU, against that of all logits in float32; its kernel against the plain function."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import gapless
from gapless.nmt.model import loss as losses


# Of a gradient of the logits, which is rounded to their type.
ROUNDING = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}

# Two whole blocks of the kernel, and a part of one that is no multiple of anything.
NUM_WORDS = 20_001


@pytest.mark.gpu
@pytest.mark.parametrize("has_triton", [False, True], ids=["plain", "in place"])
def test_gradients_are_added_up_in_float32(has_triton, monkeypatch):
    """Seven chunks, the last one shorter and padding in it; the error is that of products in 16 bits."""
    for name in ("_CHUNK_ELEMENTS", "_CHUNK_ELEMENTS_IN_PLACE"):
        monkeypatch.setattr(losses, name, 48 * 1_000)
    monkeypatch.setattr(losses, "HAS_TRITON", has_triton)
    # What is not written stays NaN.
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: torch.full_like(*a, torch.nan, **k))
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 1_000, bias=False, device="cuda")
    hidden = torch.randn(300, 64, device="cuda", requires_grad=True)
    targets = torch.randint(0, 1_000, (300,), device="cuda")
    targets[290:] = losses.PAD
    criterion = losses.LabelSmoothing(0.1)
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


@pytest.mark.gpu
def test_no_tokens_have_no_gradient():
    """No chunk is there to write that of the weight."""
    layer = torch.nn.Linear(64, 1_000, bias=False, device="cuda")
    hidden = torch.empty(0, 64, device="cuda")
    targets = torch.empty(0, dtype=torch.int64, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = losses.LabelSmoothing(0.1).of_hidden(hidden, layer, targets)
    loss.backward()

    assert not loss
    assert not layer.weight.grad.any()


def compare(logits, targets, smoothing):
    """Compare the kernel's loss and gradient with those of the plain function."""
    expected, expected_gradient = losses._chunk_loss_and_gradient(logits, targets, smoothing)
    found, gradient = losses._chunk_loss_and_gradient_in_place(logits.clone(), targets, smoothing)

    rtol = ROUNDING[logits.dtype]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0, equal_nan=True)
    torch.testing.assert_close(gradient, expected_gradient, rtol=rtol, atol=5e-7, equal_nan=True)
    return gradient


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("num_words", [5, NUM_WORDS])
def test_the_kernel_agrees_with_the_plain_function(dtype, smoothing, num_words):
    """Loss and gradient, the last word and padding among the targets."""
    torch.manual_seed(0)
    logits = (4 * torch.randn(33, num_words, device="cuda")).to(dtype)
    targets = torch.randint(1, num_words, (33,), device="cuda")
    targets[:2], targets[2:9] = num_words - 1, losses.PAD

    gradient = compare(logits, targets, smoothing)

    assert not gradient[2:9].any()


@pytest.mark.gpu
@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    "where",
    [[7], [10_000], [20_000], slice(0, 8_192), slice(8_192, None), slice(None)],
    ids=["first block", "target", "last word", "whole block", "all but a block", "all"],
)
def test_odd_logits_give_what_the_plain_function_gives(value, smoothing, where):
    """NaN stays NaN, and a block of -inf alone does not become NaN."""
    torch.manual_seed(0)
    logits = torch.randn(1, NUM_WORDS, device="cuda")
    logits[0, where] = float(value)

    compare(logits, torch.tensor([10_000], device="cuda"), smoothing)
    compare(logits, torch.tensor([losses.PAD], device="cuda"), smoothing)


@pytest.mark.gpu
def test_a_row_may_begin_past_two_to_the_31():
    """4.3 GB of logits: the first row and the last have the gradients that they have alone."""
    torch.manual_seed(0)
    logits = torch.zeros(65_540, 2**15, dtype=torch.bfloat16, device="cuda")
    logits[[0, -1]] = torch.randn(2, 2**15, device="cuda").bfloat16()
    targets = torch.full((len(logits),), 9, device="cuda")
    _, expected = losses._chunk_loss_and_gradient_in_place(logits[[0, -1]], targets[:2], 0.1)

    _, found = losses._chunk_loss_and_gradient_in_place(logits, targets, 0.1)

    assert torch.equal(expected, found[[0, -1]])


@pytest.mark.gpu
def test_a_graph_gives_the_bits_of_the_eager_step(monkeypatch):
    """The loss and its gradients in a captured step, in two chunks of different sizes."""
    monkeypatch.setattr(losses, "_CHUNK_ELEMENTS_IN_PLACE", 200 * 1_000)
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 1_000, bias=False, device="cuda")
    criterion = losses.LabelSmoothing(0.1)

    def step(hidden, targets):
        hidden = hidden.detach().requires_grad_()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion.of_hidden(hidden, layer, targets)
        return loss.detach(), *torch.autograd.grad(loss, [hidden, layer.weight])

    captured = gapless.capture(step)
    for _ in range(24):
        hidden = torch.randn(300, 64, device="cuda")
        targets = torch.randint(0, 1_000, (300,), device="cuda")
        found = [value.clone() for value in captured(hidden, targets)]

        for one, other in zip(step(hidden, targets), found, strict=True):
            assert torch.equal(one, other)
    assert captured.report.num_replays
    assert not captured.report.refusals


# Torch's compiler looks at whatever may warn; as errors those stop it.
@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_a_script_may_compile_the_loss():
    """As one does that compiles its model and the loss together: loss and gradients stay the same."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 1_000, bias=False, device="cuda")
    hidden = torch.randn(300, 64, device="cuda", requires_grad=True)
    targets = torch.randint(0, 1_000, (300,), device="cuda")
    criterion = losses.LabelSmoothing(0.1)
    results = []
    for of_hidden in (criterion.of_hidden, torch.compile(criterion.of_hidden)):
        loss = of_hidden(hidden, layer, targets)
        results.append([loss, *torch.autograd.grad(loss, [hidden, layer.weight])])

    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.multi_gpu
def test_the_kernel_runs_where_the_logits_are():
    """On the second GPU, while the first one is the current one."""
    torch.manual_seed(0)

    compare(torch.randn(9, 50, device="cuda:1"), torch.arange(9, device="cuda:1"), 0.1)
