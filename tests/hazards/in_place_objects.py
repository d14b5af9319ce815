"""A captured object is the object that was given: to Python, to torch, and to whoever saves or copies it."""

from __future__ import annotations

import inspect
import os
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gapless
from hazards.captured_harness import HOLDS, line_of, refusals_of
from hazards.captured_models import Headed, batches, mlp, sgd, state
from hazards.harness import CPU, GPU, SIMULATED
from hazards.in_place_harness import either, in_place_case
from hazards.in_place_models import Normed, fit, made, update


# ------------------------------------------------------------------------------ what it is


@in_place_case("Names, types, strings and signatures of model and optimizer are as they were.")
def is_what_it_was(place):
    model = place.capture(made(place, Normed))
    optimizer = place.capture(sgd(model))
    losses = fit(place, model, optimizer)
    return (
        losses,
        [isinstance(model, Normed), isinstance(optimizer, torch.optim.SGD)],
        [type(model).__name__, type(optimizer).__name__, str(model), str(optimizer)],
        [list(model.state_dict()), list(optimizer.state_dict())],
        [name for name, _ in model.named_modules()],
        [name for name, _ in model.named_parameters()],
        [str(inspect.signature(model.forward)), inspect.ismethod(optimizer.step)],
        [one.is_leaf for one in model.parameters()],
    )


# ---------------------------------------------------------------------------- copied, saved


@in_place_case(
    "The captured model itself is pickled in the middle of training.", devices=(CPU, GPU)
)
def pickled_as_it_is(place):
    model = place.capture(mlp(place, dropout=0.1))
    optimizer = place.capture(sgd(model, momentum=0.9))
    losses = fit(place, model, optimizer, 14)
    loaded, its_optimizer = pickle.loads(pickle.dumps((model, optimizer)))
    losses += fit(place, model, optimizer, 6, start=14)
    losses += fit(place, loaded, its_optimizer, 6, start=14)
    names = sorted(vars(loaded)), sorted(vars(its_optimizer))
    is_its_own = loaded[0].weight is its_optimizer.param_groups[0]["params"][0]
    return losses, names, is_its_own, state(model, optimizer), state(loaded, its_optimizer)


# -------------------------------------------------------------------------------------- hooks


@in_place_case(
    "`model.forward` is replaced by a wrapper, and a method of the class by another.",
    expect=either(),
)
def forward_is_replaced(place):
    class Mine(Headed):
        pass

    model = place.capture(made(place, Mine))
    optimizer = sgd(model)
    losses = fit(place, model, optimizer, 12)
    inner = model.forward
    model.forward = lambda x: inner(x) * 2
    losses += fit(place, model, optimizer, 12)
    del model.forward
    Mine.forward = lambda self, x: self.head(self.body(x))
    losses += fit(place, model, optimizer, 12)
    return losses, state(model, optimizer)


# ------------------------------------------------------------------- captured and released


@in_place_case("Captured in the middle of an epoch, and released before its end.")
def captured_for_a_while(place):
    model = made(place, Normed)
    optimizer = sgd(model, momentum=0.9)
    losses = fit(place, model, optimizer, 5)
    place.capture(model)
    place.capture(optimizer)
    losses += fit(place, model, optimizer, 14, start=5)
    place.release(model)
    losses += fit(place, model, optimizer, 4, start=19)
    place.release(optimizer)
    losses += fit(place, model, optimizer, 4, start=23)
    return losses, sorted(vars(model)), sorted(vars(optimizer)), state(model, optimizer)


@in_place_case(
    "Forward, backward and update are captured as a step, of captured objects.", expect=either()
)
def step_of_captured_objects(place):
    model = place.capture(mlp(place))
    optimizer = place.capture(sgd(model))

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    if not place.is_plain:
        step = gapless.capture(step, device=place.device)
    losses = [step(x, y).item() for x, y in batches(place, 16)]
    return losses + fit(place, model, optimizer, 8), state(model, optimizer)


# --------------------------------------------------------------------- the report, and options

_OF_THE_PRODUCT = {"expect": HOLDS, "plainly": False}


@in_place_case(
    "The report counts calls, and names nothing where all is captured.",
    devices=(SIMULATED, GPU),
    **_OF_THE_PRODUCT,
)
def report_counts_calls(place):
    model = place.capture(mlp(place))
    criterion = place.capture(nn.CrossEntropyLoss())
    optimizer = place.capture(sgd(model))
    fit(place, model, optimizer, 24, loss_of=criterion)

    for one in (model, criterion, optimizer):
        report = gapless.capture_report(one)
        assert report.num_replays + report.num_eager == 24, report
        assert report.num_replays >= 12, report
        assert report.num_graphs >= 1, report
        assert refusals_of(report) == [], report
        assert report.refusal is None, report
        assert isinstance(str(report), str)


@in_place_case(
    "A CPU has nothing to capture, and the report says so.", devices=(CPU,), **_OF_THE_PRODUCT
)
def report_of_a_cpu(place):
    model = place.capture(mlp(place))
    optimizer = place.capture(sgd(model))
    fit(place, model, optimizer, 10)

    for one in (model, optimizer):
        report = gapless.capture_report(one)
        assert report.num_replays == 0, report
        assert "CPU" in str(report) + "".join(refusals_of(report)), report


class Counting(Headed):
    """Counts its calls."""

    def __init__(self):
        super().__init__()
        self.num_seen = 0

    def forward(self, x):
        self.num_seen += len(x)  # a host write of every call
        return super().forward(x)


@in_place_case(
    "`on_refusal='raise'` raises where the loop calls the model, naming the line.",
    devices=(SIMULATED, GPU),
    **_OF_THE_PRODUCT,
)
def refusal_raises(place):
    model = place.capture(made(place, Counting), on_refusal="raise")
    optimizer = sgd(model)
    num_calls = 0
    with pytest.raises(gapless.CaptureRefused) as caught:
        for x, y in batches(place, 20):
            num_calls += 1
            update(optimizer, F.cross_entropy(model(x), y))

    line = line_of(Counting.forward, "self.num_seen += len(x)  # a host write of every call")
    assert line in str(caught.value)
    assert model.num_seen in (6 * num_calls, 6 * (num_calls - 1))


@in_place_case(
    "`on_refusal` must be one of its words, and only what can be captured is taken.",
    **_OF_THE_PRODUCT,
)
def wrong_arguments(place):
    with pytest.raises((ValueError, gapless.UserError)):
        gapless.capture(mlp(place), device=place.device, on_refusal="perhaps")
    with pytest.raises((TypeError, ValueError, gapless.UserError)):
        gapless.capture(torch.ones(3))
    with pytest.raises((TypeError, ValueError, LookupError, gapless.UserError)):
        gapless.capture_report(mlp(place))


@in_place_case("`GAPLESS_CAPTURE=off` captures nothing.", expect=either())
def switched_off(place):
    os.environ["GAPLESS_CAPTURE"] = "off"
    model = place.capture(made(place, Normed))
    optimizer = place.capture(sgd(model))
    losses = fit(place, model, optimizer, 12)
    if not place.is_plain:
        assert place.report(model).num_replays == place.report(optimizer).num_replays == 0
    return losses, state(model, optimizer)
