"""A graph's proof, and what it saves and restores, on a real GPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gapless.device.find import find_device
from gapless.device.numerics import set_numerics
from gapless.graphs.proof.device_state import DeviceState, RandomStates, unlike
from gapless.graphs.proof.packing import CHUNK_BYTES
from gapless.graphs.proof.same_results import prove
from gapless.graphs.reads.touched import TouchWatch


pytestmark = pytest.mark.gpu


@pytest.fixture
def device():
    device = find_device("cuda")
    with device.use_stream(device.create_stream()):
        yield device
        torch.cuda.synchronize()


def memory_of(tensors):
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


class Work:
    """A training step with dropout and buffers, its state, and a graph of it.

    Args:
        device: where it runs.
        make: returns the model's hidden layer.
    """

    def __init__(self, device, make=lambda: nn.Linear(64, 64)):
        torch.manual_seed(0)
        self.device = device
        self.model = nn.Sequential(
            make(), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 8)
        ).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, capturable=True)
        self.batch = torch.randn(32, 64, device="cuda")
        self.scale = 1.0
        for _ in range(2):
            self.step()
        with TouchWatch(device) as self.seen:
            self.step()
        made = []
        self.graph = device.capture(lambda _: made.append(self.step()))
        self.made = made[0]
        self.grads = [weight.grad for weight in self.model.parameters()]

    def step(self):
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.model(self.batch).square().mean() * self.scale
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def replay(self):
        self.graph.replay()
        return self.made

    def prove(self):
        state = DeviceState(self.seen.written, self.device)
        return prove(
            self.device,
            state,
            replay=self.replay,
            as_written=self.step,
            reset=lambda: None,
            nondeterministic=self.seen.nondeterministic,
        )

    def values(self):
        tensors = [*self.model.state_dict().values()]
        for state in self.optimizer.state.values():
            tensors += state.values()
        return [tensor.cpu() for tensor in tensors]


def arrived(verdict):
    torch.cuda.synchronize()
    assert verdict.arrived()
    return verdict


def test_a_graph_that_repeats_its_step_is_proved(device):
    """One step's work is left: weights, buffers, the optimizer's state, random numbers, loss."""
    set_numerics(device, "fp32", deterministic=True)
    results = []
    for run in (Work.step, lambda work: work.prove()):
        work = Work(device)
        torch.manual_seed(3)
        found = run(work)
        loss, verdict = found if isinstance(found, tuple) else (found, None)
        results.append([loss.cpu(), *work.values(), torch.rand(4, device="cuda").cpu()])
    arrived(verdict)

    assert (verdict.holds, verdict.repeats, verdict.text) == (True, True, "")
    assert all(map(torch.equal, *results))


def test_nobody_waits_for_a_proof(device):
    """Neither for the copies nor for the verdict."""
    work = Work(device)
    work.prove()
    torch.cuda.synchronize()
    device.delay(device.current_stream(), 200.0)

    with device.forbid_waits():
        verdict = work.prove()[1]
        early = verdict.arrived()

    assert not early
    assert arrived(verdict).holds


class AddsInAnyOrder(nn.Module):
    """Adds many rows to few places, by atomic operations."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))
        self.places = nn.Buffer(torch.randint(0, 4, (100_000,)))

    def forward(self, x):
        y = x @ self.weight
        rows = torch.linspace(0.1, 1.1, len(self.places), device=y.device)
        sums = y.new_zeros(4, 64).index_add(0, self.places, rows.unsqueeze(1).expand(-1, 64))
        return y * sums.mean(dim=0) / 1000


def test_a_step_that_does_not_repeat_itself_is_compared_within_its_own_spread(device):
    """Atomic additions in another order are no reason to refuse a graph; another number is."""
    set_numerics(device, "fp32", deterministic=False)
    work = Work(device, AddsInAnyOrder)

    verdicts = [arrived(work.prove()[1]) for _ in range(5)]
    work.scale = 1.01
    wrong = arrived(work.prove()[1])

    assert [verdict.holds for verdict in verdicts] == [True] * 5, [v.text for v in verdicts]
    assert not all(verdict.repeats for verdict in verdicts)
    assert all("aten.index_add" in verdict.text for verdict in verdicts if not verdict.repeats)
    assert not wrong.holds


# --- what a run touches ---


def test_backward_passes_in_other_threads_are_seen(device):
    """Gradients, running averages and the optimizer's state are written; weights too."""
    work = Work(device)
    buffers = [*work.model.buffers()]
    state = [value for state in work.optimizer.state.values() for value in state.values()]
    expected = memory_of([*work.model.parameters(), *work.grads, *buffers, *state])

    assert memory_of(work.seen.written) == expected
    assert not memory_of([work.batch]) & memory_of(work.seen.written)
    assert memory_of([work.batch]) <= memory_of(work.seen.read)


