"""Updates of optimizers inside graphs, and between their segments."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
import weakref
from functools import partial

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR
from torch.optim.optimizer import register_optimizer_step_post_hook

import gapless
import update_loops
from gapless.graphs.updates.update_outside import Updates
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import on
from update_loops import (
    BUT_RATES,
    OUTSIDE,
    Adversaries,
    OwnSGD,
    Scheduled,
    Trainee,
    WithClosure,
    halve_the_rate,
    train,
    train_both_ways,
)


pytestmark = pytest.mark.quick_tests(45)


@pytest.fixture
def device():
    with (
        SimulatedDevice(scheduler="asap") as device,
        device.allow_waits(),
        device.use_stream(device.create_stream()),
    ):
        yield device
    assert device.report.races == []


INSIDE = {
    **update_loops.INSIDE,
    "Adagrad, fused": partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.1, fused=True),
}
ALL = {**INSIDE, **BUT_RATES, **OUTSIDE}


@pytest.mark.parametrize("name", INSIDE)
def test_what_has_the_same_bits_inside_is_captured(device, name):
    """No cut, and the numbers of the loop as written."""
    expected = train(device, INSIDE[name], captured=False)
    found = train(device, INSIDE[name], captured=True)

    assert found.values == expected.values
    (captured,) = found.captured
    assert (captured.inside, captured.outside) == ([found.trainee.optimizer], {})


@pytest.mark.parametrize("name", BUT_RATES)
def test_what_reads_its_rate_last_is_captured_but_for_that(device, name):
    """One graph goes on with rates that change, and they are the loop's own."""
    expected, found = train_both_ways(device, BUT_RATES[name], between=halve_the_rate)

    assert found.values == expected.values
    (captured,) = found.captured
    assert (captured.inside, captured.outside) == ([found.trainee.optimizer], {})


@pytest.mark.parametrize("name", ["RMSprop, foreach", "RMSprop, loop", "SGD", "AdamW, fused"])
def test_gradients_that_a_loop_keeps_are_not_those_of_the_next_update(device, name):
    """They get memory of their own, which the operation that takes rate and gradients does not read."""

    def trained(captured):
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2).to(device.torch_device)
        optimizer = ALL[name](model.parameters())

        def step(x):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()

        step = gapless.capture(step, device=device) if captured else step
        kept = []
        for number in range(12):
            step(on(device, torch.arange(6.0).view(2, 3) + number))
            kept += [weight.grad for weight in model.parameters()]
            optimizer.param_groups[0]["lr"] *= 0.9
        assert not captured or step.report.num_replays >= 6
        return [one.tolist() for one in (*model.parameters(), *kept)]

    assert trained(True) == trained(False)


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_has_other_numbers_at_every_step_is_cut_out(device, name):
    """The real step runs in every replay, with the numbers that it has by then."""
    expected, found = train_both_ways(device, OUTSIDE[name], between=halve_the_rate)

    assert found.values == expected.values
    (captured,) = found.captured
    assert captured.inside == []
    assert list(captured.outside) == [found.trainee.optimizer]


def test_options_of_an_optimizer_are_as_before_a_capture(device):
    """Neither `capturable` nor `step` nor the rate is changed for good."""
    for make in (INSIDE["AdamW, fused"], OUTSIDE["Adam"]):
        trainee = train(device, make, captured=True).trainee

        assert trainee.optimizer.param_groups[0]["capturable"] is False
        assert trainee.optimizer.param_groups[0]["lr"] == 0.1
        assert "step" not in vars(trainee.optimizer)


def one_cycle(trainee, number):
    """Change the rate and the momentum of all groups, from the fifth step on."""
    halve_the_rate(trainee, number)
    momentum = 0.9 - 0.01 * max(number, 4)
    for group in trainee.optimizer.param_groups:
        if "betas" in group:
            group["betas"] = (momentum, 0.999)
        elif "momentum" in group:
            group["momentum"] = momentum


@pytest.mark.parametrize("name", ["SGD, foreach", "SGD, fused", "Adagrad, fused"])
def test_an_optimizer_whose_other_numbers_change_moves_outside(device, name):
    """Its `step` is called, with the numbers of that moment."""
    expected, found = train_both_ways(device, INSIDE[name], between=one_cycle)

    assert found.values == expected.values
    assert found.captured[-1].inside == []
    assert "has changed" in found.captured[-1].outside[found.trainee.optimizer]


