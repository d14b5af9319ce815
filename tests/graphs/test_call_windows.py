"""Replays are compared with calls as written, and given up where they take longer."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise

import pytest
import torch
from torch import nn

import gapless
from gapless.graphs import account, call_windows
from gapless.graphs.entries import Entries
from gapless.graphs.in_place.module_calls import ModuleCalls
from gapless.graphs.modules.forward_runs import Runs
from gapless.graphs.proof.proof_verdict import Verdict
from gapless.pipeline.tree.call_tree import CallTrees
from gapless.records.replay_times import NUM_PAIRS
from gapless.testing import SimulatedDevice
from inner_doors import memory_fraction


pytestmark = pytest.mark.quick_tests(8)

# Calls after which all is decided: those before replays, and pairs with a call to read each.
ENOUGH = 3 + call_windows.NUM_BEFORE + NUM_PAIRS * (2 * call_windows.NUM_IN_WINDOW + 2) + 10


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device:
        yield device


def model_on(device):
    torch.manual_seed(0)
    return nn.Linear(4, 4).to(device.torch_device)


def x_of(device, number=0, rows=3):
    draw = torch.Generator().manual_seed(number)
    return torch.randn(rows, 4, generator=draw).to(device.torch_device)


class Loop:
    """Calls of a model, and what they take of the host's or the device's time, in milliseconds."""

    def __init__(self, device, model, *, host=(0.0, 0.0), on_device=(0.0, 0.0), **options):
        self.model = gapless.capture(model, device=device, **options)
        self._device, self._host, self._on_device = device, host, on_device
        self.were_replays = []

    @property
    def report(self):
        return gapless.capture_report(self.model)

    def run(self, num, *, rows=3):
        """Train so many times."""
        for _ in range(num):
            self.step(rows=rows)

    def step(self, *, rows=3, written_ms=None):
        """Train once; return whether it was a replay."""
        before = self.report.num_replays
        loss = self.model(x_of(self._device, len(self.were_replays), rows)).square().mean()
        is_replay = self.report.num_replays > before
        self._device.delay(self._device.current_stream(), self._on_device[is_replay])
        timeline = self._device.timeline
        timeline.pass_until(timeline.now_ms + self._host[is_replay], "loop")
        loss.backward()
        self.were_replays.append(is_replay)
        return is_replay

    @property
    def num_written(self):
        """Calls that ran as written after the first replay."""
        return self.were_replays[3:].count(False)


def test_replays_that_are_slower_on_the_device_are_given_up(device):
    """The report says so in one line with both times, and is no warning."""
    loop = Loop(device, model_on(device), on_device=(2.0, 3.0))

    loop.run(ENOUGH)

    (refusal,) = loop.report.refusals
    assert not any(loop.were_replays[-10:])
    assert refusal.kind == "does_not_pay"
    assert "3.000 ms with replays and 2.000 ms as written" in str(loop.report)


def test_a_device_that_works_off_replays_says_nothing_about_the_host(device):
    """As written the host is late; a few such calls hide behind the replays that it ran ahead by."""
    loop = Loop(device, model_on(device), host=(8.0, 3.9), on_device=(3.9, 4.0))

    loop.run(10)
    device.delay(device.current_stream(), 250.0)
    loop.run(2 * ENOUGH)

    assert all(loop.were_replays[-10:])
    assert loop.report.refusals == []


def test_one_pair_of_windows_is_enough_for_replays_that_pay(device):
    """All further calls are replays, by the function that there would be without a comparison."""
    loop = Loop(device, model_on(device), on_device=(3.0, 2.0))
    loop.run(2 * ENOUGH)
    captor = vars(loop.model)["_gapless_captor"]
    (step,) = captor._calls._steps.values()

    assert loop.num_written == call_windows.NUM_IN_WINDOW
    assert step.fast_path.call in [
        one.quick_call for entry in step.entries for one in entry.in_use
    ]


def test_nothing_is_compared_in_a_short_loop(device):
    """All its calls are replays, whatever they take."""
    loop = Loop(device, model_on(device), on_device=(1.0, 9.0))

    loop.run(3 + call_windows.NUM_BEFORE)

    assert loop.num_written == 0


def test_nothing_is_compared_where_ranks_could_decide_differently(device, monkeypatch):
    """Every rank replays."""
    distributed = torch.distributed
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    loop = Loop(device, model_on(device), on_device=(1.0, 9.0))

    loop.run(ENOUGH)

    assert loop.num_written == 0


def test_a_process_group_of_one_rank_compares(device, monkeypatch):
    """Nobody else decides."""
    distributed = torch.distributed
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 1)
    loop = Loop(device, model_on(device), on_device=(1.0, 9.0))

    loop.run(ENOUGH)

    assert not any(loop.were_replays[-10:])


def test_graphs_that_differ_within_a_tolerance_are_not_compared(device, monkeypatch):
    """Which way a call runs would show in its bits."""
    monkeypatch.setattr(Verdict, "repeats", property(lambda verdict: False))
    loop = Loop(device, model_on(device), on_device=(1.0, 9.0))

    loop.run(ENOUGH)

    assert loop.num_written == 0


def test_one_object_is_compared_at_a_time(device):
    """Calls as written of one do not lie between the calls of another that is compared."""
    loops = [Loop(device, model_on(device), on_device=(1.0, 1.1)) for _ in range(2)]
    both = 0
    for _ in range(2 * ENOUGH):
        ways = [loop.step() for loop in loops]
        both += ways.count(False) == 2 and all(not loop.report.refusals for loop in loops)

    assert both == 3  # before the first replays
    assert [loop.report.refusal.kind for loop in loops] == ["does_not_pay"] * 2


def test_an_object_that_is_let_go_in_the_middle_does_not_keep_others_waiting(device):
    """Nor is it kept alive."""
    first = Loop(device, model_on(device), on_device=(1.0, 1.1))
    first.run(3 + call_windows.NUM_BEFORE + 12)
    assert first.num_written
    kept = weakref.ref(first.model)
    del first
    gc.collect()
    second = Loop(device, model_on(device), on_device=(1.0, 1.1))

    second.run(ENOUGH)

    assert kept() is None
    assert not any(second.were_replays[-10:])


def test_calls_of_another_kind_have_graphs_all_the_same(device):
    """Replays are given up for the shapes for which they do not pay."""
    loop = Loop(device, model_on(device), on_device=(1.0, 1.1))
    loop.run(ENOUGH)

    loop.run(10, rows=5)

    assert loop.were_replays[-10:] == [False] * 3 + [True] * 7


def test_a_call_that_is_given_up_still_tells_evaluation_from_training(device):
    """Calls without gradients are compared for themselves."""
    loop = Loop(device, model_on(device), on_device=(1.0, 1.1))
    loop.run(ENOUGH)
    before = loop.report.num_replays

    with torch.no_grad():
        for _ in range(8):
            out = loop.model(x_of(device))

    assert loop.report.num_replays == before + 5
    assert not out.requires_grad


def test_memory_of_graphs_that_are_given_up_is_given_back(device):
    """The loop then holds what it holds as written."""
    model = model_on(device)
    model.requires_grad_(requires_grad=True)
    model(x_of(device)).square().mean().backward()
    gc.collect()
    before = device.reserved_memory_bytes()
    loop = Loop(device, model, on_device=(1.0, 1.1))

    loop.run(ENOUGH)

    gc.collect()
    assert device.reserved_memory_bytes() <= before


def test_no_room_no_comparison(device):
    """A call as written has activations of its own beside those of the graph."""
    held = device.reserved_memory_bytes()
    fraction = (held + 20_000) / device.total_memory_bytes()
    with memory_fraction(fraction):
        loop = Loop(device, model_on(device), on_device=(1.0, 1.1))
    loop.run(10)
    assert loop.were_replays[-1]
    filled = torch.zeros(30_000, dtype=torch.uint8, device=device.torch_device)

    loop.run(ENOUGH)

    assert filled.numel()
    assert loop.num_written == 0


def test_gradients_stay_where_an_optimizer_runs_as_written(device):
    """In windows that are compared, and after replays were given up: the loop may accumulate."""
    model = model_on(device)
    optimizer = gapless.capture(torch.optim.SGD(model.parameters(), lr=0.1), device=device)
    report, num_replays = gapless.capture_report(optimizer), []
    model(x_of(device)).square().mean().backward()
    gradients = [weight.grad for weight in model.parameters()]

    for _ in range(ENOUGH):
        optimizer.step()
        num_replays.append(report.num_replays)
        is_replay = len(num_replays) > 1 and num_replays[-1] > num_replays[-2]
        device.delay(device.current_stream(), 3.0 if is_replay else 2.0)
        model.bias.sum().item()

        assert all(one.grad is its for one, its in zip(model.parameters(), gradients, strict=True))

    assert report.refusal.kind == "does_not_pay"


# --- what is left alone ---

# Calls behind those, after which nothing of the object is captured any more.
LEFT = ENOUGH + call_windows._MANY_LEFT


@pytest.fixture
def for_good(monkeypatch):
    """What does not pay is not measured again."""
    monkeypatch.setattr(call_windows, "_BEFORE_NEXT", ())


@pytest.mark.usefixtures("for_good")
def test_a_module_whose_replays_do_not_pay_is_let_go_of(device):
    """Its calls are those of a module that was never captured; the report stays."""
    loop = Loop(device, model_on(device), on_device=(1.0, 1.1))

    loop.run(LEFT)

    assert "forward" not in vars(loop.model)
    assert [refusal.kind for refusal in loop.report.refusals] == ["does_not_pay"]
    num_steps = loop.report.num_steps
    loop.run(5)
    assert loop.report.num_steps == num_steps
    assert gapless.release(loop.model) is loop.model


@pytest.mark.usefixtures("for_good")
def test_an_optimizer_whose_replays_do_not_pay_is_let_go_of(device):
    """Likewise."""
    model = model_on(device)
    optimizer = gapless.capture(torch.optim.SGD(model.parameters(), lr=0.1), device=device)
    report = gapless.capture_report(optimizer)
    model(x_of(device)).square().mean().backward()

    for _ in range(LEFT):
        num_replays = report.num_replays
        optimizer.step()
        is_replay = report.num_replays > num_replays
        device.delay(device.current_stream(), 3.0 if is_replay else 2.0)
        model.bias.sum().item()

    assert "step" not in vars(optimizer)
    assert report.refusal.kind == "does_not_pay"


def test_what_did_not_pay_is_measured_again(device, monkeypatch):
    """Another process may have used the device at the time."""
    monkeypatch.setattr(call_windows, "_BEFORE_NEXT", (40,))
    loop = Loop(device, model_on(device), on_device=(1.0, 1.1))
    loop.run(ENOUGH)
    assert [one.kind for one in loop.report.refusals] == ["does_not_pay"]
    assert not any(loop.were_replays[-10:])

    loop._on_device = (1.0, 0.5)
    loop.run(40 + ENOUGH)

    assert all(loop.were_replays[-10:])
    assert loop.report.refusals == []


def test_what_never_pays_is_left_alone_for_longer_each_time(device, monkeypatch):
    """And for good at last."""
    monkeypatch.setattr(call_windows, "_BEFORE_NEXT", (40, 160))
    loop = Loop(device, model_on(device), on_device=(1.0, 1.1))

    loop.run(3 * ENOUGH + 40 + 160 + call_windows._MANY_LEFT)

    assert "forward" not in vars(loop.model)
    replayed = [number for number, is_replay in enumerate(loop.were_replays) if is_replay]
    gaps = [after - before for before, after in pairwise(replayed)]
    assert [gap for gap in gaps if gap > 2 * call_windows.NUM_IN_WINDOW + 10] == [
        pytest.approx(40, abs=25),
        pytest.approx(160, abs=25),
    ]


def test_a_method_that_did_not_pay_is_measured_again(device, monkeypatch):
    """Likewise."""
    monkeypatch.setattr(call_windows, "_BEFORE_NEXT", (40,))

    class Net(nn.Linear):
        def act(self, x):
            return self(x)

    loop = Loop(device, Net(4, 4).to(device.torch_device), on_device=(1.0, 1.1))
    forward, loop.model = loop.model, loop.model.act
    monkeypatch.setattr(Loop, "report", property(lambda _: gapless.capture_report(forward)))
    loop.run(ENOUGH + 10)
    assert not any(loop.were_replays[-10:])

    loop._on_device = (1.0, 0.5)
    loop.run(40 + ENOUGH)

    assert all(loop.were_replays[-10:])


def test_an_object_with_calls_that_wait_is_not_let_go_of(device):
    """They may be graphs once there is room."""
    loop = Loop(device, model_on(device), on_device=(1.0, 1.1))
    loop.run(ENOUGH)
    loop.run(1, rows=5)
    *_, waiting = vars(loop.model)["_gapless_captor"]._calls._windows._kinds.values()
    waiting.num_left = 2 * call_windows._MANY_LEFT

    for _ in range(call_windows._MANY_LEFT + 10):
        loop.step()
        loop.step(rows=5)

    assert "forward" in vars(loop.model)


@pytest.mark.usefixtures("for_good")
def test_calls_within_one_that_is_left_alone_are_a_part_of_it(device):
    """Methods of the module among them, which would else be captured for themselves."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def through(self, x):
            return self.layer(x)

        def forward(self, x):
            return self.through(x)

    loop = Loop(device, Net().to(device.torch_device), on_device=(1.0, 1.1))

    loop.run(ENOUGH)

    (method,) = vars(loop.model)["_gapless_captor"]._methods.values()
    assert method.calls is None
    loop.run(LEFT)
    assert not {"forward", "through"} & set(vars(loop.model))