def recurrent():
    torch.manual_seed(0)
    model = nn.LSTM(32, 32, num_layers=2, dropout=0.5).cuda()
    batch = torch.randn(5, 4, 32, device="cuda")
    return lambda: model(batch)[0].detach()


def test_random_numbers_of_recurrent_layers_are_put_back(device):
    """The state of cuDNN's is in memory that a run writes; the rest is the generator's."""
    step = recurrent()
    step()
    with TouchWatch(device) as seen:
        step()
    state = DeviceState(seen.written, device)
    state.save()
    first = [step(), step()]
    state.restore()
    with device.forbid_waits():
        again = [step(), step()]

    assert all(map(torch.equal, first, again))
    assert not torch.equal(*first)


def test_generators_that_a_graph_knows_are_put_back(device):
    """The device's own, and another: replays and runs as written draw the same afterwards."""
    other = torch.Generator("cuda").manual_seed(7)
    x = torch.zeros(1000, device="cuda")

    def work(_=None):
        x.uniform_()
        x.add_(torch.rand(1000, device="cuda", generator=other))

    work()
    graph = device.capture(work, generators=[other])
    states = RandomStates(device, [other])
    before = states.read()
    results = []
    for run in (graph.replay, work, graph.replay):
        run()
        results.append(x.clone())
        after = states.read()
        states.write(before)

    assert all(torch.equal(results[0], result) for result in results)
    assert len(unlike(before, after)) == 2
    assert unlike(before, states.read()) == []


# --- what is kept ---


def test_large_and_odd_tensors_are_put_back(device):
    """More than one chunk, all widths, in the memory where they were."""
    tensors = [
        torch.randn(CHUNK_BYTES // 4 + 1001, device="cuda"),
        torch.randn(33, device="cuda", dtype=torch.float16),
        torch.randn(7, device="cuda").to(torch.float8_e4m3fn),
        torch.tensor([True, False, True, True, False], device="cuda"),
        torch.randn(6, 5, device="cuda", dtype=torch.complex64).t(),
        torch.tensor([float("nan"), -0.0, float("inf")], device="cuda", dtype=torch.float64),
        torch.randn(10_000, device="cuda", dtype=torch.bfloat16)[3:9_001],
    ]
    before = [tensor.clone() for tensor in tensors]
    state = DeviceState(tensors, device)
    state.save()
    first = state.checksum()
    for tensor in tensors:
        tensor.zero_()
    zero = state.checksum()
    state.restore()
    again = state.checksum()

    pairs = zip(before, tensors, strict=True)
    assert all(torch.equal(bits(a), bits(b)) for a, b in pairs)
    # Sums of floating-point numbers of several rows come in any order.
    assert torch.equal(first[:, 0], again[:, 0])
    numbers = [found[:, 1:].contiguous().view(torch.float64) for found in (first, again)]
    assert torch.allclose(*numbers, rtol=1e-9, equal_nan=True)
    assert (first[:, 0] != zero[:, 0]).all()


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def test_what_a_proof_costs(device, record_property):
    """Times of saving, restoring and comparing 1 GiB, for the record."""
    tensors = [torch.randn(1 << 20, device="cuda") for _ in range(256)]
    state = DeviceState(tensors, device)
    calls = {"save": state.save, "checksum": state.checksum, "restore": state.restore}
    for name, call in calls.items():
        call()  # memory is made
        start, end = (device.create_event(timed=True) for _ in range(2))
        device.record_event(start, device.current_stream())
        call()
        device.record_event(end, device.current_stream())
        torch.cuda.synchronize()
        record_property(f"{name} of 1 GiB, ms", device.elapsed_ms(start, end))

    assert state.num_bytes == 1 << 30


# --- captures that fail ---


def draws(device, *, tries):
    """Return what dropout gives in a plain loop, with a capture that fails in the middle or not."""
    torch.manual_seed(11)
    dropout, x = nn.Dropout(0.5), torch.ones(4096, device="cuda")
    found = [dropout(x)]
    if tries is not None:
        with pytest.raises(RuntimeError):
            device.capture(lambda _: tries(dropout(x)))
    found += [dropout(x), dropout(x)]
    return [tensor.cpu() for tensor in found]


def reads(x):
    x.sum().item()


def raises(x):
    raise RuntimeError("mine")


def spoils(x):
    """Wait in a way that torch does not see, so that CUDA ends the capture."""
    torch.cuda.synchronize()


@pytest.mark.parametrize("tries", [reads, raises, spoils])
def test_a_capture_works_after_one_that_fails(device, tries):
    """With dropout in it, and it draws what a run as written draws."""
    draws(device, tries=tries)
    dropout, x, made = nn.Dropout(0.5), torch.ones(4096, device="cuda"), []
    graph = device.capture(lambda _: made.append(dropout(x)))
    torch.manual_seed(4)
    expected = dropout(x)
    torch.manual_seed(4)

    graph.replay()

    assert torch.equal(expected, made[0])