def load_copies(optimizer):
    """Load a checkpoint of the optimizer as it is, with tensors of its own."""
    saved = optimizer.state_dict()
    saved["state"] = {
        key: {name: part.clone() for name, part in state.items()}
        for key, state in saved["state"].items()
    }
    optimizer.load_state_dict(saved)


CHANGES = {
    "lr": lambda optimizer: optimizer.param_groups[1].update(lr=0.3),
    "momentum": lambda optimizer: optimizer.param_groups[0].update(momentum=0.3),
    "nesterov": lambda optimizer: optimizer.param_groups[0].update(nesterov=True),
    "its weights": lambda optimizer: optimizer.param_groups[0]["params"].reverse(),
    "its hooks": lambda optimizer: optimizer.register_step_post_hook(lambda *_: None),
    "its state": load_copies,
}
MORE_CHANGES = {
    "a weight less": lambda optimizer: optimizer.param_groups[0]["params"].pop(),
    "a further group": lambda optimizer: optimizer.add_param_group(
        {"params": [torch.nn.Parameter(torch.ones(2))]}
    ),
    "no state": lambda optimizer: optimizer.state.clear(),
    "a part of its state": lambda optimizer: list(optimizer.state.values())[-1].update(
        momentum_buffer=torch.ones(1)
    ),
}


@pytest.mark.parametrize("name", {**CHANGES, **MORE_CHANGES})
def test_a_change_of_an_optimizer_inside_is_seen(device, name):
    """What a graph keeps of it is compared before a replay, without a look at values."""
    found = train(device, INSIDE["SGD, two groups"], captured=True)
    (captured,), optimizer = found.captured, found.trainee.optimizer
    optimizer.param_groups[0]["lr"] = float("0.1")
    ExponentialLR(optimizer, 1.0)
    with device.forbid_waits():
        assert captured.changed() is None
        {**CHANGES, **MORE_CHANGES}[name](optimizer)
        change = captured.changed()

    assert change.optimizer is optimizer
    assert change.is_number == (name in ("lr", "momentum", "nesterov"))
    assert name not in CHANGES or change.name == name


def test_an_optimizer_with_new_state_is_captured_inside_again(device):
    """A checkpoint that is loaded changes tensors, not numbers."""

    def between(trainee, number):
        if number == 5:
            load_copies(trainee.optimizer)

    expected, found = train_both_ways(device, INSIDE["AdamW, fused"], between=between)

    assert found.values == expected.values
    assert [len(captured.inside) for captured in found.captured] == [1, 1]


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_hooks_of_optimizers_run_at_every_step(device, name):
    """Before and after the update, those of one optimizer and those of all."""
    make = ALL[name]

    def hooked(params, seen):
        optimizer = make(params)
        half = on(device, torch.tensor(0.5))

        def halve(*_):
            for weight in params:
                weight.grad.mul_(half)

        optimizer.register_step_pre_hook(halve)
        optimizer.register_step_post_hook(lambda *_: seen.append("after"))
        return optimizer

    outcomes = []
    for captured in (False, True):
        seen = []
        handle = register_optimizer_step_post_hook(lambda *_, seen=seen: seen.append("all"))
        try:
            outcomes.append((train(device, partial(hooked, seen=seen), captured=captured), seen))
        finally:
            handle.remove()

    (expected, seen), (found, found_seen) = outcomes
    assert found.values == expected.values
    assert found_seen == seen
    assert len(seen) == 18


@pytest.mark.parametrize("name", ["SGD, fused", "AdamW, fused", "Adam"])
def test_schedulers_see_every_step(device, name):
    """What a scheduler has wrapped around `step` is called, and it warns of nothing."""
    make = ALL[name]

    def between(trainee, number):
        if number:
            trainee.scheduler.step()

    expected, found = train_both_ways(device, make, between=between, kind=Scheduled)

    assert found.values == expected.values
    assert found.trainee.scheduler.get_last_lr() == expected.trainee.scheduler.get_last_lr()
    assert hasattr(found.trainee.optimizer.step, "_wrapped_by_lr_sched")


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_each_update_of_a_step_finds_its_own_gradients(device, name):
    """Several updates in a step, and gradients that are let go of after them."""
    make = ALL[name]
    expected, found = train_both_ways(device, make, kind=Adversaries)

    assert found.values == expected.values


