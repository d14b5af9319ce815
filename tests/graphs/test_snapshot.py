"""Graphs that are captured ahead of a run leave everything as it was, whatever the step writes."""

from __future__ import annotations

import collections
import queue
import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

import gapless
from gapless.device.cpu import CpuDevice
from gapless.graphs.proof.python_state import PythonState
from gapless.graphs.proof.snapshot import Snapshot
from gapless.testing import SimulatedDevice


CALLS = 7
SWITCH, TALLY = {"number": 0}, 0


@pytest.fixture
def device():
    with SimulatedDevice() as device, device.allow_waits():
        yield device


class Training:
    """A step that writes beside weights and the state of its optimizer.

    Args:
        device: where it trains.
        writes: what it does beside, given the training and the loss.
        kind: of the optimizer.
    """

    total = 0

    def __init__(self, device, writes=None, kind=torch.optim.AdamW, **settings):
        torch.manual_seed(0)
        place = device.torch_device
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).to(place)
        self.second = nn.Linear(4, 4).to(place)
        self.norm = nn.BatchNorm1d(4).to(place)
        self.optimizer = kind(self.model.parameters(), lr=0.05, **settings)
        self.other = torch.optim.RMSprop(self.second.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.generator = torch.Generator(place)
        self.generator.manual_seed(3)
        self.seen, self.queue = torch.zeros(8, device=place), torch.zeros(8, 1, device=place)
        self.history, self.names, self.last = [], {"a"}, collections.deque([1], maxlen=4)
        self.array, self.count, self.first = np.zeros(3), 0, None
        self.draws = random.Random(5)
        self.writes = writes

    def step(self, x):
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.writes is not None:
            self.writes(self, x, loss.detach())
        return loss.detach()

    def written(self):
        """Return all that the step may write."""
        modules = [self.model, self.second, self.norm]
        tensors = [*modules[0].state_dict().values(), *modules[1].state_dict().values()]
        tensors += [*modules[2].state_dict().values(), self.seen, self.queue]
        plain = [self.history, sorted(self.names), list(self.last), self.array.tolist()]
        plain += [self.count, self.first, Training.total, dict(SWITCH), TALLY]
        plain += [self.draws.getstate(), self.generator.get_state().tolist()]
        plain += [self.schedule.state_dict(), [g["lr"] for g in self.optimizer.param_groups]]
        plain += [weight.requires_grad for weight in self.second.parameters()]
        gradients = [weight.grad is None for weight in self.second.parameters()]
        return [[one.tolist() for one in tensors], plain, gradients]


def second_network(training, x, loss):
    """Another network, by an optimizer of its own."""
    training.other.zero_grad()
    training.second(x).square().mean().backward()
    training.other.step()


def statistics(training, x, loss):
    """Running averages of a module that nobody gave to `capture`."""
    training.norm(x)


def buffer(training, x, loss):
    """A part of a buffer, by a view."""
    training.queue[2:4].copy_(x[:2, :1])


def generator(training, x, loss):
    """Random numbers of a generator of its own."""
    training.seen.add_(torch.rand(8, generator=training.generator, device=x.device))


def first_loss(training, x, loss):
    """What the first call finds, for good."""
    if training.first is None:
        training.first = loss.tolist()


def counts(training, x, loss):
    """Numbers on the host, wherever they are."""
    global TALLY
    training.count += 1
    Training.total += 1
    SWITCH["number"] += 1
    TALLY += 1


def containers(training, x, loss):
    """Containers, in place."""
    training.history.append(len(training.history))
    training.names.add("b")
    training.last.appendleft(2)
    training.array += 1.0


def schedule(training, x, loss):
    """A rate."""
    training.schedule.step()


def host_draws(training, x, loss):
    """Random numbers of the host."""
    random.random()
    training.draws.random()


def freezes(training, x, loss):
    """What needs gradients."""
    for weight in training.second.parameters():
        weight.requires_grad_(False)


WRITES = [
    second_network, statistics, buffer, generator, first_loss, counts, containers, schedule,
    host_draws, freezes,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _as_before():
    global TALLY
    yield
    Training.total, TALLY = 0, 0
    SWITCH["number"] = 0


def batches(device, num=CALLS):
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(4, 4, generator=draw).to(device.torch_device) for _ in range(num)]


def ahead(training, device, **settings):
    return gapless.capture(
        training.step,
        device=device,
        example_inputs=batches(device, 1),
        model=training.model,
        optimizer=training.optimizer,
        **settings,
    )


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("writes", WRITES, ids=lambda writes: writes.__name__)
def test_nothing_is_written(device, writes):
    """Though the step ran several times, as written and in a capture; also where it is refused."""
    training = Training(device, writes)
    before, state = training.written(), random.getstate()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ahead(training, device)

    assert training.written() == before
    assert random.getstate() == state


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("writes", WRITES, ids=lambda writes: writes.__name__)
def test_the_run_behind_it_is_that_of_the_loop_as_written(writes):
    """All losses, and all that is written."""
    found = []
    for is_ahead in (False, True):
        with SimulatedDevice() as device, device.allow_waits(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            training = Training(device, writes)
            step = ahead(training, device) if is_ahead else training.step
            losses = [step(x).item() for x in batches(device)]
            found.append((losses, training.written()))
        Training.total, globals()["TALLY"], SWITCH["number"] = 0, 0, 0

    assert found[0] == found[1]


OPTIMIZERS = [
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.NAdam, {}),
    (torch.optim.ASGD, {}),
    (torch.optim.Rprop, {}),
    (torch.optim.Adam, {}),
]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(("kind", "settings"), OPTIMIZERS)
def test_any_optimizer_is_put_back(kind, settings):
    """Whatever its state begins as; its graphs are replayed in the end."""
    found = []
    for is_ahead in (False, True):
        with SimulatedDevice() as device, device.allow_waits():
            training = Training(device, kind=kind, **settings)
            step = ahead(training, device) if is_ahead else training.step
            losses = [step(x).item() for x in batches(device, 12)]
            found.append((losses, training.written()))
            if is_ahead:
                assert step.report.num_replays > 0

    assert found[0] == found[1]


class Scaled(Training):
    """Scales its loss."""

    def __init__(self, device):
        super().__init__(device)
        self.scaler = torch.amp.GradScaler(
            device.torch_device.type, init_scale=8.0, growth_interval=2
        )

    def step(self, x):
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


@pytest.mark.parametrize("is_given", [False, True])
def test_a_scaler_is_put_back(is_given):
    """Whether it is given or found; it grows as in the loop as written."""
    found = []
    for is_ahead in (False, True):
        with SimulatedDevice() as device, device.allow_waits(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            training = Scaled(device)
            step = training.step
            if is_ahead:
                step = ahead(training, device, scaler=training.scaler if is_given else None)
                assert training.scaler.get_scale() == 8.0
            losses = [step(x).item() for x in batches(device)]
            found.append((losses, training.written(), training.scaler.get_scale()))

    assert found[0] == found[1]
    assert found[0][-1] > 8.0


def test_memory_that_compiled_code_has_made_is_not_kept():
    """It looks as if it had been there before, and is gone after the run."""
    device = CpuDevice()
    training = Training(device)
    snapshot = Snapshot(training.model, training.optimizer)
    snapshot.keep_reached_by(training.step, device)
    with snapshot.watching():
        with _disable_current_modes():
            made = torch.ones(8)
        made.mul_(2.0)
        training.seen.add_(made)
    memory = StorageWeakRef(made.untyped_storage())
    del made
    snapshot.forget_freed()
    snapshot.restore([])

    assert memory.expired()
    assert training.seen.tolist() == [0.0] * 8


def test_an_iterator_is_not_put_back(device):
    """So nothing runs ahead, which a note says; graphs are captured as batches come."""
    numbers = iter([1.0] * 50)
    training = Training(device, lambda training, x, loss: training.seen.add_(next(numbers)))

    step = ahead(training, device)

    assert len(list(numbers)) == 50
    assert "numbers" in step.report.note
    assert "captured as batches come" in step.report.note


def test_what_a_step_never_names_does_not_count(device):
    """An iterator beside it, such as that of the loader."""
    training = Training(device)
    training.loader = iter([1.0])

    assert ahead(training, device).report.num_graphs == 1


def test_what_threads_share_is_left_alone(device):
    """A thread may put something there meanwhile, which has to stay."""
    training = Training(device, lambda training, x, loss: training.ready.qsize())
    training.ready = queue.Queue()
    state = PythonState(training.step, [])

    training.ready.put(1)
    state.restore()

    assert training.ready.qsize() == 1


def test_what_cannot_be_captured_does_not_run_ahead(device):
    """Weights that are gathered in each call are of no use to a graph."""
    training = Training(device)
    kind = type("FSDPModule", (nn.Linear,), {"__module__": "torch.distributed.fsdp"})
    training.second.__class__ = kind

    step = ahead(training, device)

    assert "captured as batches come" in step.report.note
    assert step.report.num_steps == 0


def test_memory_that_does_not_suffice_for_copies(device, monkeypatch):
    """What was done is put back, and a note says so."""
    training = Training(device, second_network)
    before = training.written()

    def full(storage):
        raise torch.OutOfMemoryError("no memory")

    step = None
    with monkeypatch.context() as patched:
        patched.setattr("gapless.graphs.proof.snapshot._bytes_of", full)
        step = ahead(training, device)

    assert training.written() == before
    assert "captured as batches come" in step.report.note


def test_too_many_objects(device, monkeypatch):
    """Nobody can say what a step changes of them."""
    monkeypatch.setattr("gapless.graphs.proof.python_state._MOST_OBJECTS", 5)

    assert "too many" in PythonState(Training(device).step, []).objection
