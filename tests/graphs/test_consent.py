"""Several ranks capture a kind of call together, or none of them does."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import pytest
import torch

from gapless.graphs.consent import Readiness
from gapless.graphs.proof.device_state import DeviceState
from gapless.loop.train_loop import TrainLoop
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import Training, batches, read_back


pytestmark = pytest.mark.quick_tests(12)

READY, NOT_YET, NEVER = Readiness.READY, Readiness.NOT_YET, Readiness.NEVER


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


class TwoRanks:
    """This rank, and one that answers as it is told; then it can do everything."""

    world = 2

    def __init__(self, *answers):
        self.answers = list(answers)
        self.said = []
        self.paused = []

    @contextmanager
    def pause(self, reason):
        self.paused.append(reason)
        yield

    def agree(self, value):
        number = len(self.said)
        self.said.append(value)
        other = self.answers[number] if number < len(self.answers) else value
        return [value, other]

    def gather_rows(self, rows):
        return torch.stack((rows, rows))


def trained(device, ranks, *, plan="captured", data=None, ahead=False, step=None, **settings):
    """Return the loop, and the bits of the weights after an epoch."""
    training = Training(device)
    data = batches(*[4] * 8, *[5] * 8) if data is None else data
    step = training.step if step is None else step(training)
    with TrainLoop(plan=plan, device=device, ranks=ranks, **settings) as loop:
        if ahead:
            loop.capture_ahead(
                [data[0], data[-1]], step, model=training.model, optimizer=training.optimizer
            )
        loop.run_epoch(data, step)
    return loop, [read_back(device, weight) for weight in training.model.parameters()]


def expected(device):
    return trained(device, None, plan="gapless")[1]


def test_ranks_that_agree_replay(device):
    """Each kind is asked for when its warm-up is over: before, after the capture, for the proof."""
    ranks = TwoRanks()
    loop, weights = trained(device, ranks)

    assert ranks.said == [READY] * 8
    assert ranks.paused == ["capture"] * 2
    assert (loop.capture_report.num_graphs, loop.capture_report.num_replays) == (2, 10)
    assert all(map(torch.equal, weights, expected(device)))


def test_what_one_cannot_put_back_runs_ahead_on_none(device):
    """All capture as batches come then; a rank that ran ahead alone would wait for the others."""
    ranks = TwoRanks(NEVER)
    loop, weights = trained(device, ranks, ahead=True)

    assert loop.capture_report.num_replays == 10
    assert "graphs are captured as batches come" in loop.capture_report.note
    assert all(map(torch.equal, weights, expected(device)))


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("ahead", [False, True])
def test_one_that_cannot_keeps_all_from_it(device, ahead, number):
    """At whichever question it says so; the other kind of batch is captured by both."""
    first = [READY, NOT_YET, NOT_YET] if ahead else []
    ranks = TwoRanks(*first, *[READY] * number, NEVER)
    loop, weights = trained(device, ranks, ahead=ahead)
    replays = {False: 5, True: 8}[ahead]

    if number == 2:  # no memory for a proof, which is no reason not to replay
        assert loop.capture_report.num_replays == 2 * replays
        assert "another rank has no memory" in loop.capture_report.note
    else:
        assert loop.capture_report.num_replays == replays
        assert [one.kind for one in loop.capture_report.refusals] == ["ranks"]
    assert all(map(torch.equal, weights, expected(device)))


def test_all_wait_for_one_whose_warm_up_takes_longer(device):
    """It says so in as many calls as it needs."""
    ranks = TwoRanks(NOT_YET, NOT_YET)
    loop, weights = trained(device, ranks, data=batches(*[4] * 8))

    assert ranks.said == [READY] * 6
    assert loop.capture_report.num_replays == 3
    assert all(map(torch.equal, weights, trained(device, None, data=batches(*[4] * 8))[1]))


def test_nobody_waits_for_ever(device):
    """After some calls the kind is given up."""
    ranks = TwoRanks(*[NOT_YET] * 100)
    loop, _ = trained(device, ranks, data=batches(*[4] * 30))

    assert len(ranks.said) < 10
    assert loop.capture_report.num_replays == 0


@pytest.fixture
def fast_path():
    """Let a test change a setting of torch that a graph bakes in."""
    yield torch.backends.mha.set_fastpath_enabled
    torch.backends.mha.set_fastpath_enabled(True)


def test_ranks_capture_again_what_one_has_lost(device, fast_path):
    """Until the next epoch, the rank that a setting has changed on runs its step as written."""
    ranks, training, data = TwoRanks(), Training(device), batches(*[4] * 8)
    replays = [0]
    with TrainLoop(plan="captured", device=device, ranks=ranks) as loop:
        for epoch in range(4):
            fast_path(epoch == 0)
            loop.run_epoch(data, training.step)
            replays.append(loop.capture_report.num_replays)

    assert [after - before for before, after in pairwise(replays)] == [5, 0, 6, 8]
    assert loop.capture_report.changes == [
        "torch.backends.mha.get_fastpath_enabled() changed from True to False"
    ]


def test_a_rank_captures_again_with_one_that_has_lost_a_graph(device):
    """At the same calls, so that it asks as often; its own graph, which still holds, goes."""
    ranks, training, data = TwoRanks(*[READY] * 4, [], [0]), Training(device), batches(*[4] * 8)
    with TrainLoop(plan="captured", device=device, ranks=ranks) as loop:
        for _ in range(3):
            loop.run_epoch(data, training.step)

    # Four questions for the first capture; one at the begin of each other epoch; four again.
    assert ranks.said == [*[READY] * 4, [], [], *[READY] * 4]
    assert loop.capture_report.num_replays == 5 + 8 + 7
    assert loop.capture_report.num_graphs == 2


def replays_of(device, training, data, *, before=None, on_batch=None, num=6):
    """Train for some epochs as one of two ranks; return each epoch's replays, and the report."""
    replays = [0]
    with TrainLoop(plan="captured", device=device, ranks=TwoRanks()) as loop:
        for epoch in range(num):
            if before is not None:
                before(epoch)
            of_epoch = None if on_batch is None else partial(on_batch, epoch)
            loop.run_epoch(
                data(epoch) if callable(data) else data, training.step, on_batch=of_epoch
            )
            replays.append(loop.capture_report.num_replays)
    return [after - before for before, after in pairwise(replays)], loop.capture_report


