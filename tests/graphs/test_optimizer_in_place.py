"""Optimizers that are captured where they stand."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import warnings
import weakref
from contextlib import contextmanager
from functools import partial
from types import MethodType, SimpleNamespace

import pytest
import torch
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import ExponentialLR, StepLR

import gapless
from gapless.errors import CaptureRefused, CaptureWarning, UserError
from gapless.graphs.in_place.captor import captor_of
from gapless.graphs.in_place.capture_in_place import capture_report, release
from gapless.loop.train_loop import TrainLoop
from gapless.testing.simulated.simulated_device import SimulatedDevice
from optimizer_loops import OptimizerLoop, both, both_scaled
from toy_steps import on
from update_loops import BUT_RATES, INSIDE, OUTSIDE


pytestmark = pytest.mark.quick_tests(30)


@pytest.fixture(params=["asap", "lazy"])
def device(request):
    with SimulatedDevice(scheduler=request.param) as device, device.allow_waits():
        yield device
    assert device.report.races == []


momentum = partial(SGD, lr=0.1, momentum=0.9)
adamw = partial(AdamW, lr=0.1, fused=True)

# Two runs as written, and one that captures.
NUM_BEFORE_REPLAYS = 3


def reasons(loop):
    return " ".join(refusal.text for refusal in loop.report.refusals)


# --- what is captured ---


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("name", INSIDE)
def test_steps_are_replays(device, name):
    """With the same bits, and each weight keeps the gradient that the loop gave to it."""
    report = both(device, INSIDE[name], OptimizerLoop.run).report

    assert (report.num_replays, report.num_eager) == (5, NUM_BEFORE_REPLAYS)
    assert (report.num_graphs, report.proved, report.refusals) == (1, 1, [])


@pytest.mark.parametrize("name", [name for name in BUT_RATES if not name.startswith("Adam")])
def test_an_update_that_takes_its_rate_last_is_a_graph_under_a_schedule(device, name):
    """A new rate at every step needs no new graph."""

    def run(loop):
        def step():
            loop.optimizer.step()
            for group in loop.optimizer.param_groups:
                group["lr"] *= 0.9

        loop.run(step=step)

    report = both(device, BUT_RATES[name], run).report

    assert (report.num_replays, report.num_eager) == (5, NUM_BEFORE_REPLAYS)
    assert (report.num_graphs, report.proved, report.refusals) == (1, 1, [])


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("name", sorted(OUTSIDE.keys() - {"of others"}))
def test_an_update_with_new_numbers_at_every_step_runs_as_written(device, name):
    """The report says why, and so does a warning."""
    with pytest.warns(CaptureWarning, match=r"\w+\.step is not captured: the update of"):
        report = both(device, OUTSIDE[name], OptimizerLoop.run).report

    assert (report.num_replays, report.num_eager) == (0, 8)
    assert report.refusal.kind == "update"


def test_a_warning_stands_at_the_line_of_the_loop(device):
    """Also where a scheduler has wrapped the step since."""
    loop = OptimizerLoop(device, partial(torch.optim.Adam, lr=0.1))
    ExponentialLR(loop.optimizer, 0.5)

    def step():
        loop.optimizer.step()

    with pytest.warns(CaptureWarning) as told:
        loop.run(step=step)

    assert [one.filename for one in told] == [__file__]


class Signs(torch.optim.Optimizer):
    """A user's own optimizer, whose decay of weights goes into their gradients."""

    factor = 1.0

    def __init__(self, weights, lr=0.125, decay=0.0):
        super().__init__(weights, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                if group["decay"]:
                    weight.grad.add_(weight, alpha=group["decay"])
                known = self.state[weight]
                mean = known.setdefault("mean", torch.zeros_like(weight))
                mean.lerp_(weight.grad, 0.25)
                weight.add_(mean.sign() * self.factor, alpha=-group["lr"])


class Counts(Signs):
    """Counts its steps."""

    num_steps = 0

    def step(self, closure=None):
        self.num_steps += 1
        return super().step(closure)


@pytest.mark.parametrize("make", [Signs, partial(Signs, decay=0.5)])
def test_a_users_own_optimizer_is_captured(device, make):
    """What it writes into gradients shows in those of the loop."""
    report = both(device, make, OptimizerLoop.run).report

    assert (report.num_replays, report.refusals) == (5, [])


def change_the_rate(loop):
    loop.optimizer.param_groups[0]["lr"] *= 0.5


def change_an_attribute(loop):
    loop.optimizer.factor = 0.5


def replace_groups(loop):
    loop.optimizer.param_groups = [{**group} for group in loop.optimizer.param_groups]


def load_its_state(loop):
    loop.optimizer.load_state_dict(copy.deepcopy(loop.optimizer.state_dict()))


def _tensors_of_state(loop):
    for state in loop.optimizer.state.values():
        for name, part in list(state.items()):
            yield state, name, part


def move_its_state(loop):
    for _, _, part in _tensors_of_state(loop):
        part.data = part.data * 0.5


def replace_its_state(loop):
    for state, name, part in _tensors_of_state(loop):
        state[name] = part * 0.5


def move_weights(loop):
    for weight in loop.weights:
        weight.data = weight.data * 0.5


def write_to_weights(loop):
    with torch.no_grad():
        for weight in loop.weights:
            weight.mul_(0.5)


def add_a_group(loop):
    weight = torch.nn.Parameter(on(loop.device, torch.ones(2, 2)))
    loop.weights.append(weight)
    loop.optimizer.add_param_group({"params": [weight], "lr": 0.25})


def replace_a_weight(loop):
    group = loop.optimizer.param_groups[0]
    loop.weights[0] = group["params"][0] = torch.nn.Parameter(loop.weights[0].detach() * 0.5)


CHANGES = [
    change_the_rate,
    replace_groups,
    load_its_state,
    move_its_state,
    replace_its_state,
    move_weights,
    write_to_weights,
    add_a_group,
]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("change", [*CHANGES, replace_a_weight])
@pytest.mark.parametrize("make", [momentum, adamw])
def test_a_change_between_two_steps(device, make, change):
    """The next step knows it, and later ones are replays again."""

    def play(loop):
        loop.run(6)
        change(loop)
        loop.run(8)

    report = both(device, make, play).report

    assert report.num_replays >= 6
    assert report.refusals == []


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("change", [*CHANGES, change_an_attribute])
def test_a_change_of_a_users_own_optimizer(device, change):
    """What its code reads is guarded as any code of the user is."""

    def play(loop):
        loop.run(6)
        change(loop)
        loop.run(8)

    both(device, Signs, play)


def test_a_users_own_optimizer_that_counts_is_refused(device):
    """A replay would not count; the report names the line."""
    with pytest.warns(CaptureWarning):
        loop = both(device, Counts, OptimizerLoop.run)

    assert loop.optimizer.num_steps == 8
    lines, first = inspect.getsourcelines(Counts)
    line = first + next(n for n, text in enumerate(lines) if "+= 1" in text)
    assert f"test_optimizer_in_place.py:{line}" in reasons(loop)


def test_weights_without_gradients(device):
    """Each set of weights with gradients has a graph of its own; none at all is no reason."""

    def play(loop):
        for _ in range(4):
            loop.run(2)
            loop.weights[0].grad = None
            loop.run(2, weights=loop.weights[1:])
        loop.optimizer.zero_grad()
        loop.run(1, weights=[])

    report = both(device, momentum, play).report

    assert (report.num_graphs, report.refusals) == (2, [])
    assert report.num_replays + report.num_eager == 17


def test_a_gradient_that_is_kept_stays_what_it_was(device):
    """A replay copies gradients, and writes to none."""
    kept, copies = [], []

    def play(loop):
        for _ in range(8):
            loop.run(1)
            kept.extend(weight.grad for weight in loop.weights)
            copies.extend(weight.grad.tolist() for weight in loop.weights)

    both(device, momentum, play)

    assert [gradient.tolist() for gradient in kept] == copies


# --- what runs as written ---


def test_hooks(device):
    """They are called in each step, and replays go on when they are gone."""
    called = []

    def play(loop):
        loop.run(5)
        hooks = [
            loop.optimizer.register_step_pre_hook(lambda *_: called.append("before")),
            loop.optimizer.register_step_post_hook(lambda *_: called.append("after")),
        ]
        loop.run(2)
        for hook in hooks:
            hook.remove()
        loop.run(2)

    with pytest.warns(CaptureWarning, match=r"SGD\.step\(\) has hooks"):
        report = both(device, momentum, play).report

    assert called == ["before", "after"] * 4
    assert (report.num_replays, report.num_eager) == (4, 5)


def test_a_closure_that_is_called_once_runs_before_the_graph(device):
    """As torch's own optimizers call it; `step` returns its loss."""
    losses = []

    def play(loop):
        def closure():
            assert torch.is_grad_enabled()
            losses.append(loop.weights[0].detach().sum().item())
            return losses[-1]

        def step():
            assert loop.optimizer.step(closure) is losses[-1]

        with torch.no_grad():
            loop.run(8, step=step)

    report = both(device, momentum, play).report

    assert losses[:8] == losses[8:]
    assert (report.num_replays, report.refusals) == (5, [])


def test_a_closure_that_may_be_called_again_runs_as_written(device):
    """L-BFGS calls it as often as its numbers say."""

    def play(loop):
        def closure():
            for weight in loop.weights:
                weight.grad.copy_(weight.detach())
            return sum(weight.detach().square().sum() for weight in loop.weights)

        loop.run(4, step=lambda: loop.optimizer.step(closure))

    with pytest.warns(CaptureWarning, match="takes a closure"):
        loop = both(device, partial(torch.optim.LBFGS, max_iter=2), play)

    assert (loop.report.num_replays, loop.report.num_eager) == (0, 4)


def test_what_is_refused_for_good_is_called_where_the_loop_is(device):
    """Neither its stream nor its gradients are changed any more."""
    seen = []

    class CountsAndLooks(Counts):
        def step(self, closure=None):
            seen.append(device.current_stream())
            return super().step(closure)

    with pytest.warns(CaptureWarning):
        OptimizerLoop(device, CountsAndLooks).run()

    assert seen[0] is not device.current_stream()
    assert seen[-1] is device.current_stream()


def test_gradients_that_no_graph_can_take(device):
    """Such a step runs as written, and the report says why."""
    loop = OptimizerLoop(device, momentum)
    loop.run(5)
    before = loop.weights[0].tolist()
    gradients = [(weight.detach() * 2).requires_grad_() for weight in loop.weights]
    for weight, gradient in zip(loop.weights, gradients, strict=True):
        weight.grad = gradient
    with pytest.warns(CaptureWarning, match="create_graph"):
        loop.optimizer.step()

    assert before != loop.weights[0].tolist()
    assert all(weight.grad is one for weight, one in zip(loop.weights, gradients, strict=True))
    loop.run(2)
    assert (loop.report.num_replays, loop.report.num_eager) == (4, 4)


class OfAnotherKind(torch.Tensor):
    """A tensor that may be of several parts."""


def test_gradients_of_other_kinds(device):
    """A graph has one piece of memory for each gradient; the simulated device has no others."""
    loop = OptimizerLoop(device, momentum)
    objection = captor_of(loop.optimizer)._objection_to_gradients

    assert objection([None, loop.weights[0].detach()]) is None
    assert "OfAnotherKind" in objection([torch.ones(2).as_subclass(OfAnotherKind)])
    assert "sparse_coo" in objection([torch.ones(2).to_sparse()])


def test_weights_on_the_host(device):
    """No graph can hold the update of a weight that is not on the device."""

    def make(weights):
        return momentum([*weights, torch.nn.Parameter(torch.ones(2))])

    def play(loop):
        host = loop.optimizer.param_groups[0]["params"][-1]
        loop.run(6, weights=[*loop.weights, host])
        assert host[0].item() != 1.0

    with pytest.warns(CaptureWarning, match="finds gradients on cpu"):
        loop = both(device, make, play)

    assert loop.report.num_replays == 0


def test_on_refusal_raises_when_the_step_is_done(device):
    """The weights are updated, and have their gradients."""
    loop = OptimizerLoop(device, Counts, on_refusal="raise")
    loop.run(1)
    with pytest.raises(CaptureRefused, match=r"Counts\.step") as caught:
        loop.run(1)

    assert caught.value.kind == "host_write"
    assert loop.optimizer.num_steps == 2
    assert all(weight.grad is not None for weight in loop.weights)


def test_an_exception_of_a_step_leaves_gradients_where_they_are(device):
    """It is the loop's, as written."""

    class Fails(Signs):
        def step(self, closure=None):
            raise ArithmeticError

    loop = OptimizerLoop(device, Fails)
    gradients = [torch.ones_like(weight) for weight in loop.weights]
    for weight, gradient in zip(loop.weights, gradients, strict=True):
        weight.grad = gradient
    with pytest.raises(ArithmeticError):
        loop.optimizer.step()

    assert all(weight.grad is one for weight, one in zip(loop.weights, gradients, strict=True))


def test_within_a_captured_step_it_is_a_part_of_that(device):
    """The whole step is replayed, and the optimizer launches nothing of its own."""

    def train(loop, is_captured):
        def step(x):
            loop.optimizer.zero_grad()
            sum((weight * x).square().sum() for weight in loop.weights).backward()
            loop.optimizer.step()

        step = gapless.capture(step, device=device) if is_captured else step
        for number in range(8):
            step(on(device, torch.tensor(0.1 * number)))
        return step, [weight.tolist() for weight in loop.weights]

    for make in (momentum, Signs):
        _, expected = train(OptimizerLoop(device, make, is_captured=False), is_captured=False)
        loop = OptimizerLoop(device, make)
        ExponentialLR(loop.optimizer, 0.5)
        step, found = train(loop, is_captured=True)

        assert found == expected
        assert step.report.num_replays == 5
        assert (loop.report.num_replays, loop.report.num_graphs) == (0, 0)


def test_within_a_loop_that_captures_it_is_a_part_of_the_step(device):
    """As within any captured step."""
    loop = OptimizerLoop(device, momentum)

    def step(x):
        loop.optimizer.zero_grad()
        loss = sum((weight * x).square().sum() for weight in loop.weights)
        loss.backward()
        loop.optimizer.step()
        return loss.detach()

    with TrainLoop(plan="captured", device=device) as train_loop:
        for _ in range(2):
            train_loop.run_epoch([torch.tensor(0.1 * number) for number in range(8)], step)

    assert train_loop.capture_report.num_replays > 0
    assert (loop.report.num_replays, loop.report.num_graphs) == (0, 0)


@contextmanager
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# --- schedulers and scalers ---


def test_a_rate_that_changes_in_each_short_epoch(device):
    """The first epochs may be short: most of their steps are replays all the same."""

    def play(loop):
        scheduler = ExponentialLR(loop.optimizer, 0.5)
        for _ in range(8):
            loop.run(6)
            scheduler.step()

    assert both(device, momentum, play).report.num_replays >= 24


def test_a_scheduler_that_steps_first_warns_as_written(device):
    """It asks whether the optimizer was called."""
    loop = OptimizerLoop(device, momentum)
    scheduler = StepLR(loop.optimizer, 6)
    with pytest.warns(UserWarning, match=r"`lr_scheduler.step\(\)` before `optimizer.step\(\)`"):
        scheduler.step()


def test_a_scheduler_made_while_captured_goes_on_after_the_release(device):
    """It has wrapped the captured step, which is the class's from then on."""

    def play(loop):
        scheduler = ExponentialLR(loop.optimizer, 0.5)
        loop.run(2)
        loop.release()
        with no_warnings():
            for _ in range(3):
                loop.run(1)
                scheduler.step()
        loop.capture()
        loop.run(6)

    assert both(device, momentum, play).report.num_replays == 3


@pytest.mark.parametrize("make", [momentum, adamw])
def test_a_gradient_scaler(device, make):
    """Steps of both kinds of optimizers are replays, and one is left out after an overflow."""

    loop = both_scaled(device, make, 10, overflow=6)

    assert loop.report.num_replays >= 6
    assert not {"grad_scale", "found_inf"} & vars(loop.optimizer).keys()


# --- the object ---


def test_an_optimizer_is_what_it_was(device):
    """Its type, its text, its state, and the form of its step."""
    loop, other = (
        OptimizerLoop(device, momentum),
        OptimizerLoop(device, momentum, is_captured=False),
    )
    loop.run()
    other.run()

    assert type(loop.optimizer) is SGD
    assert repr(loop.optimizer) == repr(other.optimizer)
    assert str(loop.optimizer.state_dict()) == str(other.optimizer.state_dict())
    assert inspect.ismethod(loop.optimizer.step)
    assert inspect.signature(loop.optimizer.step) == inspect.signature(other.optimizer.step)


class KeepsAll(SGD):
    """Its copies have all attributes."""

    def __getstate__(self):
        return self.__dict__.copy()


@pytest.mark.parametrize(
    ("kind", "copied"), [(SGD, copy.copy), (SGD, copy.deepcopy), (KeepsAll, copy.deepcopy)]
)
def test_a_copy_is_an_ordinary_optimizer(device, kind, copied):
    """It steps its own weights, and has no report."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        loop = OptimizerLoop(device, partial(kind, lr=0.1, momentum=0.9))
        loop.run()
        other = copied(loop.optimizer)
        num_steps, before = loop.report.num_steps, loop.weights[0].tolist()
        for weight in other.param_groups[0]["params"]:
            weight.grad = torch.ones_like(weight)
        theirs = [weight.tolist() for weight in other.param_groups[0]["params"]]
        other.step()

    assert loop.report.num_steps == num_steps
    assert (loop.weights[0].tolist() == before) is (copied is copy.deepcopy)
    assert [weight.tolist() for weight in other.param_groups[0]["params"]] != theirs
    with pytest.raises(UserError, match="not captured"):
        capture_report(other)


def test_a_copy_keeps_a_method_of_its_own(device):
    """What stood in the place of the class's step is that of the copy."""

    def halve(optimizer):
        with torch.no_grad():
            for weight in optimizer.param_groups[0]["params"]:
                weight.mul_(0.5)

    loop = OptimizerLoop(device, momentum, is_captured=False)
    optimizer = KeepsAll(loop.weights, lr=0.1)
    optimizer.step = MethodType(halve, optimizer)
    gapless.capture(optimizer, device=device)
    other = copy.deepcopy(optimizer)
    other.step()

    assert loop.weights[1].tolist() == [0.5, 0.5]
    assert other.param_groups[0]["params"][1].tolist() == [0.25, 0.25]
    with pytest.raises(UserError, match="not captured"):
        capture_report(copy.copy(optimizer))


@pytest.mark.parametrize("kind", [SGD, KeepsAll])
def test_a_file_leaves_the_graphs_out(kind):
    """What is loaded is an ordinary optimizer."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = gapless.capture(kind([weight], lr=0.5), device="cpu")
    weight.grad = torch.ones(2)
    loaded = pickle.loads(pickle.dumps(optimizer))
    (own,) = loaded.param_groups[0]["params"]
    own.grad = torch.ones(2)
    loaded.step()

    assert (own.tolist(), weight.tolist()) == ([0.5, 0.5], [1.0, 1.0])
    with pytest.raises(UserError, match="not captured"):
        capture_report(loaded)


@pytest.mark.parametrize("has_scheduler", [True, False])
def test_release_leaves_nothing_behind(device, has_scheduler):
    """The attributes are those of before; to release again does no harm."""
    loop = OptimizerLoop(device, momentum, is_captured=False)
    if has_scheduler:
        ExponentialLR(loop.optimizer, 0.5)
    loop.run(2)
    before = dict(vars(loop.optimizer))
    gapless.capture(loop.optimizer, device=device)
    loop.run()
    assert loop.report.num_replays == 5
    release(loop.optimizer)
    release(loop.optimizer)

    assert vars(loop.optimizer) == before
    with pytest.raises(UserError, match="not captured"):
        capture_report(loop.optimizer)
    loop.run(2)


def test_graphs_end_with_the_optimizer(device):
    """Nobody else holds them, or its weights."""
    loop = OptimizerLoop(device, momentum)
    loop.run()
    weight, optimizer = weakref.ref(loop.weights[0]), weakref.ref(loop.optimizer)
    del loop
    gc.collect()

    assert (weight(), optimizer()) == (None, None)


def test_captured_again(device):
    """With the same settings nothing changes; with others it begins anew."""
    loop = OptimizerLoop(device, momentum)
    loop.run(5)
    report = loop.report
    gapless.capture(loop.optimizer, device=device)
    assert loop.report is report
    gapless.capture(loop.optimizer, device=device, num_warmup=3)
    loop.run(6)

    assert report.num_steps == 5
    assert (loop.report.num_replays, loop.report.num_eager) == (2, 4)


def test_where_nothing_is_captured(device, monkeypatch):
    """On a CPU, and with `GAPLESS_CAPTURE=off`, steps run as written and are counted."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = gapless.capture(SGD([weight], lr=0.5), device="cpu", on_refusal="raise")
    weight.grad = torch.ones(2)
    optimizer.step()
    monkeypatch.setenv("GAPLESS_CAPTURE", "off")
    loop = OptimizerLoop(device, momentum)
    loop.run()

    found = [
        (one.refusal.kind, one.num_replays, one.num_eager)
        for one in (capture_report(optimizer), loop.report)
    ]
    assert found == [("cpu", 0, 1), ("off", 0, 8)]
    assert weight.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lambda: torch.ones(3), {}, "got a Tensor, expected a step"),
        (lambda: None, {}, "got a NoneType, expected a step"),
        (lambda: SGD([torch.ones(2)], lr=0.1), {"steps_per_launch": 2}, "which is for steps"),
    ],
)
def test_what_capture_does_not_take(make, options, words):
    """The message says what it takes."""
    with pytest.raises(UserError, match=words):
        gapless.capture(make(), device="cpu", **options)


@pytest.mark.parametrize("ask", [release, capture_report])
def test_what_can_never_be_captured_in_place(ask):
    """The message names the kinds of objects that can."""
    with pytest.raises(UserError, match=r"got a SimpleNamespace, expected .*a torch Optimizer"):
        ask(SimpleNamespace())