class WithClosureWithoutGrad(WithClosure):
    """A step in whose mode only a closure has gradients."""

    @torch.no_grad()
    def step(self):
        super().step()


@pytest.mark.parametrize("kind", [WithClosure, WithClosureWithoutGrad])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW, fused", "RMSprop"])
def test_a_closure_that_is_called_once_is_captured(device, name, kind):
    """Torch's own optimizers call it before their update, so it is part of the segment before."""
    make = ALL[name]
    expected, found = train_both_ways(device, make, kind=kind)

    assert found.values == expected.values


class ReturnsANorm(OwnSGD):
    def step(self, closure=None):
        super().step()
        return 1.0


class ReplacesGradients(OwnSGD):
    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for weight in group["params"]:
                weight.grad = None


OBJECTIONS = {
    "closure": (lambda params: torch.optim.LBFGS(params, max_iter=2), WithClosure, "closure"),
    "subclass": (partial(OwnSGD, lr=0.1), WithClosure, "closure"),
    "result": (partial(ReturnsANorm, lr=0.1), Trainee, "returns a value"),
    "gradients": (partial(ReplacesGradients, lr=0.1), Trainee, "replaces gradients"),
}


@pytest.mark.parametrize("name", OBJECTIONS)
def test_what_can_be_neither_inside_nor_outside_is_named(device, name):
    """The runs as written show it, and a capture raises it."""
    make, kind, words = OBJECTIONS[name]
    trainee, updates = kind(device, make), Updates(device)
    for _ in range(2):
        with updates.watch():
            trainee.step()

    assert words in updates.objection()

    def work(cut):
        with updates.during_capture(cut):
            trainee.step()

    with pytest.raises(RuntimeError, match=words):
        device.capture(work)


def test_a_step_that_was_taken_from_its_optimizer_before_is_refused(device):
    """The bound method cannot be replaced, so it could not be cut out."""
    trainee, updates = Trainee(device, OUTSIDE["Adam"]), Updates(device)
    step = trainee.optimizer.step
    with updates.watch() as calls:
        trainee.step()
        step()

    assert calls == [id(trainee.optimizer)] * 2

    def work(cut):
        with updates.during_capture(cut):
            step()

    with pytest.raises(RuntimeError, match="in another way"):
        device.capture(work)


class Fails(Trainee):
    """A step that fails before it takes back what it has handed to its optimizer."""

    fails = False

    def step(self):
        super().step()
        self.optimizer.found_inf = self.loss
        if self.fails:
            raise KeyError
        del self.optimizer.found_inf


def test_a_failed_capture_leaves_optimizers_as_they_were(device):
    """What a scaler has handed to them, and their step."""
    trainee, updates = Fails(device, INSIDE["SGD, fused"]), Updates(device)
    with updates.watch():
        trainee.step()
    trainee.fails = True
    trainee.optimizer.grad_scale = scale = on(device, torch.ones(()))

    def work(cut):
        with updates.during_capture(cut):
            trainee.step()

    with pytest.raises(KeyError):
        device.capture(work)

    assert trainee.optimizer.grad_scale is scale
    assert "found_inf" not in vars(trainee.optimizer)
    assert "step" not in vars(trainee.optimizer)


def test_a_replay_leaves_the_gradients_of_weights_alone(device):
    """The update finds those of the capture, and whoever replays decides what is left."""
    trainee, updates = Adversaries(device, OUTSIDE["Adam"]), Updates(device)
    with updates.watch():
        trainee.step()

    def work(cut):
        with updates.during_capture(cut):
            trainee.step()

    graph = device.capture(work)
    weights = [*trainee.model.parameters(), *trainee.critic.parameters()]
    own = [on(device, weight.detach()) for weight in weights]
    for weight, gradient in zip(weights, own, strict=True):
        weight.grad = gradient
    graph.replay()

    assert all(weight.grad is gradient for weight, gradient in zip(weights, own, strict=True))


