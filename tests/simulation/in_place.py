"""Modules that are captured where they stand: what a graph takes of their calls, and what not.

Each is trained plainly on the host, and captured on the device; losses, gradients, weights and
buffers of every step are compared.
"""

from __future__ import annotations

import gc

import torch
from torch import nn

import gapless
from gapless.graphs.modules import seen_calls
from gapless.graphs.modules.seen_calls import SeenCalls
from simulation.registry import FEW, VERY_FEW, scenario
from simulation.workloads import read_back
from toy_steps import on


# These are about what Python sees, and not about order.
ONE = "asap"

NUM = 8


class Scaled(nn.Module):
    """A weight and a buffer. What subclasses change is about one thing each."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        self.mean.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
        return nn.functional.dropout(torch.tanh(x * self.weight) + self.mean, 0.3)


class Loop:
    """Trains a model; what subclasses change is about one thing each.

    Args:
        model: a class.
        device: None for the host.
    """

    def __init__(self, model, device, **settings):
        torch.manual_seed(0)
        self.device = device
        self.model = model()
        for tensor in [*self.model.parameters(), *self.model.buffers()]:
            tensor.data = on(device, tensor.data)
        self.prepare()
        if device is not None:
            gapless.capture(self.model, device=device, **settings)

    def train(self):
        """Return what can be seen after each step."""
        return [self._step(number) for number in range(NUM)]

    def _step(self, number):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(number))
        loss = self.add_gradients(on(self.device, x), number)
        weights = [weight for weight in self.weights() if weight.grad is not None]
        seen = [loss, *self.model.buffers(), *[weight.grad for weight in weights]]
        seen = [self.value(one) for one in seen]
        with torch.no_grad():
            for weight in weights:
                weight -= 0.1 * weight.grad
                weight.grad = None
        return seen, [self.value(weight) for weight in self.weights()]

    def value(self, tensor):
        if self.device is None:
            return tensor.tolist()
        return read_back(self.device, tensor.detach()).tolist()

    def prepare(self):
        """Change the model before it is captured."""

    def weights(self):
        return list(self.model.parameters())

    def call(self, x, number):
        return self.model(x)

    def add_gradients(self, x, number):
        loss = self.call(x, number).square().sum()
        loss.backward()
        return loss


def check(device, model, *, loop=Loop, **settings):
    """Train plainly on the host and captured on the device, compare; return the report."""
    plain = loop(model, None).train()
    with device.allow_waits():
        captured = loop(model, device, **settings)
        found = captured.train()
    assert plain == found
    report = gapless.capture_report(captured.model)
    assert report.num_replays + report.num_eager == NUM
    return report


@scenario(num_seeds=FEW)
def a_module_that_is_captured_in_place(device):
    """Random numbers and buffers go on as in the loop as written, and its capture is one wait."""
    waits = gapless.WaitStats()
    report = check(device, Scaled, wait_stats=waits)
    assert (report.num_replays, report.num_graphs, report.refusals) == (5, 1, [])
    assert {reason: wait.count for reason, wait in waits.by_reason.items()} == {"capture": 1}


class HoldsCompiledCode(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Scaled()
        self.part.compile(backend="eager")

    def forward(self, x):
        return self.part(x) * 2


@scenario(only=ONE)
def a_module_with_compiled_code(device):
    """What that writes is seen by an eager run, which leaves nothing."""
    report = check(device, HoldsCompiledCode)
    assert report.num_replays > 0
    assert report.refusals == []


# --- calls that no graph can take ---


def check_refused(device, model=Scaled, *, kind, words="", loop=Loop):
    """See that it runs as written, for one reason of this kind."""
    report = check(device, model, loop=loop)
    assert report.num_replays == 0
    assert [refusal.kind for refusal in report.refusals] == [kind], str(report)
    assert words in report.refusals[0].text


class HoldsAnOddClass(Loop):
    def prepare(self):
        class Classes(type):
            def __getattribute__(cls, name):
                if name == "__mro__":
                    raise RuntimeError("not known")
                return super().__getattribute__(name)

        self.held = Classes("Odd", (), {})()


@scenario(only=ONE)
def a_loop_whose_class_raises_when_it_is_looked_at(device):
    """Whether gradients are differentiated is not known then."""
    check_refused(device, kind="unreadable", words="raised RuntimeError", loop=HoldsAnOddClass)


class TakesAFactor(Scaled):
    def forward(self, x, factor):
        return super().forward(x) * factor


class FactorOnTheHost(Loop):
    def call(self, x, number):
        return self.model(x, torch.full((1,), float(number)))


@scenario(only=ONE)
def a_module_that_is_called_with_a_tensor_on_the_host(device):
    check_refused(device, TakesAFactor, kind="batch_on_host", loop=FactorOnTheHost)


class WithinAnomalyDetection(Loop):
    def add_gradients(self, x, number):
        with torch.autograd.set_detect_anomaly(True):
            return super().add_gradients(x, number)


@scenario(only=ONE)
def a_module_that_is_called_within_anomaly_detection(device):
    check_refused(device, kind="watched_by_mode", loop=WithinAnomalyDetection)


class WithinSavedTensorHooks(Loop):
    """What is saved for the backward pass is doubled."""

    def call(self, x, number):
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: tensor * 2.0, lambda tensor: tensor
        )
        with hooks:
            return super().call(x, number)


@scenario(only=ONE)
def a_module_that_is_called_within_saved_tensor_hooks(device):
    check_refused(
        device, kind="hook", words="inside saved-tensor hooks", loop=WithinSavedTensorHooks
    )


# --- modules that no graph can hold ---


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Scaled()
        self.factor = nn.Parameter(torch.randn(3))

    def forward(self, x):
        return self.inner(x * self.factor)


class Called(Loop):
    """Tells how often a hook was called."""

    def train(self):
        CALLS.clear()
        return super().train(), len(CALLS)


CALLS = []


def note(*_):
    CALLS.append(1)


class HookWithin(Called):
    def prepare(self):
        self.model.inner.register_full_backward_hook(note)


@scenario(only=ONE)
def a_module_with_a_hook_within(device):
    check_refused(
        device, Nested, kind="hook", words="its part inner (Scaled) has a hook", loop=HookWithin
    )


class SetsAHook(Scaled):
    def forward(self, x):
        out = super().forward(x)
        out.register_hook(note)
        return out.clone()


@scenario(only=ONE)
def a_module_that_sets_a_hook(device):
    check_refused(device, SetsAHook, kind="hook", words="sets a hook", loop=Called)


class Keeps(Scaled):
    """Reads what the call before has left."""

    last = None

    def forward(self, x):
        out = super().forward(x)
        if self.last is not None:
            out = out + self.last
        self.last = out.detach()
        return out


@scenario(only=ONE)
def a_module_that_keeps_a_tensor(device):
    check_refused(device, Keeps, kind="keeps_unknown", words="self.last")


class KeepsANumber(Scaled):
    """Sets what the loop sets back."""

    number = 0

    def forward(self, x):
        self.number = 3
        return super().forward(x)


class SetsItBack(Loop):
    def call(self, x, number):
        self.model.number = 0
        return super().call(x, number)


@scenario(only=ONE)
def a_module_that_keeps_a_number(device):
    check_refused(device, KeepsANumber, kind="keeps_unknown", words="number", loop=SetsItBack)


class ReturnsOneListTwice(Scaled):
    def forward(self, x):
        out = [super().forward(x)]
        return out, out


class TakesTheFirstOfIt(Loop):
    def call(self, x, number):
        return super().call(x, number)[0][0]


@scenario(only=ONE)
def a_module_that_returns_one_list_twice(device):
    """After a replay it would be two."""
    check_refused(
        device, ReturnsOneListTwice, kind="result", words="a builtins.list", loop=TakesTheFirstOfIt
    )


class PutsIntoItsDict(Scaled):
    def forward(self, batch):
        batch["feats"] = super().forward(batch["x"])
        return batch["feats"]


class GivesADict(Loop):
    def call(self, x, number):
        return super().call({"x": x}, number)


@scenario(only=ONE)
def a_module_that_puts_into_its_dict(device):
    """A replay would put nothing there."""
    check_refused(
        device, PutsIntoItsDict, kind="changes_batch", words="puts 'feats'", loop=GivesADict
    )


class ReturnsASet(Scaled):
    def forward(self, x):
        return super().forward(x), {1}


class ReturnsHostMemory(Scaled):
    def forward(self, x):
        return super().forward(x), torch.ones(1)


class TakesTheFirst(Loop):
    def call(self, x, number):
        return super().call(x, number)[0]


@scenario(only=ONE)
def a_module_that_returns_what_no_replay_can(device):
    """A set, and a tensor on the host."""
    check_refused(device, ReturnsASet, kind="result", words="a builtins.set", loop=TakesTheFirst)
    check_refused(
        device, ReturnsHostMemory, kind="result", words="not on the device", loop=TakesTheFirst
    )


def fails(*_, **settings):
    """Fail as a device does."""
    raise RuntimeError("mine")


@scenario(only=ONE)
def a_module_on_a_device_that_cannot_capture(device):
    """The error is what the report says."""
    device.capture = fails
    check_refused(device, kind="capture_failed", words="mine")


# --- changes after the capture ---


class MovesTheWeight(Loop):
    def call(self, x, number):
        if number == 5:
            (weight,) = self.weights()
            weight.data = on(self.device, weight.data)
        return super().call(x, number)


class Multiplies(Scaled):
    def forward(self, x):
        return torch.tanh(x * self.place.value())


class MovesAWeightThatIsNoParameter(MovesTheWeight):
    """The module finds it where no code names it."""

    def prepare(self):
        self.weight = self.model.weight
        del self.model.weight
        self.model.place = torch.futures.Future()
        self.model.place.set_result(self.weight)

    def weights(self):
        return [self.weight]


@scenario(only=ONE)
def a_module_whose_weight_is_moved(device):
    """Its graph reads the old memory, so there is a new one."""
    for model, loop in ((Scaled, MovesTheWeight), (Multiplies, MovesAWeightThatIsNoParameter)):
        report = check(device, model, loop=loop)
        assert report.num_replays > 0
        assert report.refusals == []


# --- backward passes that were not captured ---


class BackwardTwice(Loop):
    """From the sixth step on. Between, random numbers are drawn and a buffer is changed."""

    def add_gradients(self, x, number):
        loss = self.call(x, number).square().sum()
        loss.backward(retain_graph=number >= 5)
        if number >= 5:
            torch.rand(3)
            self.model.mean.add_(1.0)
            loss.backward()
        return loss


@scenario(num_seeds=VERY_FEW)
def a_second_backward_pass_of_a_replay(device):
    """The forward pass runs again, leaves random numbers and buffers as they are, and is one wait."""
    waits = gapless.WaitStats()
    report = check(device, Scaled, loop=BackwardTwice, wait_stats=waits)
    assert report.num_replays == 3
    found = {reason: wait.count for reason, wait in waits.by_reason.items()}
    assert found == {"capture": 1, "run_again": 1}
    assert [refusal.kind for refusal in report.refusals] == ["retain_graph"]


class HookOfAWeight(Called, BackwardTwice):
    def prepare(self):
        self.model.weight.register_hook(note)


@scenario(only=ONE)
def a_module_with_a_hook_of_a_weight(device):
    """A backward pass that runs again would call it once more."""
    check_refused(device, kind="hook", words="a weight has a hook", loop=HookOfAWeight)


# --- what is known of calls ---


class EverNewNumbers(Loop):
    """Tells of how many kinds of calls something is known."""

    def call(self, x, number):
        return self.model(x, float(number))

    def train(self):
        before = self.count()
        seen = super().train()
        self.num_seen = self.count() - before
        return seen

    def count(self):
        gc.collect()
        return sum(type(one) is SeenCalls for one in gc.get_objects())


@scenario(only=ONE)
def a_module_that_is_called_with_ever_new_numbers(device):
    """What is known of each kind of call is let go of at times, so memory stays bounded."""
    most, seen_calls._MOST_SEEN = seen_calls._MOST_SEEN, 3
    try:
        with device.allow_waits():
            loop = EverNewNumbers(TakesAFactor, device)
            loop.train()
    finally:
        seen_calls._MOST_SEEN = most
    assert gapless.capture_report(loop.model).num_eager == NUM
    assert 0 < loop.num_seen < NUM


class Asking(Scaled):
    """Branches on what autograd knows of its weight."""

    def forward(self, x):
        return x * self.weight * (2.0 if self.weight.is_leaf else 3.0)


@scenario(only=ONE)
def a_module_that_asks_for_the_nodes_of_its_call(device):
    """Those of a graph are others."""
    report = check(device, Asking)
    assert report.num_replays == 0
    assert "is_leaf" in report.refusal.text or "in_place.py" in report.refusal.text


# --- transforms, streams ---


class MapsItsBatch(Loop):
    """Calls its model on each row by `torch.func.vmap` in every second step."""

    def call(self, x, number):
        return torch.func.vmap(self.model)(x) if number % 2 else self.model(x)


class Plain(nn.Module):
    """One weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x):
        return torch.tanh(x * self.weight)


