"""A new graph is compared with its step, and nothing of the comparison is left behind."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from gapless.device.cpu import CpuDevice
from gapless.errors import GaplessError
from gapless.graphs.proof import packing
from gapless.graphs.proof.device_state import DeviceState, unlike
from gapless.graphs.proof.same_results import NotProved, prove
from gapless.graphs.reads.touched import TouchWatch
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import on, read_back


pytestmark = pytest.mark.quick_tests(50)


@pytest.fixture(params=["asap", "lazy", "random"])
def device(request):
    with (
        SimulatedDevice(scheduler=request.param) as device,
        device.use_stream(device.create_stream()),
    ):
        yield device
        assert not device.report.races, device.report


class Work:
    """A step with state on the device, and a graph of it.

    Args:
        device: where it runs.
        lr: of the run as written.
        graph_lr: what the graph was captured with.
    """

    def __init__(self, device, *, lr=0.1, graph_lr=0.1):
        torch.manual_seed(0)
        self.device = device
        self.weights = [torch.nn.Parameter(on(device, torch.randn(5, 3))) for _ in range(3)]
        self.optimizer = torch.optim.SGD(self.weights, lr=graph_lr, momentum=0.9)
        self.batch = on(device, torch.randn(3, 4))
        self.num_resets = 0
        self.step()
        with TouchWatch(device) as seen:
            self.step()
        self.state = DeviceState(seen.written, device)
        made = []
        self.graph = device.capture(lambda _: made.append(self.step()))
        self.made = made[0]
        self.optimizer.param_groups[0]["lr"] = lr

    def step(self):
        self.optimizer.zero_grad(set_to_none=False)
        loss = sum(
            torch.nn.functional.dropout(weight @ self.batch, 0.3).square().sum()
            for weight in self.weights
        )
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def replay(self):
        self.graph.replay()
        return self.made

    def reset(self):
        self.num_resets += 1

    def prove(self, **changes):
        calls = {"replay": self.replay, "as_written": self.step, "reset": self.reset, **changes}
        return prove(self.device, self.state, **calls)

    def values(self):
        return [read_back(self.device, weight) for weight in self.weights]


def arrived(verdict, device):
    while not verdict.arrived():
        device.spend("host")
    return verdict


def same(tensors, others):
    return all(map(torch.equal, tensors, others))


# --- the proof of a graph ---


def test_a_graph_that_repeats_its_step_is_proved(device):
    """Weights, momenta, random numbers and the loss are those of the step as written."""
    work = Work(device)

    out, verdict = work.prove()
    arrived(verdict, device)

    assert (verdict.holds, verdict.repeats, verdict.text) == (True, True, "")
    assert out is not work.made
    assert work.num_resets == 2


def test_a_proof_leaves_what_one_step_leaves(device):
    """Also the random numbers that come next."""
    works = [Work(device), Work(device)]
    results = []
    for work, run in zip(works, (Work.step, lambda work: work.prove()[0]), strict=True):
        torch.manual_seed(3)
        loss = run(work)
        results.append([read_back(device, loss), *work.values(), torch.rand(4)])

    assert same(*results)


def test_a_graph_with_another_number_is_refused(device):
    """A rate that the graph keeps shows in the weights, and not in the loss."""
    work = Work(device, lr=0.05)

    _, verdict = work.prove()
    arrived(verdict, device)

    assert (verdict.holds, verdict.repeats) == (False, True)
    assert "a replay gives other bits than the step as written: " in verdict.text
    assert "result" not in verdict.text


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda work: work.made + 1, "result 1"),
        (lambda work: (work.made, 1.0), "the structure"),
        (lambda work: (work.made, torch.rand(2))[0], "torch's random numbers on the host"),
        (lambda work: (work.made, random.random())[0], "Python's random numbers"),
        (lambda work: (work.made, np.random.rand(1))[0], "numpy's random numbers"),  # noqa: NPY002
        (lambda work: torch.zeros(2, 2), "the structure"),
    ],
)
def test_what_else_a_graph_does_otherwise_is_named(device, change, named):
    """What it returns, and the random numbers that it takes."""
    work = Work(device)

    _, verdict = work.prove(replay=lambda: (work.graph.replay(), change(work))[1])
    arrived(verdict, device)

    assert not verdict.holds
    assert named in verdict.text


def test_results_on_the_host_are_compared(device):
    """By their bits: these differ in the sign of a zero."""
    results = iter([torch.tensor([0.0]), torch.tensor([-0.0]), torch.tensor([-0.0])])
    state = DeviceState([], device)

    _, verdict = prove(
        device,
        state,
        replay=lambda: next(results),
        as_written=lambda: next(results),
        reset=lambda: None,
    )
    arrived(verdict, device)

    assert (verdict.holds, verdict.repeats) == (False, True)
    assert "a tensor on the host that it returns" in verdict.text


def test_plain_results_that_differ_from_run_to_run_prove_nothing(device):
    """No order of additions changes them: something on the host does, which a replay leaves out."""
    state = DeviceState([torch.ones(2, device=device.torch_device)], device)
    numbers = iter(range(9))

    _, verdict = prove(
        device,
        state,
        replay=lambda: 0,
        as_written=lambda: next(numbers),
        reset=lambda: None,
        nondeterministic=["aten.index_add"],
    )

    assert not arrived(verdict, device).holds
    assert "plain values of what it returns" in verdict.text


def test_results_on_their_way_to_the_host_are_not_read(device):
    """Page-locked memory is written when the copy comes to it."""
    x = on(device, torch.ones(4))
    pinned = device.host_buffer(16, pinned=True).view(torch.float32)

    def step():
        device.copy(pinned, x)
        return pinned

    state = DeviceState([x], device)
    _, verdict = prove(device, state, replay=step, as_written=step, reset=lambda: None)

    assert arrived(verdict, device).holds


def test_results_may_be_larger_than_the_state(device):
    """Each bit of them counts."""
    x, numbers = on(device, torch.ones(4)), iter([1, 2, 2])

    def step():
        out = x.repeat(5000)
        out[-1] = next(numbers)
        return out

    state = DeviceState([x], device)
    _, verdict = prove(device, state, replay=step, as_written=step, reset=lambda: None)

    assert not arrived(verdict, device).holds


def test_results_in_parts_may_have_other_shapes(monkeypatch):
    """A sparse tensor with more elements is another one."""
    monkeypatch.setattr(packing, "CHUNK_BYTES", 4096)
    device, counts = CpuDevice(), iter([1, 2000, 2000])

    def step():
        return torch.ones(1, next(counts)).to_sparse().sparse_resize_((1, 4000), 2, 0)

    state = DeviceState([], device)
    _, verdict = prove(device, state, replay=step, as_written=step, reset=lambda: None)

    assert arrived(verdict, device).holds is False


def test_a_proof_keeps_no_memory(device):
    """Neither the copy of the state nor what the runs returned."""
    work = Work(device)
    device.release_cached_memory()
    before = device.reserved_memory_bytes()
    verdict = work.prove()[1]
    device.release_cached_memory()

    assert device.reserved_memory_bytes() == before
    assert arrived(verdict, device).holds


def test_nobody_waits_for_a_verdict(device):
    """It is not there at once, and asking for it never waits."""
    work = Work(device)
    before = len(device.waits)

    with device.forbid_waits():
        verdict = work.prove()[1]
        if "lazy" in device.describe():
            assert not verdict.arrived()
            with pytest.raises(GaplessError, match="has not arrived"):
                _ = verdict.holds
        arrived(verdict, device)

    assert len(device.waits) == before


def test_an_error_of_the_step_reaches_the_caller_and_changes_nothing(device):
    """The state is as before, random numbers too."""
    work = Work(device)
    before, numbers = work.values(), torch.get_rng_state()

    def fails():
        work.step()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        work.prove(as_written=fails)

    assert same(before, work.values())
    assert torch.equal(numbers, torch.get_rng_state())


def test_without_memory_nothing_runs(device):
    """The copy would lead past the budget."""
    work = Work(device)
    with pytest.raises(NotProved, match="must fit in the memory budget of 10 bytes"):
        prove(
            device,
            work.state,
            replay=pytest.fail,
            as_written=pytest.fail,
            reset=pytest.fail,
            memory_budget_bytes=10,
        )


def test_a_proof_that_runs_out_of_memory_leaves_nothing(device):
    """The step can then run as if nothing had been tried."""
    work = Work(device)
    before = work.values()

    def fails():
        work.step()
        raise torch.OutOfMemoryError

    with pytest.raises(NotProved, match="does not fit in the device's memory"):
        work.prove(as_written=fails)

    assert same(before, work.values())


# --- steps that do not repeat their own bits ---


class Noisy(Work):
    """A step whose results differ from run to run in their last bits.

    Args:
        noise: of every run from the capture on, for the first weight and the second, in last bits.
    """

    def __init__(self, device, noise, **settings):
        self.noise = iter([(0, 0), (0, 0), *noise])
        super().__init__(device, **settings)

    def step(self):
        loss = super().step()
        with torch.no_grad():
            for weight, last_bits in zip(self.weights, next(self.noise), strict=False):
                weight.view(torch.int32)[:2].add_(last_bits)
        return loss


NOISE = [(1, 0), (3, 0), (2, 0), (2, 0), (3, 0)]


@pytest.mark.parametrize("times", [1, 1000])
def test_a_step_that_does_not_repeat_itself_is_compared_within_its_own_spread(device, times):
    """Its tensors are named, and the graph is used."""
    work = Noisy(device, [(times * first, 0) for first, _ in NOISE])

    _, verdict = work.prove()
    arrived(verdict, device)

    assert (verdict.holds, verdict.repeats) == (True, False)
    assert verdict.text == (
        "the step as written does not give the same bits twice: a float32 tensor of shape 5x3; a "
        "replay differs no more than that"
    )


def test_a_result_that_differs_by_more_than_rounding_is_decided_by_something_unseen(device):
    """The graph has one of its values for good; where the operators may do that, it is used."""
    drawn = iter([1.0, 1.0, 1.0, 2.0, 3.0, 2.0, 3.0])

    class Draws(Work):
        def step(self):
            return super().step() * next(drawn)

    verdict = arrived(Draws(device).prove()[1], device)

    assert (verdict.holds, verdict.repeats) == (False, False)
    assert verdict.text.startswith(
        "two runs as written from one state differ by more than rounding"
    )
    assert "result 1" in verdict.text


def test_tensors_in_which_two_runs_happen_to_agree_may_be_rounded_otherwise(device):
    """If the step does not repeat itself elsewhere; else every bit counts."""
    texts = []
    for noise in ([(1, 1), (3, 0), (2, 0)], [(0, 1), (0, 0), (0, 0)]):
        work = Noisy(device, noise)
        verdict = arrived(work.prove()[1], device)
        texts.append((verdict.holds, verdict.repeats))

    assert texts == [(True, False), (False, True)]


@pytest.mark.parametrize(
    ("noise", "holds", "repeats", "text"),
    [
        (
            [(3, 0), *[(0, 0)] * 4],
            True,
            False,
            "the step as written need not give the same bits twice (aten.index_add); a replay "
            "differs no more than that",
        ),
        (
            [(1 << 20, 0), *[(0, 0)] * 4],
            False,
            False,
            "a replay gives other bits than the step as written: a float32 tensor of shape 5x3; "
            "the step as written need not give the same bits twice (aten.index_add)",
        ),
        (
            [(1 << 15, 0), (0, 0), (0, 0), (1 << 14, 0), (0, 0)],
            True,
            False,
            "the step as written does not give the same bits twice (aten.index_add): a float32 "
            "tensor of shape 5x3; a replay differs no more than that",
        ),
        ([(0, 0)] * 5, True, True, ""),
    ],
)
def test_runs_that_agree_by_chance_prove_nothing(device, noise, holds, repeats, text):
    """Where operators are known that may give other bits each time; they are named."""
    work = Noisy(device, noise)

    _, verdict = work.prove(nondeterministic=["aten.index_add"])
    arrived(verdict, device)

    assert (verdict.holds, verdict.repeats, verdict.text) == (holds, repeats, text)


@pytest.mark.parametrize("known", [[], ["aten.index_add"]])
@pytest.mark.parametrize("changes", [{"lr": 0.0999}, {"lr": 1e-8, "graph_lr": 0.0}])
def test_a_step_that_does_not_repeat_itself_still_shows_another_number(device, changes, known):
    """Another rate, or an update that is missing and would hardly change anything."""
    work = Noisy(device, NOISE, **changes)

    _, verdict = work.prove(nondeterministic=known)
    arrived(verdict, device)

    assert (verdict.holds, verdict.repeats) == (False, False)


# --- the state of a device ---


def tensors_of_many_kinds(device):
    base = on(device, torch.randn(40))
    whole = on(device, torch.randn(6, 6))
    return {
        "weight": on(device, torch.randn(7)).requires_grad_(),
        "half": on(device, torch.randn(5).half()),
        "bfloat16": on(device, torch.randn(5).bfloat16()),
        "float8": on(device, torch.randn(3)).to(torch.float8_e4m3fn),
        "complex": on(device, torch.randn(3, 2)).view(torch.complex64),
        "bool": on(device, torch.tensor([True, False, True])),
        "int": on(device, torch.arange(4)),
        "view": base[3:9],
        "overlapping view": base[5:12],
        "transposed": whole.t()[1:, ::2],
        "empty": on(device, torch.zeros(1))[:0],
        "scalar": on(device, torch.randn(())),
        "infinite": on(device, torch.tensor([float("nan"), float("inf"), -0.0])),
    }


def bits(device, tensor):
    return read_back(device, tensor.detach().contiguous().view(torch.uint8))


def test_all_kinds_of_tensors_are_put_back(device):
    """Bit for bit, without a new version, and with nothing changed beside them."""
    tensors = tensors_of_many_kinds(device)
    before = {name: bits(device, tensor) for name, tensor in tensors.items() if tensor.dim()}
    state = DeviceState(tensors.values(), device)
    state.save()
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.zero_()
    versions = [tensor._version for tensor in tensors.values()]
    state.restore()

    after = {name: bits(device, tensor) for name, tensor in tensors.items() if tensor.dim()}
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert versions == [tensor._version for tensor in tensors.values()]


CHANGES = {
    "the sign of zero": lambda x: x[0].neg_(),
    "what a NaN carries": lambda x: x.view(torch.int32)[1].add_(1),
    "two that change places": lambda x: x[2:4].copy_(x[2:4].flip(0)),
    "the lowest bit": lambda x: x.view(torch.int32)[-1].bitwise_xor_(1),
    "the highest bit": lambda x: x.view(torch.int32)[-1].bitwise_xor_(-(2**31)),
}


@pytest.mark.parametrize("chunk_bytes", [4096, 8192, 1 << 24])
@pytest.mark.parametrize("change", CHANGES)
def test_every_bit_and_its_place_count(device, change, chunk_bytes, monkeypatch):
    """However memory is cut into pieces."""
    monkeypatch.setattr(packing, "CHUNK_BYTES", chunk_bytes)
    x = on(device, torch.arange(2500.0))
    x[1] = float("nan")
    state = DeviceState([on(device, torch.ones(2)), x], device)
    first, again = state.checksum(), state.checksum()
    CHANGES[change](x)
    other = state.checksum()

    assert torch.equal(read_back(device, first), read_back(device, again))
    assert not torch.equal(read_back(device, first)[:, 0], read_back(device, other)[:, 0])


def test_deterministic_algorithms_stay_wanted(device, numerics):
    """A checksum takes others, without leaving them on."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    DeviceState([on(device, torch.ones(3))], device).checksum()

    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()