class HandsOver(Trainee):
    """A step that hands its optimizer tensors as a gradient scaler does."""

    def __init__(self, device, make):
        super().__init__(device, make)
        self.num = on(device, torch.zeros(()))

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(self.x).square().mean()
        (loss * 4).backward()
        with torch.no_grad():
            self.num += 1
            self.optimizer.grad_scale = self.num * 0 + 4
            self.optimizer.found_inf = (self.num % 3 == 0).float()
        self.optimizer.step()
        del self.optimizer.grad_scale, self.optimizer.found_inf
        with torch.no_grad():
            self.loss.copy_(loss)


@pytest.mark.parametrize("between", [None, halve_the_rate])
def test_what_a_scaler_hands_over_is_there_at_every_replay(device, between):
    """Inside and outside: gradients are unscaled, and the third steps are skipped."""
    make = INSIDE["AdamW, fused"]
    expected, found = train_both_ways(device, make, between=between, kind=HandsOver)

    assert found.values == expected.values
    assert "grad_scale" not in vars(found.trainee.optimizer)


def test_state_that_is_missing_at_the_capture_is_made_by_the_first_replay(device):
    """A weight that gets its first gradient then has its update outside."""

    def between(trainee, number):
        trainee.model[2].requires_grad_(number >= 2)

    make = INSIDE["SGD, foreach"]
    expected, found = train_both_ways(device, make, between=between)

    assert found.values == expected.values
    assert "no state" in found.captured[0].outside[found.trainee.optimizer]