@scenario(only=ONE)
def a_module_within_a_transform(device):
    """Tensors of `torch.func` have no memory that a graph could read."""
    report = check(device, Plain, loop=MapsItsBatch)
    assert [refusal.kind for refusal in report.refusals] == ["watched_by_mode"]


@scenario(only=ONE)
def a_step_within_a_transform(device):
    """The same of a captured function."""
    weight = torch.ones(3, device=device.torch_device)
    step = gapless.capture(lambda row: (row * weight).sum(), device=device)
    for number in range(NUM):
        with device.allow_waits():
            rows = on(device, torch.full((4, 3), float(number)))
            found = read_back(device, torch.func.vmap(step)(rows))
        assert found.tolist() == [3.0 * number] * 4
    assert [refusal.kind for refusal in step.report.refusals] == ["watched_by_mode"]


_own_weights, _streams = [], []


class KnowsItsStream(Plain):
    """Notes the stream of each call that finds the weight that it was made with."""

    def forward(self, x):
        if any(self.weight is one for one in _own_weights):
            gapless_device = _streams[0]
            assert gapless_device.current_stream() is _streams[1]
        return super().forward(x)


class OnOneStream(Loop):
    """Sees that its model is called as written on its own stream."""

    def prepare(self):
        _own_weights[:], _streams[:] = [], []
        if self.device is not None:
            _own_weights.append(self.model.weight)
            _streams[:] = [self.device, self.device.current_stream()]


