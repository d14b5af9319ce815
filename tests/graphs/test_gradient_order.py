"""A step whose gradients are differentiated is captured once no thread's records overtake the other's any more."""

from __future__ import annotations

import gc

import pytest
import torch

import gapless
from backward_thread import backward_thread
from gapless.graphs.reads import gradient_order
from gapless.graphs.reads.gradient_order import GradientOrder, order_of
from gapless.loop.train_loop import TrainLoop
from gapless.testing.simulated.simulated_device import SimulatedDevice


# --- when it is settled ---


@pytest.mark.parametrize(
    ("of_loop", "of_autograd", "lead", "settled_at"),
    [
        (46, 65, 300, 27),  # overtaken in runs 14 to 19
        (46, 65, 0, 11),
        (65, 46, 300, 8),
        (65, 46, 0, 11),
        (50, 50, 300, 8),
        (50, 50, 0, None),  # side by side for ever
    ],
)
def test_it_is_settled_once_nobody_overtakes(monkeypatch, of_loop, of_autograd, lead, settled_at):
    """One thread has to lead for eight runs, and to lose nothing of its lead."""
    now = [lead, 0]
    monkeypatch.setattr(gradient_order, "numbers_of_next_nodes", lambda _: tuple(now))
    order, settled = GradientOrder(torch.device("cpu")), None
    for number in range(1, 40):
        with order.look():
            now[0] += of_loop
            now[1] += of_autograd
        if settled is None and not order.is_open:
            settled = number

    assert settled == settled_at


def test_what_differentiates_no_gradients_is_settled():
    """Autograd's own thread records nothing."""
    with backward_thread():
        order = GradientOrder(torch.device("cpu"))
        with order.look() as recorded:
            weight = torch.ones(1, requires_grad=True)
            weight.square().sum().backward()

    assert not recorded.by_autograd
    assert not order.is_open


# --- physics-informed networks ---


class Physics:
    """A network that is differentiated twice, and its training.

    Args:
        more: nodes that a step records besides.
    """

    def __init__(self, device, thread, *, lead, more=0):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh()]
        self.net = torch.nn.Sequential(*layers, torch.nn.Linear(8, 1)).to(device.torch_device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-2)
        self.inside = torch.rand(16, 2).to(device.torch_device).requires_grad_()
        self.more = more
        self.thread = thread
        thread.let_lead(lead)

    def derivative(self, u):
        return torch.autograd.grad(u, self.inside, torch.ones_like(u), create_graph=True)[0]

    def step(self):
        self.optimizer.zero_grad()
        u = self.net(self.inside)
        first = self.derivative(u)
        second = self.derivative(first[:, :1])[:, :1]
        loss = (first[:, 1:] + u * first[:, :1] - 0.1 * second).square().mean()
        for _ in range(self.more):
            loss = loss * 1.0
        loss.backward()
        self.optimizer.step()
        return loss

    def weights(self):
        return [weight.detach().to("cpu").tolist() for weight in self.net.parameters()]

    def calls(self, step, num):
        """Call the step; return, for each call, the weights behind it, and the nodes of both threads."""
        found = []
        for _ in range(num):
            here, there = self.thread.numbers()
            step()
            here_now, there_now = self.thread.numbers()
            found.append((self.weights(), (here_now - here, there_now - there)))
        return found


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


@pytest.fixture
def thread():
    with backward_thread() as thread:
        yield thread


both_ways = pytest.mark.parametrize(
    ("lead", "more"),
    [(60, 0), (-60, 0), (0, 40)],
    ids=["the loop is overtaken", "autograd leads", "autograd is overtaken"],
)


@both_ways
def test_a_network_that_is_differentiated_twice_trains_as_written(device, thread, lead, more):
    """Which thread leads decides bits: at each call they are those of the loop as written, replays among them."""
    plain = Physics(device, thread, lead=lead, more=more)
    written = plain.calls(plain.step, 40)
    physics = Physics(device, thread, lead=lead, more=more)
    step = gapless.capture(physics.step, device=device, audit_every=8)
    captured = physics.calls(step, 40)

    assert [weights for weights, _ in captured] == [weights for weights, _ in written]
    assert step.report.num_replays > 5
    assert step.report.audits.num_equal > 0


def test_the_lead_decides_bits(device, thread):
    """Else nothing here would be shown."""
    ahead, behind = (Physics(device, thread, lead=lead) for lead in (0, 0))
    thread.let_lead(10_000)
    led_by_the_loop = ahead.calls(ahead.step, 8)
    thread.let_lead(-10_000)
    led_by_autograd = behind.calls(behind.step, 8)

    assert led_by_the_loop[-1][0] != led_by_autograd[-1][0]


@both_ways
def test_until_it_is_settled_calls_record_what_the_loop_as_written_does(
    device, thread, lead, more
):
    """Plain, watched and looked at: as many nodes on each thread. Nothing is captured until then."""
    plain = Physics(device, thread, lead=lead, more=more)
    written = plain.calls(plain.step, 2)
    physics = Physics(device, thread, lead=lead, more=more)
    step = gapless.capture(physics.step, device=device)
    found = physics.calls(step, 3)
    while order_of(device).is_open and len(found) < 40:
        assert not step.report.num_graphs
        found += physics.calls(step, 1)

    assert 8 <= len(found) < 40
    assert {recorded for _, recorded in found} == {written[1][1]}


