"""What a loop changes between two replays is seen, also while it holds on to what was there."""

from __future__ import annotations

import pytest
import torch

from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import ChangesOnce, Training, on, train


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


class Changes(ChangesOnce):
    """Holds on to what it replaces, and reads all gradients after each step."""

    def __init__(self, device):
        super().__init__(device)
        self.held = []

    @property
    def first(self):
        return self.model[0]

    def new(self, tensor):
        return on(self.device, tensor.detach() * 0.5 + 0.1)

    def after(self, number):
        gradients = [weight.grad for weight in self.model.parameters()]
        return [gradient.clone() for gradient in gradients if gradient is not None]


class ReplacesAParameter(Changes):
    def change(self):
        self.held.append(self.first.weight)
        self.first.weight = torch.nn.Parameter(self.new(self.first.weight))


class SwapsTheDataOfOneWeight(Changes):
    def change(self):
        self.held.append(self.first.weight.data)
        self.first.weight.data = self.new(self.first.weight)


class TurnsTheDataOfOneWeight(Changes):
    """The memory stays where it is."""

    def __init__(self, device):
        super().__init__(device)
        self.model[0].weight.data = on(device, torch.ones(3, 3))
        self.model[0].bias.data = on(device, torch.ones(3))
        self.model[3].weight.data = on(device, torch.ones(1, 3))
        with torch.no_grad():
            self.model[0].weight[0] *= 2

    def change(self):
        self.first.weight.data = self.first.weight.data.t()


class AssignsAState(Changes):
    def change(self):
        self.held += self.model.parameters()
        state = self.model.state_dict()
        self.model.load_state_dict(
            {name: self.new(value) for name, value in state.items()}, assign=True
        )


class FreezesOneWeight(Changes):
    def change(self):
        self.first.weight.requires_grad_(False)


class AddsAHookToAModule(Changes):
    def change(self):
        self.first.register_forward_hook(lambda module, args, out: out * 2)


class AddsAHookToAWeight(Changes):
    def change(self):
        self.first.weight.register_hook(lambda gradient: gradient * 2)


class ReplacesOneMomentum(Changes):
    def change(self):
        state = self.optimizer.state[self.first.weight]
        self.held.append(state["momentum_buffer"])
        state["momentum_buffer"] = self.new(state["momentum_buffer"])


class TakesAWeightFromTheOptimizer(Changes):
    def change(self):
        self.held.append(self.group["params"].pop())


class ReplacesAGradient(Changes):
    """The step zeroes it first, so only what is read after it can differ."""

    def change(self):
        self.held.append(self.first.weight.grad)
        self.first.weight.grad = self.new(self.first.weight)


class LetsGoOfAGradient(Changes):
    def change(self):
        self.first.weight.grad = None


class KeepsGradients(Changes):
    """Those of one step stay as they were, whatever the next steps do."""

    def after(self, number):
        if number == 6:
            self.held += [weight.grad for weight in self.model.parameters()]
        return super().after(number) + [gradient.clone() for gradient in self.held]

    def change(self):
        pass


class ExchangesGradients(Changes):
    """Both are of one shape."""

    def __init__(self, device):
        super().__init__(device)
        self.model[0].weight.data = on(device, torch.ones(4, 3) * 0.3)
        self.extra = torch.nn.Parameter(on(device, torch.ones(4, 3) * 0.7))
        self.optimizer.add_param_group({"params": [self.extra]})

    def loss_of(self, batch):
        return super().loss_of(batch) + (batch @ self.extra.t()).square().mean()

    def change(self):
        one, other = self.first.weight, self.extra
        one.grad, other.grad = other.grad, one.grad

    def after(self, number):
        return [*super().after(number), self.extra.grad.clone()]


class AddsToGradientsThatAreNone(Changes):
    """The step leaves none, so it finds those that the loop has made."""

    def step(self, batch):
        loss = self.add_gradients(batch)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def change(self):
        for weight in self.model.parameters():
            weight.grad = self.new(weight)


class ReplacesASubmodule(Changes):
    def change(self):
        self.held.append(self.model[1])
        self.model[1] = torch.nn.ReLU()


class HasAListOfModules(Changes):
    def __init__(self, device):
        super().__init__(device)
        self.layers = torch.nn.ModuleList([torch.nn.Tanh(), torch.nn.Sigmoid()])

    def loss_of(self, batch):
        for layer in self.layers:
            batch = layer(batch)
        return super().loss_of(batch)


class EditsAListOfModules(HasAListOfModules):
    def change(self):
        self.layers[1] = torch.nn.ReLU()


class HasAListOfWeights(Changes):
    """Long enough to be compared as a whole, as any list of tensors is."""

    def __init__(self, device):
        super().__init__(device)
        self.scales = [
            torch.nn.Parameter(on(device, torch.full((1,), 0.5 + number / 10)))
            for number in range(12)
        ]

    def loss_of(self, batch):
        out = super().loss_of(batch)
        for number, scale in enumerate(self.scales):
            out = out * (scale + number / 10)
        return out


class ReplacesOneOfAList(HasAListOfWeights):
    def change(self):
        self.held.append(self.scales[3])
        self.scales[3] = torch.nn.Parameter(on(self.device, torch.ones(1)))


class AppendsToAList(HasAListOfWeights):
    def change(self):
        self.scales.append(torch.nn.Parameter(on(self.device, torch.ones(1))))


class WritesIntoAKeptTensor(Changes):
    """It stands in two places, of which the step reads the other one."""

    def __init__(self, device):
        super().__init__(device)
        self.level = self.seen = on(device, torch.ones(()))

    def loss_of(self, batch):
        return super().loss_of(batch) * self.seen

    def step(self, batch):
        loss = super().step(batch)
        self.level = self.seen = loss * 0.5 + 1
        return loss

    def change(self):
        self.level.zero_()


def kinds(of=Changes):
    """Return every class here that changes something."""
    found = [] if of is Changes or of.__name__.startswith("HasA") else [of]
    return found + [kind for sub in of.__subclasses__() for kind in kinds(sub)]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_a_change_between_replays_is_seen(device, kind):
    """Losses, gradients and weights are those of the loop as written."""
    found, plain = (train(kind, device, captured=captured) for captured in (True, False))

    assert (found.seen, found.weights) == (plain.seen, plain.weights)
    assert found.report.num_replays >= 3, found.report


def test_nothing_is_captured_twice_if_nothing_changes(device):
    """Guards on the same weights from several sides agree."""

    class ChangesNothing(HasAListOfWeights):
        def change(self):
            pass

    report = train(ChangesNothing, device, captured=True).report
    assert (report.num_graphs, report.num_replays) == (1, len(Training.data) - 3), report
