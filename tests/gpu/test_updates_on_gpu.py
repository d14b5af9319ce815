"""Captures in segments, and updates inside and between them, on a real GPU."""

from __future__ import annotations

import gc
import struct
from functools import partial

import pytest
import torch
from torch.nn import functional as F

import update_loops
from gapless.device.find import find_device
from gapless.graphs.updates.update_outside import Updates
from update_loops import (
    Trainee,
    halve_the_rate,
    train,
    train_both_ways,
)


pytestmark = pytest.mark.gpu

optim = torch.optim


@pytest.fixture
def device():
    device = find_device("cuda")
    with device.use_stream(device.create_stream()):
        yield device
        torch.cuda.synchronize()


# --- captures ---


def floats(count=4, value=0.0):
    return torch.full((count,), value, device="cuda")


def warm(work):
    """Load the kernels of some work."""
    work(lambda call: call())
    torch.cuda.synchronize()


def test_what_is_cut_out_runs_between_two_segments(device):
    """Each segment sees what was done before it, and empty ones are skipped without a warning."""
    x, calls = floats(), []

    def work(cut):
        cut(lambda: calls.append("first"))
        x.add_(1)
        y = x + 1
        cut(lambda: x.mul_(10))
        cut(lambda: calls.append("last"))
        x.add_(y)
        cut(lambda: calls.append("end"))

    warm(work)
    x.zero_()
    calls.clear()
    graph = device.capture(work)
    assert calls == []
    assert x.tolist() == [0.0] * 4
    graph.replay()
    graph.replay()

    assert calls == ["first", "last", "end"] * 2
    assert x.tolist() == [144.0] * 4


def test_random_numbers_go_on_over_a_cut(device):
    """Segments and what runs between them draw the numbers of the loop as written."""
    x, found = floats(64, 1.0), []
    parts = [floats(64) for _ in range(3)]

    def work(cut):
        parts[0].copy_(F.dropout(x, 0.5))
        cut(lambda: parts[1].uniform_())
        parts[2].copy_(F.dropout(x, 0.5))

    warm(work)
    graph = device.capture(work)
    for run in (lambda: work(lambda call: call()), graph.replay):
        torch.manual_seed(5)
        taken = []
        for _ in range(3):
            run()
            taken += [part.clone() for part in parts]
        found.append(torch.stack(taken))

    assert torch.equal(found[0], found[1])


def test_a_generator_of_its_own_goes_on_at_every_replay(device):
    """A generator that is named draws the numbers of the loop as written."""
    own = torch.Generator(device="cuda")
    x = floats(64)

    def work(cut):
        x.uniform_(generator=own)
        cut(lambda: x.add_(1))
        x.add_(torch.rand(64, device="cuda", generator=own))

    warm(work)
    graph = device.capture(work, generators=[own])
    found = []
    for run in (lambda: work(lambda call: call()), graph.replay):
        own.manual_seed(7)
        taken = []
        for _ in range(3):
            run()
            taken.append(x.clone())
        found.append(torch.stack(taken))

    assert torch.equal(found[0], found[1])


def read_now(x, cut):
    x[0].item()


def synchronize(x, cut):
    torch.cuda.synchronize()


def raise_at_once(x, cut):
    raise RuntimeError("no")


def leave_a_stream_behind(x, cut):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    torch.cuda.set_stream(side)
    x.add_(1)
    raise RuntimeError("no")


def never_join(x, cut):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.add_(1)


def synchronize_and_go_on(x, cut):
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        cut(lambda: None)


def cut_in_backward(x, cut):
    weight = x.clone().requires_grad_()
    hooked = weight * 2
    hooked.register_hook(lambda grad: cut(lambda: None))
    hooked.sum().backward()


FAILURES = [
    read_now,
    synchronize,
    raise_at_once,
    leave_a_stream_behind,
    never_join,
    synchronize_and_go_on,
    cut_in_backward,
]


