"""The nodes of a backward pass lead to the lines of the forward pass that made them."""

import inspect

import pytest
import torch

from gapless.doctor.lines.backward_lines import BackwardLinesPass, needs_backward_lines
from gapless.doctor.seen_waits import SeenWait


def line_of(text):
    """Return the number of the line of this file that ends with a text."""
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


def masked(x):
    return x[x > 0].sum()  # masked


def step(x):
    loss = masked(x)
    loss = loss + x[x < 1].sum()  # below one
    loss.backward()


@pytest.fixture
def watched():
    x = torch.randn(4, 4, requires_grad=True)
    found = BackwardLinesPass()
    found.start()
    step(x)
    found.next_step()
    step(x)
    found.stop()
    return found


def test_nodes_of_one_name_are_told_apart_by_their_place_in_the_step(watched):
    """In the order of the forward pass, in each step anew."""
    first, second = (watched.lines["IndexBackward0", place] for place in (0, 1))

    assert (first.line, first.function) == (line_of("masked"), "masked")
    assert (second.line, second.function) == (line_of("below one"), "step")
    assert first.source.startswith("return x[x > 0]")
    assert ("IndexBackward0", 2) not in watched.lines


def test_nothing_stays_behind(watched):
    """Neither anomaly mode nor our function."""
    assert not torch.is_anomaly_enabled()
    assert torch.autograd._engine_run_backward.__module__ == "torch.autograd.graph"


def test_the_anomaly_mode_of_the_script_stays_as_it_was():
    """With its check for NaN."""
    with torch.autograd.set_detect_anomaly(True):
        found = BackwardLinesPass()
        found.start()
        step(torch.randn(4, 4, requires_grad=True))
        found.stop()

        assert torch.is_anomaly_enabled()
        assert torch.is_anomaly_check_nan_enabled()

    assert ("IndexBackward0", 0) in found.lines


def test_a_gradient_asked_for_by_function_is_seen_as_well():
    """`torch.autograd.grad` runs the same engine."""
    x = torch.randn(4, 4, requires_grad=True)
    found = BackwardLinesPass()
    found.start()
    torch.autograd.grad(masked(x), x)
    found.stop()

    assert found.lines["IndexBackward0", 0].line == line_of("masked")


def test_only_waits_of_autograd_without_a_line_need_it():
    """A hook or a backward written in Python has its own line."""
    wait = SeenWait(
        cause="unknown", call="", site=None, thread="autograd", step=0, start_ns=0, end_ns=None
    )

    assert needs_backward_lines([wait])
    assert not needs_backward_lines([])
