"""Memory of the device that objects captured in place take, and give back."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from torch import nn

import gapless
from gapless.testing import SimulatedDevice
from inner_doors import memory_fraction


# What a graph of the model below takes, at most.
_OF_A_GRAPH = 60_000


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device:
        yield device


def model_on(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device.torch_device)


def train(device, model, rows, *, num=1):
    for _ in range(num):
        draw = torch.Generator().manual_seed(rows)
        x = torch.randn(rows, 8, generator=draw).to(device.torch_device)
        model.zero_grad()
        model(x).square().mean().backward()
    return [weight.grad.tolist() for weight in model.parameters()]


def evaluate(device, model, rows, *, num=1):
    with torch.no_grad():
        for _ in range(num):
            model(torch.ones(rows, 8).to(device.torch_device))


def train_and_evaluate(device, model, *, most_rows):
    """Do so five times for each number of rows; return by how much the memory grew at most."""
    largest = 0
    for rows in range(1, most_rows + 1):
        before = held(device)
        train(device, model, rows, num=5)
        evaluate(device, model, rows, num=5)
        largest = max(largest, held(device) - before)
    return largest


def held(device):
    gc.collect()
    return device.reserved_memory_bytes()


def num_graphs_of(model):
    return sum(
        step.entries.num_graphs for step in vars(model)["_gapless_captor"]._calls._steps.values()
    )


@pytest.mark.slow
def test_300_shapes_are_right_bounded_and_told_of_in_one_line(device):
    """The first have graphs, the others run as written; padding is advised with its gain."""
    plain, model = model_on(device), gapless.capture(model_on(device), device=device, max_graphs=5)
    report = gapless.capture_report(model)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for rows in range(1, 8):
            train(device, model, rows, num=4)
        train(device, model, 300)
        limit = held(device)
        for rows in range(1, 301):
            assert train(device, model, rows) == train(device, plain, rows)
            assert device.reserved_memory_bytes() <= limit + _OF_A_GRAPH

    assert [str(one.message) for one in told] == [
        "Sequential is not captured: there are 5 graphs already; pad batches to fewer shapes, or "
        "raise max_graphs"
    ]
    assert (report.num_graphs, num_graphs_of(model)) == (5, 5)
    before = report.num_replays
    train(device, model, 3)
    assert report.num_replays == before + 1


@pytest.mark.slow
def test_a_budget_is_respected(device):
    """The last graph may need more than was expected of it, and none comes after it."""
    model = model_on(device)
    train(device, model, 40)
    budget = held(device) + 2 * _OF_A_GRAPH
    with memory_fraction(budget / device.total_memory_bytes()):
        gapless.capture(model, device=device)
    with pytest.warns(gapless.CaptureWarning, match="which is over its budget"):
        largest = train_and_evaluate(device, model, most_rows=40)

    assert held(device) <= budget + largest
    assert 0 < num_graphs_of(model) < 80


def test_the_report_says_what_captures_took(device):
    """In bytes, and in its line where that is a megabyte."""
    model = nn.Linear(600, 600).to(device.torch_device)
    gapless.capture(model, device=device)
    for _ in range(4):
        model(torch.ones(4, 600).to(device.torch_device)).square().mean().backward()

    report = gapless.capture_report(model)
    assert 600 * 601 * 4 <= report.captured_bytes < 2 * 600 * 601 * 4
    assert report.as_dict()["captured_bytes"] == report.captured_bytes
    assert str(report).startswith("captured 1 graph in 0.0 s and 1 MiB, 1 step replayed")


def test_release_gives_memory_back_at_once(device):
    """Nobody has to wait for Python's garbage collector."""
    model = model_on(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(device, model, 3)
    optimizer.step()
    before = held(device)
    gapless.capture(model, device=device)
    gapless.capture(optimizer, device=device)
    gc.disable()
    try:
        for rows in (3, 5, 3, 5, 3, 5, 3, 5, 3, 5):
            train(device, model, rows)
            evaluate(device, model, rows)
            optimizer.step()
        most = device.reserved_memory_bytes()
        gapless.release(model)
        gapless.release(optimizer)
        after = device.reserved_memory_bytes()
    finally:
        gc.enable()

    assert most > before
    assert after <= before + 5 * 8 * 4  # the last batch
    assert held(device) == before


def test_a_module_that_is_let_go_takes_its_graphs_along(device):
    """Once Python's garbage collector has come by: a captured module refers to itself."""
    before = held(device)
    model = gapless.capture(model_on(device), device=device)
    optimizer = gapless.capture(torch.optim.SGD(model.parameters(), lr=0.1), device=device)
    for rows in (3, 5) * 5:
        train(device, model, rows)
        evaluate(device, model, rows)
        optimizer.step()

    del model, optimizer

    assert held(device) == before


def test_a_loss_that_is_held_keeps_the_memory_of_its_graph(device):
    """It may have its backward pass after the release of its module, as written."""
    plain, model = model_on(device), gapless.capture(model_on(device), device=device)
    train(device, model, 3, num=6)
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(3, 8, generator=draw).to(device.torch_device)
    model.zero_grad()
    loss = model(x).square().mean()
    assert gapless.capture_report(model).num_replays == 4

    gapless.release(model)
    gc.collect()
    train(device, plain, 5)  # takes memory that was given back
    loss.backward()

    assert [weight.grad.tolist() for weight in model.parameters()] == train(device, plain, 3)