class Slow(nn.Module):
    """A call of it takes so many milliseconds of the host."""

    def __init__(self, device, call_ms):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, device=device.torch_device))
        self._timeline, self._call_ms = device.timeline, call_ms

    def forward(self, x):
        self._timeline.pass_until(self._timeline.now_ms + self._call_ms, "call")
        return x * self.weight


@pytest.fixture
def looks(device, monkeypatch):
    """Return the calls that were looked at, each of which takes a tenth of a call as written."""
    of_call, found = Entries.of_call, []

    def counted(entries, tree):
        found.append(tree)
        device.timeline.pass_until(device.timeline.now_ms + 0.1, "looks")
        return of_call(entries, tree)

    monkeypatch.setattr(Entries, "of_call", counted)
    return found


def test_calls_that_wait_for_room_are_looked_at_now_and_then(device, monkeypatch, looks):
    """What that takes stays below a hundredth or so; the account counts them all the same."""
    monkeypatch.setattr(account, "ALLOWANCE_S", 0.0)
    monkeypatch.setattr(account, "SHARE", 0.0)
    monkeypatch.setattr(call_windows, "_MANY", 10)
    loop = Loop(device, Slow(device, 1.0))

    loop.run(400)

    assert loop.report.num_steps == 400
    assert 10 < len(looks) < 80
    assert account.account_of(device).as_written_s > 0.25