@pytest.mark.parametrize(
    "change", [torch.ones(3000), torch.ones(3000) * torch.tensor([1.0, -1.0]).repeat(1500)]
)
def test_distances_are_estimated_from_projections(device, change):
    """Also where the sum of all differences is zero."""
    x = on(device, torch.randn(3000))
    state = DeviceState([x], device)
    first = state.checksum()
    x.add_(on(device, change))
    found = [
        read_back(device, part)[:, 1:].view(torch.float64) for part in (first, state.checksum())
    ]
    distance = (found[1] - found[0]).square().mean().sqrt()

    assert 0.5 < distance / 3000**0.5 < 2


def test_memory_is_counted_once(device):
    """Views of one storage, and weights that are given twice."""
    x = on(device, torch.zeros(3000))
    alone = DeviceState([x], device).num_bytes

    assert DeviceState([x, x[:10], x.view(30, 100)[:, 3]], device).num_bytes == alone
    assert alone == 3 * packing.ROW_BYTES


def test_work_in_inference_mode_is_kept_and_put_back(device):
    """Its tensors can be written in that mode alone."""
    with torch.inference_mode():
        x = on(device, torch.ones(3)) * 2
        state = DeviceState([x], device)
        state.save()
        state.checksum()
        x.zero_()
    state.checksum()
    state.restore()

    with torch.inference_mode():
        assert read_back(device, x).sum() == 6


def test_all_random_numbers_are_put_back(device):
    """Torch's, Python's, numpy's and those of generators."""
    own = [torch.Generator(), random.Random(1), np.random.default_rng(2), np.random.RandomState(3)]

    def draw():
        drawn = [torch.randn(1).item(), random.gauss(0, 1), np.random.randn()]  # noqa: NPY002
        drawn.append(torch.rand(1, generator=own[0]).item())
        return [*drawn, own[1].random(), own[2].random(), own[3].rand()]

    states = DeviceState([], device, generators=own)
    draw()
    states.save()
    before = states.random.read()
    first = draw()
    after = states.random.read()
    states.restore()

    assert first == draw()
    assert len(unlike(before, after)) == len(first)
    assert unlike(before, before) == []