@pytest.mark.parametrize("fail", FAILURES)
@pytest.mark.parametrize("num_cuts", [0, 2])
def test_a_failed_capture_leaves_nothing_behind(device, fail, num_cuts):
    """Generators, stream, memory pool and collector are as before, and nothing has run."""
    own = torch.Generator(device="cuda").manual_seed(3)
    x = floats(64, 1.0)

    def begin(cut):
        x.add_(F.dropout(x, 0.5))
        x.add_(torch.rand(64, device="cuda", generator=own))
        for _ in range(num_cuts):
            cut(lambda: None)
            x.add_(F.dropout(x, 0.5))

    def work(cut):
        begin(cut)
        fail(x, cut)

    warm(begin)
    stream, x0 = torch.cuda.current_stream(), x.clone()
    own_state, state = own.get_state(), torch.cuda.get_rng_state()
    with pytest.raises(RuntimeError):
        device.capture(work, generators=[own])

    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()
    assert gc.isenabled()
    assert torch.equal(x, x0)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.equal(own.get_state(), own_state)

    # The loop goes on as written: random numbers, memory, and another capture.
    begin(lambda call: call())
    expected = x.clone()
    x.copy_(x0)
    torch.cuda.set_rng_state(state)
    own.set_state(own_state)
    graph = device.capture(begin, generators=[own])
    graph.replay()
    assert torch.equal(x, expected)


@pytest.mark.parametrize("fail", [synchronize, synchronize_and_go_on, raise_at_once])
def test_a_capture_works_in_the_pool_of_one_that_failed(device, fail):
    """The graphs of before go on, and further ones are captured beside them."""
    x = floats(1 << 16, 1.0)
    outs = [floats(1 << 16) for _ in range(3)]

    def work_of(number):
        def work(cut):
            y = x * (number + 2)
            cut(lambda: x.add_(1))
            outs[number].copy_(F.dropout(y + x, 0.5))

        return work

    def spoiled(cut):
        work_of(0)(cut)
        fail(x, cut)

    warm(work_of(0))
    graphs = [device.capture(work_of(0))]
    for number in (1, 2):
        with pytest.raises(RuntimeError):
            device.capture(spoiled, like=graphs[-1])
        F.dropout(x, 0.5)
        graphs.append(device.capture(work_of(number), like=graphs[-1]))

    found = []
    as_written = [partial(work_of(number), lambda call: call()) for number in range(3)]
    for runs in (as_written, [graph.replay for graph in graphs]):
        x.fill_(1.0)
        torch.manual_seed(2)
        for run in runs:
            run()
        found.append([out.clone() for out in outs])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("fails", [False, True])
