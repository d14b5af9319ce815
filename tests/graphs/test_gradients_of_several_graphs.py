"""Gradients that one graph made are what they were when another graph is replayed.

Graphs of a step share memory, and one may read in an update what another has made.
"""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import gapless
import micro_steps
from gapless.graphs.replay.graph_gradients import GraphGradients, PoolGradients
from gapless.testing import SimulatedDevice


def run_as(loop, *, captured):
    """Return what a loop left, and the reports of what it captured."""
    reports = []
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():

        def capture(step):
            if not captured:
                return step
            made = gapless.capture(step, device=device)
            in_place = isinstance(step, torch.optim.Optimizer)
            reports.append(gapless.capture_report(step) if in_place else made.report)
            return made

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = loop(device.torch_device, capture)
    return found, reports


def check(loop):
    """Check that a loop leaves the same bits captured; return its reports."""
    expected, _ = run_as(loop, captured=False)
    found, reports = run_as(loop, captured=True)

    assert micro_steps.differing(expected, found) == []
    return reports


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("pattern", ["FFT", "FT", "FFFTT"])
@pytest.mark.parametrize("name", micro_steps.OPTIMIZERS)
@pytest.mark.parametrize("how", micro_steps.HOW)
def test_accumulation_whose_last_micro_batch_updates(name, pattern, how):
    """An update reads what a graph has made, whose it may be: one of the step, or of another."""
    reports = check(micro_steps.accumulation(name, pattern, how))

    assert any(report.num_replays for report in reports)


def test_a_head_that_another_graph_knows_nothing_of():
    """Its gradients stay until the update, though the other graph was captured before."""
    (report,) = check(micro_steps.two_heads)

    assert report.num_replays > micro_steps.NUM_CALLS


@pytest.mark.parametrize(
    "loop", [micro_steps.gradients_of_another, micro_steps.gradients_in_a_backward_pass_to_come]
)
def test_gradients_that_something_else_than_python_holds(loop):
    """Another weight, or a backward pass that is still to come."""
    (report,) = check(loop)

    assert report.num_replays > micro_steps.NUM_CALLS


@pytest.mark.parametrize("keep", [lambda grad: grad, torch.detach], ids=["gradients", "views"])
def test_gradients_that_the_loop_keeps_while_batches_have_other_shapes(keep):
    """Those of a longer batch, while a shorter one is trained on."""
    (report,) = check(micro_steps.cosines(keep))

    assert report.num_graphs == 2


PROGRAMS = st.integers(0, 2**32).map(micro_steps.Program.of)


@given(PROGRAMS)
@settings(max_examples=3, deadline=None)
def test_any_micro_step(program):
    """Backward passes, clipping, updates and gradients that are let go of, in any order."""
    check(program.loop)


@pytest.mark.slow
@given(PROGRAMS)
@settings(max_examples=25, deadline=None)
def test_any_of_more_micro_steps(program):
    """The same, for more of them."""
    check(program.loop)


def test_a_graph_that_is_gone_keeps_no_weights():
    """Such as those of a model that another one has replaced, while its step goes on."""
    pool, seen = PoolGradients(), []

    def graph():
        weight = nn.Parameter(torch.zeros(2))
        weight.grad = torch.zeros(2)
        seen.append(weakref.ref(weight))
        return GraphGradients([(weight, None)], pool=pool)

    graphs = [graph(), graph(), graph()]
    for number in (0, 1, 2, 0):
        graphs[number].let_go()
        graphs[number].hand_out()
    graphs[:2] = []
    for _ in range(3):
        graphs[0].let_go()
        graphs[0].hand_out()
        gc.collect()

    assert [reference() is None for reference in seen] == [True, True, False]
