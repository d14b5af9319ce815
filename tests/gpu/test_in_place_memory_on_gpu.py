"""Memory of one GPU that objects captured in place take, and give back."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from torch import nn

import gapless
from gapless.device.find import find_device
from gapless.device.numerics import set_numerics
from inner_doors import memory_fraction


pytestmark = [
    pytest.mark.gpu,
    # Torch says where a backward pass finds a graph of gradients that another stream has made.
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream"),
]

_WIDTH = 256

# Torch reserves memory in pieces of up to 20 MiB, from which a graph's is taken.
_PIECE = 20 << 20


def make_model():
    set_numerics(find_device("cuda"), "fp32", deterministic=True)
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(_WIDTH, _WIDTH)
    ).cuda()


def train(model, rows, *, num=1):
    for _ in range(num):
        draw = torch.Generator().manual_seed(rows)
        x = torch.randn(rows, _WIDTH, generator=draw).cuda()
        model.zero_grad()
        model(x).square().mean().backward()
        torch.cuda.synchronize()
    return [weight.grad.cpu() for weight in model.parameters()]


def evaluate(model, rows, *, num=1):
    with torch.no_grad():
        for _ in range(num):
            model(torch.ones(rows, _WIDTH, device="cuda"))
            torch.cuda.synchronize()


def in_use():
    """Return the bytes that somebody holds."""
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def reserved():
    """Return the bytes that torch has from the device and cannot give back."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def test_300_shapes_are_right_and_bounded():
    """The first have graphs, the others run as written and take no more memory for good."""
    plain, model = make_model(), gapless.capture(make_model(), device="cuda", max_graphs=5)
    report = gapless.capture_report(model)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for rows in range(1, 8):
            train(model, rows, num=6)
        train(plain, 300)
        train(model, 300)
        before_in_use, before_reserved = in_use(), reserved()
        for rows in range(1, 301):
            torch.manual_seed(rows)
            gradients = train(model, rows)
            torch.manual_seed(rows)
            assert all(map(torch.equal, gradients, train(plain, rows)))

    texts = [str(one.message) for one in told if one.category is gapless.CaptureWarning]
    assert len(texts) == 1
    assert "there are 5 graphs already; pad batches to fewer shapes" in texts[0]
    assert report.num_graphs == 5
    assert in_use() <= before_in_use + (1 << 20)
    assert reserved() <= before_reserved + _PIECE


def test_a_budget_is_respected():
    """Captures end where the process holds as much as it may, but for the last of them."""
    model = make_model()
    train(model, 512)
    limit = reserved() + 3 * _PIECE
    total = torch.cuda.get_device_properties(0).total_memory
    with memory_fraction(limit / total):
        gapless.capture(model, device="cuda")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for rows in range(8, 1024, 8):
            train(model, rows, num=4)

    assert any("which is over its budget" in str(one.message) for one in told)
    assert 0 < gapless.capture_report(model).num_graphs < 127
    assert reserved() <= limit + 2 * _PIECE


def test_what_a_variant_takes_is_in_the_report():
    """A graph holds the gradients of all weights, and what lies between both passes."""
    model = gapless.capture(make_model(), device="cuda")
    gradients = sum(weight.nbytes for weight in model.parameters())
    for rows in (16, 32, 64):
        train(model, rows, num=6)

    report = gapless.capture_report(model)
    assert report.num_graphs == 3
    assert gradients <= report.captured_bytes <= 3 * gradients + 3 * _PIECE


def test_release_gives_memory_back():
    """At once for all that is in use; what is reserved by `torch.cuda.empty_cache`."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, 64, num=2)
    optimizer.step()
    before_in_use, before_reserved = in_use(), reserved()
    gapless.capture(model, device="cuda")
    gapless.capture(optimizer, device="cuda")
    for rows in (16, 64) * 8:
        train(model, rows)
        evaluate(model, rows)
        optimizer.step()
    most = in_use()
    assert gapless.capture_report(model).num_replays > 0

    gapless.release(model)
    gapless.release(optimizer)

    assert most > before_in_use
    assert in_use() <= before_in_use
    assert reserved() <= before_reserved + _PIECE


def test_a_module_that_is_let_go_takes_its_graphs_along():
    """Once Python's garbage collector has come by."""
    train(make_model(), 64)
    before_in_use, before_reserved = in_use(), reserved()
    model = gapless.capture(make_model(), device="cuda")
    optimizer = gapless.capture(torch.optim.SGD(model.parameters(), lr=0.1), device="cuda")
    for rows in (16, 64) * 8:
        train(model, rows)
        evaluate(model, rows)
        optimizer.step()

    del model, optimizer

    assert in_use() <= before_in_use
    assert reserved() <= before_reserved + _PIECE


def test_two_forward_passes_before_a_backward_pass_are_graphs_of_their_own():
    """As a discriminator's that sees real batches and made ones: all bits are as written."""
    results = []
    for is_captured in (False, True):
        model = make_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        if is_captured:
            gapless.capture(model, optimizer, device="cuda")
        draw = torch.Generator().manual_seed(0)
        for _ in range(60):
            first, second = torch.randn(2, 32, _WIDTH, generator=draw).cuda()
            optimizer.zero_grad()
            (model(first).square().mean() + model(second).abs().mean()).backward()
            optimizer.step()
        results.append([weight.detach().cpu() for weight in model.parameters()])

    report = gapless.capture_report(model)
    assert all(map(torch.equal, *results))
    assert (report.num_graphs, report.refusals) == (2, [])
    assert report.num_replays > 60  # some calls are timed as written