def test_casts_of_weights_do_not_cross_the_edge_of_a_capture(device, fails):
    """Autocast keeps no cast from before a capture for it, and none of it for later."""
    weight = torch.ones(16, 16, device="cuda", requires_grad=True)
    x, out = torch.ones(16, 16, device="cuda"), torch.empty(16, 16, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        x @ weight
        with torch.no_grad():
            weight.fill_(2.0)

        def work(cut):
            with torch.no_grad():
                out.copy_(x @ weight)
            if fails:
                raise KeyError

        if fails:
            with pytest.raises(KeyError):
                device.capture(work)
        else:
            graph = device.capture(work)
            graph.replay()
            assert out[0, 0].item() == 32.0
            with torch.no_grad():
                weight.fill_(3.0)
            graph.replay()
            assert out[0, 0].item() == 48.0
        with torch.no_grad():
            weight.fill_(4.0)
            assert (x @ weight)[0, 0].item() == 64.0


def test_a_capture_inside_a_capture_is_refused_without_harm(device):
    """The outer one goes on."""
    x = floats()

    def work(cut):
        x.add_(1)
        with pytest.raises(RuntimeError, match="inside a capture"):
            device.capture(lambda _: x.add_(1))

    x.add_(1)
    device.capture(work).replay()

    assert x.tolist() == [2.0] * 4


def test_a_graph_that_is_let_go_gives_its_memory_back(device):
    """At once, without a collection of garbage."""
    x = floats(1 << 22, 1.0)
    updates, weight = Updates(device), torch.ones(1 << 22, device="cuda", requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.1)

    def step():
        optimizer.zero_grad()
        (weight * x * x).sum().backward()
        optimizer.step()

    for _ in range(2):
        with updates.watch():
            step()
    optimizer.zero_grad()

    def work(cut):
        with updates.during_capture(cut):
            step()

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    gc.collect()
    gc.disable()
    try:
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        graph = device.capture(work)
        graph.replay()
        assert torch.cuda.memory_reserved() > before[1]
        del graph
        optimizer.zero_grad()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        after = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    finally:
        gc.enable()

    assert after[0] <= before[0]
    assert after[1] <= before[1]


# --- updates ---


def on_the_device(params, kind, **options):
    return kind(params, lr=torch.tensor(0.1, device="cuda"), **options)


INSIDE = {
    **update_loops.INSIDE,
    "SGD, fused, rate on the device": partial(on_the_device, kind=optim.SGD, fused=True),
    "Adam, fused, rate on the device": partial(on_the_device, kind=optim.Adam, fused=True),
    "Adam, capturable, rate on the device": partial(
        on_the_device, kind=optim.Adam, capturable=True
    ),
    **{
        f"{name}, capturable, {'foreach' if foreach else 'loop'}": partial(
            getattr(optim, name), lr=0.01, capturable=True, foreach=foreach
        )
        for name in (
            "Adam",
            "AdamW",
            "NAdam",
            "RAdam",
            "Adamax",
            "Adadelta",
            "RMSprop",
            "Rprop",
            "ASGD",
        )
        for foreach in (True, False)
    },
}


# Where nothing is said, a GPU has Adam over lists of weights.
BUT_RATES = {
    **update_loops.BUT_RATES,
    **{name: update_loops.OUTSIDE[name] for name in ("Adam", "Adam, two groups")},
}
OUTSIDE = {
    **{name: make for name, make in update_loops.OUTSIDE.items() if name not in BUT_RATES},
    "SGD, rate on the device": partial(on_the_device, kind=optim.SGD),
    "ASGD": partial(optim.ASGD, lr=0.01),
}


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


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_has_other_numbers_at_every_step_is_cut_out(device, name):
    """The real step runs in every replay, with the numbers that it has by then."""
    expected, found = train_both_ways(device, OUTSIDE[name], between=halve_the_rate)

    assert found.values == expected.values
    (captured,) = found.captured
    assert list(captured.outside) == [found.trainee.optimizer]


class Scaled(Trainee):
    """A step under a gradient scaler, whose gradients overflow now and then.

    Not in the first step: torch's fused SGD would take memory that nobody wrote for its momentum.
    """

    def __init__(self, device, make):
        super().__init__(device, make)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**15, growth_interval=1)

    def step(self):
        self.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = self.model(self.x).float().square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        with torch.no_grad():
            self.loss.copy_(loss)


def bits_of(values):
    """Return nested lists of numbers with NaN equal to itself."""
    if isinstance(values, list):
        return [bits_of(value) for value in values]
    return struct.pack("d", values)


@pytest.mark.parametrize("between", [None, halve_the_rate])
@pytest.mark.parametrize("name", ["SGD, fused", "AdamW, fused"])
def test_a_scaler_unscales_and_skips_at_every_replay(device, name, between):
    """Inside, and in part outside once the rate has changed."""
    expected, found = train_both_ways(device, INSIDE[name], between=between, kind=Scaled, num=14)

    assert bits_of(found.values) == bits_of(expected.values)
    assert found.trainee.scaler.get_scale() == expected.trainee.scaler.get_scale() < 2.0**29
    assert "grad_scale" not in vars(found.trainee.optimizer)