def test_a_rest_of_ranks_ends(device):
    """All kinds of the first epoch are unlike, and from then on eight come again and again."""

    def data(epoch):
        return batches(*(range(2, 42) if epoch == 0 else list(range(2, 10)) * 8))

    replays, report = replays_of(device, Training(device), data)

    assert replays[0] == 0
    assert replays[-1] == 64
    assert report.refusals == []


def test_a_value_of_a_batch_decides_nothing_on_ranks(device):
    """It may be another on each rank; who asks alone about a kind of its own waits for ever."""

    class Masked(Training):
        def loss_of(self, batch):
            if not torch.cuda.is_current_stream_capturing() and not (batch > 0).all():
                return super().loss_of(batch) * 2
            return super().loss_of(batch)

    replays, report = replays_of(device, Masked(device), batches(*[4] * 12))

    assert sum(replays) == 0
    assert "may be another on each rank" in report.refusals[0].text


def reads(training):
    """Return a step that no rank could capture: it waits for the device."""

    def step(batch):
        return training.step(batch) + float(batch.sum()) * 0.0

    return step


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("ahead", [False, True], ids=["as it comes", "ahead"])
@pytest.mark.parametrize(
    "cannot",
    [{"step": reads}, {"memory_budget_bytes": 1}, {"fails": "save"}, {"fails": "capture"}],
    ids=["reads", "limits", "no memory", "capture"],
)
def test_ranks_ask_each_other_equally_often(device, monkeypatch, cannot, ahead):
    """Whatever keeps one of them from a capture: who asks alone waits for ever."""
    fails = cannot.get("fails")
    settings = {name: value for name, value in cannot.items() if name != "fails"}

    def said_by_one_that_cannot(answers):
        ranks = TwoRanks(*answers)
        with monkeypatch.context() as patch:
            if fails == "save":
                patch.setattr(DeviceState, "save", _out_of_memory)
            elif fails == "capture":
                patch.setattr(SimulatedDevice, "capture", _out_of_memory)
            trained(device, ranks, data=batches(*[4] * 6), ahead=ahead, **settings)
        return ranks.said

    said, answers = [], []
    for _ in range(2):  # what one says may depend on what the other has said
        said = said_by_one_that_cannot(answers)
        ranks = TwoRanks(*said)
        trained(device, ranks, data=batches(*[4] * 6), ahead=ahead)
        answers = ranks.said

    assert said
    assert len(said) == len(answers)


def _out_of_memory(*args, **kwargs):
    raise torch.OutOfMemoryError