def test_calls_in_place_record_what_the_loop_as_written_does(device, thread):
    """Modules and optimizers, plain and watched, until their graphs are captured."""

    def trained(is_captured):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        model = model.to(device.torch_device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if is_captured:
            gapless.capture(model, optimizer, device=device)
        found = []
        for _ in range(3):  # The fourth call tries and proves a graph.
            here, there = thread.numbers()
            optimizer.zero_grad()
            model(torch.ones(3, 4).to(device.torch_device)).square().mean().backward()
            optimizer.step()
            here_now, there_now = thread.numbers()
            found.append((here_now - here, there_now - there))
        return found

    assert trained(is_captured=True) == trained(is_captured=False)


@pytest.mark.parametrize("num_before", [0, 8])
def test_nothing_else_is_captured_or_replayed_until_it_is_settled(device, thread, num_before):
    """A replay records nothing on the loop's thread, and so would move the moment of overtaking."""
    other = gapless.capture(lambda x: x.sin().cos(), device=device)
    x = torch.ones(4).to(device.torch_device)
    for _ in range(num_before):
        other(x)
    had = other.report.num_replays
    physics = Physics(device, thread, lead=60)
    step = gapless.capture(physics.step, device=device)
    while not order_of(device).is_open:
        step()
    while order_of(device).is_open and step.report.num_steps < 40:
        other(x)
        step()

    assert (had > 2) == (num_before > 0)
    assert step.report.num_steps > 10
    assert (step.report.num_graphs, other.report.num_replays) == (0, had)
    for _ in range(6):
        other(x)
    assert other.report.num_graphs == 1
    assert other.report.num_replays > had


@pytest.mark.parametrize("is_gone", [False, True])
def test_replays_before_it_change_no_bit(device, thread, is_gone):
    """They record nothing: without what they leave out, the loop would be overtaken much earlier than as written."""

    def trained(is_captured):
        physics = Physics(device, thread, lead=0)
        weight = torch.ones(4).to(device.torch_device).requires_grad_()

        def before():
            loss = weight.sin()
            for _ in range(20):
                loss = loss * 0.99
            loss.sum().backward()
            weight.grad = None
            return loss

        step = physics.step
        if is_captured:
            before = gapless.capture(before, device=device, audit_every=8)
            step = gapless.capture(step, device=device)
        for _ in range(20):
            before()
        if is_captured:
            assert before.report.num_replays > 10
        if is_gone:
            del before
            gc.collect()
        found = physics.calls(step, 1)
        here, there = thread.numbers()
        found += physics.calls(step, 89)
        return [weights for weights, _ in found], here - there, step

    written, lead, _ = trained(is_captured=False)
    found, lead_captured, step = trained(is_captured=True)

    assert lead_captured == lead
    assert found == written
    assert step.report.num_replays > 5


def test_audits_keep_the_lead(device, thread):
    """A step that loses of its lead by itself, and the rest of the loop, which is replayed, made up for that."""

    def trained(is_captured):
        physics = Physics(device, thread, lead=30)
        weight = torch.ones(4).to(device.torch_device).requires_grad_()

        def rest():
            loss = weight.sin()
            for _ in range(10):
                loss = loss * 0.99
            loss.sum().backward()
            weight.grad = None
            return loss

        step = physics.step
        if is_captured:
            step = gapless.capture(step, device=device, audit_every=1)
            rest = gapless.capture(rest, device=device)
        found = []
        for _ in range(40):
            step()
            rest()
            found.append(physics.weights())
        return found, step

    written, _ = trained(is_captured=False)
    found, step = trained(is_captured=True)

    assert found == written
    assert step.report.audits.num > 10
    assert not step.report.audits.differences


def test_what_never_settles_is_refused(device, thread, monkeypatch):
    """In one line, and what else there is may be captured again."""
    monkeypatch.setattr(gradient_order, "_MOST_LOOKS", 12)
    plain = Physics(device, thread, lead=0)
    ((_, (here, there)),) = plain.calls(plain.step, 1)
    physics = Physics(device, thread, lead=0, more=there - here)
    step = gapless.capture(physics.step, device=device)
    with pytest.warns(gapless.CaptureWarning, match="create_graph=True.*gapless.capture"):
        physics.calls(step, 20)
    other = gapless.capture(lambda x: x.sin().cos(), device=device)
    for _ in range(8):
        other(torch.ones(4).to(device.torch_device))

    assert not step.report.num_graphs
    assert [refusal.kind for refusal in step.report.refusals] == ["create_graph"]
    assert other.report.num_graphs == 1


def test_several_ranks_do_not_wait_for_it(device, thread):
    """Each has numbers of its own, and they capture together or not at all."""
    physics = Physics(device, thread, lead=60)
    step = gapless.capture(physics.step, device=device)
    step._captured.callee.consent.asks = True
    with pytest.warns(gapless.CaptureWarning, match="create_graph=True"):
        physics.calls(step, 12)

    assert [refusal.kind for refusal in step.report.refusals] == ["create_graph"]
    assert not step.report.num_graphs


def test_ahead_of_a_run_nothing_is_captured_and_no_lead_changes(device, thread):
    """The loop, not its examples, is what settles it."""
    physics = Physics(device, thread, lead=60)

    def step(x):
        return physics.step() * x

    step.changes_no_other_objects = True
    here, there = thread.numbers()
    with TrainLoop(plan="captured", device=device) as loop:
        report = loop.capture_ahead(
            [torch.ones(1).to(device.torch_device)],
            step,
            model=physics.net,
            optimizer=physics.optimizer,
        )
    here_now, there_now = thread.numbers()

    assert here_now - there_now == here - there
    assert not report.num_graphs
    assert "differentiated" in report.note