@pytest.fixture
def cell(device, monkeypatch):
    """Return the loop of a cell whose calls as written take a millisecond of the host."""

    def slow(as_written):
        def call(calls, args, kwargs):
            device.timeline.pass_until(device.timeline.now_ms + 1.0, "call")
            return as_written(calls, args, kwargs)

        return call

    monkeypatch.setattr(Runs, "as_written", slow(Runs.as_written))
    monkeypatch.setattr(ModuleCalls, "_call_as_written", slow(ModuleCalls._call_as_written))
    return Loop(device, model_on(device))


@pytest.mark.parametrize(("num_calls", "most_looks"), [(50, 0.25), (4, 1.0)])
def test_calls_beside_their_graph_are_left_alone_unless_replays_make_up_for_the_looks(
    device, looks, cell, num_calls, most_looks
):
    """A cell that is called many times before the backward pass has graphs for the first two of them."""
    num = 1200 // num_calls

    for _ in range(num):
        sum(cell.model(x_of(device)) for _ in range(num_calls)).sum().backward()

    assert len(looks) <= most_looks * cell.report.num_steps
    assert cell.report.num_replays >= num * (1.7 if num_calls == 4 else 0.1)


def test_what_calls_beside_their_graph_take_is_in_the_account(device, monkeypatch, looks, cell):
    """They run as written, and nothing more is learnt of them."""
    monkeypatch.setattr(call_windows, "_MANY", 10**6)

    for _ in range(20):
        sum(cell.model(x_of(device)) for _ in range(10)).sum().backward()

    assert cell.report.spent.beside_s == pytest.approx(0.0001 * cell.report.num_eager, rel=0.2)


def test_what_comes_before_a_call_is_known_is_no_time_as_written(device, monkeypatch):
    """A call begins when the loop makes it, and not when its kind is found."""
    monkeypatch.setattr(account, "ALLOWANCE_S", 0.0)
    monkeypatch.setattr(account, "SHARE", 0.0)
    of_call = CallTrees.of

    def slow(trees, args, kwargs):
        device.timeline.pass_until(device.timeline.now_ms + 0.5, "looks")
        return of_call(trees, args, kwargs)

    monkeypatch.setattr(CallTrees, "of", slow)
    loop = Loop(device, Slow(device, 100.0))

    loop.run(20)

    times = account.account_of(device)
    assert times.debt_s == pytest.approx(18 * 0.0005, rel=0.2)
    assert times.as_written_s == pytest.approx(18 * 0.1, rel=0.1)