def test_modes_at_an_update_are_those_of_the_step(device):
    """An optimizer of others that multiplies matrices does so under the step's autocast."""

    class Multiplies(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        def step(self, closure=None):
            weight = self.param_groups[0]["params"][0]
            with torch.no_grad():
                weight.sub_((weight.grad @ weight.T @ weight).float(), alpha=0.01)

    class InAutocast(Trainee):
        def step(self):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                super().step()

    expected, found = train_both_ways(device, Multiplies, kind=InAutocast)

    assert found.values == expected.values


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_a_graph_that_is_let_go_is_gone_at_once(device, name):
    """Nothing of its updates keeps it, or what it has captured, in a cycle."""
    trainee, updates, kept = Trainee(device, ALL[name]), Updates(device), []
    with updates.watch():
        trainee.step()

    def work(cut):
        with updates.during_capture(cut) as captured:
            trainee.step()
        kept.append(captured)

    gc.collect()
    gc.disable()
    try:
        graph = device.capture(work)
        references = [weakref.ref(graph), weakref.ref(kept.pop())]
        del graph

        assert [reference() is None for reference in references] == [True, True]
    finally:
        gc.enable()


class UnscalesAndFails(Trainee):
    """A step under a gradient scaler that can fail between its calls."""

    fails = False

    def __init__(self, device, make):
        super().__init__(device, make)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def step(self):
        self.optimizer.zero_grad()
        self.scaler.scale(self.model(self.x).square().mean()).backward()
        self.scaler.unscale_(self.optimizer)
        if self.fails:
            raise KeyError
        self.scaler.step(self.optimizer)
        self.scaler.update()


def test_a_failed_capture_leaves_scalers_as_they_were(device):
    """The next step as written can unscale, and hands over what it would have without a try."""
    trainee, updates = UnscalesAndFails(device, INSIDE["AdamW, fused"]), Updates(device)
    with updates.watch():
        trainee.step()
    trainee.fails = True

    def work(cut):
        with updates.during_capture(cut):
            trainee.step()

    before = vars(torch.amp.GradScaler).copy()
    with pytest.raises(KeyError):
        device.capture(work)
    assert vars(torch.amp.GradScaler) == before

    trainee.fails = False
    trainee.step()


def test_other_threads_may_train_meanwhile(device):
    """Only what the step itself calls is watched, and refused if it is unknown."""
    trainee, updates, failures = Trainee(device, INSIDE["SGD"]), Updates(device), []
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    other = torch.optim.SGD([weight], lr=0.5)

    def train_another():
        thread = threading.Thread(target=lambda: failures.append(other.step()))
        thread.start()
        thread.join()

    with updates.watch() as calls:
        trainee.step()
        train_another()

    def work(cut):
        with updates.during_capture(cut):
            train_another()
            trainee.step()

    device.capture(work)

    assert calls == [id(trainee.optimizer)]
    assert failures == [None, None]
    assert weight.tolist() == [0.0, 0.0]


def test_an_optimizer_that_no_run_has_called_is_refused(device):
    """Nobody has decided whether it can be captured."""
    trainee, updates = Trainee(device, INSIDE["SGD"]), Updates(device)

    def work(cut):
        with updates.during_capture(cut):
            trainee.step()

    with pytest.raises(RuntimeError, match=r"SGD\.step.* in another way"):
        device.capture(work)


def test_a_rate_of_a_scheduler_beside_the_rate_is_no_number_of_the_update(device):
    """A scheduler copies a rate that is a tensor to a name of its own."""
    rate = on(device, torch.tensor(0.1))

    def make(params):
        optimizer = torch.optim.SGD(params, lr=rate, fused=True)
        ExponentialLR(optimizer, 1.0)
        return optimizer

    found = train(device, make, captured=True)

    assert found.captured[0].inside == [found.trainee.optimizer]


def test_a_step_that_somebody_has_replaced_is_called_as_it_is(device):
    """What has taken its place may do anything on the host."""

    def make(params, seen):
        optimizer = torch.optim.SGD(params, lr=0.1)

        def step():
            seen.append(1)
            torch.optim.SGD.step(optimizer)

        optimizer.step = step
        return optimizer

    outcomes = []
    for captured in (False, True):
        seen = []
        outcomes.append((train(device, partial(make, seen=seen), captured=captured).values, seen))

    assert outcomes[0] == outcomes[1]


def test_an_update_that_is_trained_through_is_refused(device):
    """`differentiable=True` needs the update in the graph of autograd."""
    weight = on(device, torch.ones(2)).requires_grad_()
    optimizer, updates = torch.optim.SGD([weight], lr=0.1, differentiable=True), Updates(device)

    with updates.watch():
        optimizer.step()

    assert "differentiable" in updates.objection()


@pytest.mark.parametrize("where", ["host", "device"])
def test_a_rate_that_is_a_tensor_is_read_where_it_lies(device, where):
    """Inside only where the update reads it on the device."""
    rates = []

    def make(params):
        rates.append(torch.tensor(0.1) if where == "host" else on(device, torch.tensor(0.1)))
        return torch.optim.SGD(params, lr=rates[-1], fused=True)

    def between(trainee, number):
        rates[-1].fill_(0.1 / (number + 1))

    expected, found = train_both_ways(device, make, between=between)

    assert found.values == expected.values
    assert bool(found.captured[0].inside) == (where == "device")


@pytest.mark.parametrize("optimizer", [torch.optim.Adadelta, torch.optim.RMSprop])
@pytest.mark.parametrize("foreach", [True, False])
def test_a_rate_on_the_device_is_inside_where_lists_of_weights_are_updated(
    device, optimizer, foreach, monkeypatch
):
    """As pytorch's MNIST, made ready for a graph: weight by weight it would be read on the host."""
    # Torch knows GPUs alone here.
    module = sys.modules[optimizer.__module__]
    monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda **_: ["cpu"])

    def make(params):
        rate = on(device, torch.tensor(0.1))
        return optimizer(params, lr=rate, capturable=True, foreach=foreach)

    def between(trainee, number):
        trainee.optimizer.param_groups[0]["lr"].fill_(0.1 / (number + 1))

    expected, found = train_both_ways(device, make, between=between)

    assert found.values == expected.values
    assert bool(found.captured[0].inside) == foreach


def test_a_rate_that_any_update_reads_on_the_host_stays_outside(device):
    """Without fused kernels its value would be baked in."""

    def make(params):
        return torch.optim.SGD(params, lr=on(device, torch.tensor(0.1)))

    def between(trainee, number):
        trainee.optimizer.param_groups[0]["lr"].fill_(0.1 / (number + 1))

    expected, found = train_both_ways(device, make, between=between)

    assert found.values == expected.values
    assert "lr" in found.captured[0].outside[found.trainee.optimizer]