@scenario(only=ONE)
def a_module_whose_weights_keep_their_stream(device):
    """Autograd warns of weights that are used on another stream than at first."""
    report = check(device, KnowsItsStream, loop=OnOneStream)
    assert (report.num_graphs, report.refusals) == (1, []), str(report)


@scenario(only=ONE)
def updates_whose_rate_changes_at_every_step_are_graphs(device):
    """The rate of each step is the loop's own, and most steps run without torch's Python."""
    with device.allow_waits():
        weight = torch.nn.Parameter(on(device, torch.ones(3)))
        gradient = on(device, torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5, foreach=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    gapless.capture(optimizer, device=device)
    expected, velocity = 1.0, 0.0
    for number in range(16):
        weight.grad = gradient
        optimizer.step()
        schedule.step()
        velocity = 0.5 * velocity + 1.0 if number else 1.0
        expected -= velocity / (1 + number)
    assert torch.allclose(read_back(device, weight), torch.full((3,), expected))
    assert gapless.capture_report(optimizer).num_replays > 4


@scenario(only=ONE)
def updates_are_audited(device):
    """Each second one is compared with `step()`, which trains once, and counts on the host once."""
    seen = []
    for every in (None, 1, 2):
        with device.allow_waits():
            weight = torch.nn.Parameter(on(device, torch.ones(3)))
            gradient = on(device, torch.ones(3))
        optimizer = torch.optim.Adam([weight], lr=0.5, foreach=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
        if every is not None:
            gapless.capture(optimizer, device=device, audit_every=every)
        for _ in range(12):
            weight.grad = gradient
            optimizer.step()
            schedule.step()
        (state,) = optimizer.state.values()
        seen.append([read_back(device, weight).tolist(), state["step"].item()])
        if every is not None:
            audits = gapless.capture_report(optimizer).audits
            assert audits.num_equal > 0
            assert audits.differences == []
    assert seen[1:] == seen[:1] * 2