def test_a_scheduler_made_in_a_capture_keeps_the_step_as_written(device):
    """It wraps what it finds, which must be no part of the capture later."""
    trainee, updates = Trainee(device, OUTSIDE["Adam"]), Updates(device)
    with updates.watch():
        trainee.step()

    def work(cut):
        with updates.during_capture(cut):
            trainee.step()
            ExponentialLR(trainee.optimizer, 1.0)

    graph = device.capture(work)
    state = trainee.optimizer.state[trainee.model[0].weight]
    before = state["step"].item()
    graph.replay()
    assert trainee.optimizer._opt_called
    trainee.step()

    assert state["step"].item() == before + 2


class WithAHostWeight(Trainee):
    """A trainee that keeps one weight on the host."""

    def __init__(self, device, make):
        self.weight = torch.nn.Parameter(torch.ones(2))
        super().__init__(device, lambda params: make([*params, self.weight]))

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.weight.grad = torch.ones(2)
        self.optimizer.step()
        with torch.no_grad():
            self.loss.copy_(loss)


def test_an_update_of_a_weight_on_the_host_is_outside(device):
    """A capture would do it at once, and no replay would do it again."""
    make = INSIDE["SGD, loop"]
    expected, found = train_both_ways(device, make, kind=WithAHostWeight)

    assert found.values == expected.values
    assert found.trainee.weight.tolist() == expected.trainee.weight.tolist()
    assert found.captured[0].inside == []


@pytest.mark.parametrize(("name", "expected"), [("Adam, fused", True), ("Adam", False)])
def test_torch_is_told_of_a_capture_that_it_would_refuse(device, monkeypatch, name, expected):
    """Where fused kernels count on the device; and for no longer than that."""
    seen, init_group = [], torch.optim.Adam._init_group

    def noting(self, group, *args):
        seen.append(group["capturable"])
        return init_group(self, group, *args)

    monkeypatch.setattr(torch.optim.Adam, "_init_group", noting)
    train(device, ALL[name], captured=True, num=3)

    assert seen == [False, False, expected]


def test_the_graphs_of_all_shapes_leave_their_rate_outside(device):
    """Each of them had baked in a rate; no replay calls the whole update."""

    def trained(captured):
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2).to(device.torch_device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        step = gapless.capture(step, device=device) if captured else step
        for number in range(30):
            step(on(device, torch.randn(1 + number % 3, 3)))
            if number >= 15:
                optimizer.param_groups[0]["lr"] *= 0.9
        if captured:
            assert step.report.num_replays > 10
            assert step.report.updates_as_written == []
        return [one.tolist() for one in model.parameters()]

    assert trained(True) == trained(False)


@pytest.mark.parametrize("way", ["whole step", "in place"])
def test_counts_of_steps_on_the_device_are_read_as_written_and_the_mend_is_named(device, way):
    """As on torch 2.11 under `torch.set_default_device`: what else a step does is a graph."""

    def trained(captured, *, mended=False):
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2).to(device.torch_device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, foreach=True)

        def closure(x):
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            return loss

        def step(x):
            if way == "whole step":
                optimizer.step(lambda: closure(x))
            else:
                closure(x)
                optimizer.step()

        if captured and way == "whole step":
            step = gapless.capture(step, device=device)
        elif captured:
            gapless.capture(model, optimizer, device=device)
        for number in range(40):
            step(on(device, torch.arange(6.0).view(2, 3) + number))
            for state in optimizer.state.values():
                place = "cpu" if mended else device.torch_device
                state["step"] = state["step"].to(place)
        values = [one.tolist() for one in model.parameters()]
        if not captured:
            return values
        return values, step.report if way == "whole step" else gapless.capture_report(optimizer)

    expected = trained(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gapless.CaptureWarning)
        values, report = trained(True)
        mended_values, mended = trained(True, mended=True)

    assert values == mended_values == expected
    assert 'state["step"] = state["step"].cpu()' in str(report)
    assert report.num_replays > 20 or way == "in place"
    assert mended.num_replays > 20
    assert "on the device" not in str(mended)
