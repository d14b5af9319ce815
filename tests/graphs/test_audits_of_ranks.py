"""Several ranks audit a step at the same calls, or none of them does."""

from __future__ import annotations

import dataclasses
import math
from contextlib import contextmanager

import pytest
import torch

import gapless
from gapless.graphs import audit
from gapless.graphs.audit import FIRST_BLOCK, LONGEST_BLOCK
from gapless.graphs.consent import Readiness
from gapless.graphs.proof import same_results
from gapless.graphs.ranks import calls_of_ranks
from gapless.graphs.ranks.audits_of_ranks import AuditsOfRanks
from gapless.loop.train_loop import TrainLoop
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import Training, batches, read_back


READY, NOT_YET, NEVER = Readiness.READY, Readiness.NOT_YET, Readiness.NEVER


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


# --- when ---


def places(num, *, every=None, epochs=()):
    """Return the numbers of calls that are audits, all of them good."""
    audits, found = AuditsOfRanks(every), []
    for call in range(1, num):
        if call == 5:
            audits.begin(call)
        if call in epochs:
            audits.begin_epoch(call - 1)
        if audits.is_due(call):
            assert audits.decide(call, READY)
            audits.end(call, READY)
            found.append(call)
    return found


def test_audits_come_once_in_each_block_of_calls(monkeypatch):
    """On all ranks at the same ones, after a graph was captured."""
    monkeypatch.setattr(audit, "DEFAULT_EVERY", None)
    start, block = 6, FIRST_BLOCK
    found = places(20_000)
    for number in found:
        assert start <= number < start + block
        start, block = start + block, min(2 * block, LONGEST_BLOCK)
    assert places(20_000) == found
    assert places(20, every=4) == [9, 13, 17]


def test_the_begin_of_an_epoch_is_an_interlude(monkeypatch):
    """Of which one in so many calls counts."""
    monkeypatch.setattr(audit, "DEFAULT_EVERY", None)
    assert {100, 200} < set(places(300, epochs=(100, 110, 200)))
    assert 110 not in places(300, epochs=(100, 110, 200))


def test_what_some_rank_cannot_is_put_off():
    """For a few calls, then to the next block; for ever where there is no memory."""
    audits = AuditsOfRanks(10)
    audits.begin(0)
    asked = []
    for call in range(1, 40):
        if audits.is_due(call):
            asked.append(call)
            assert not audits.decide(call, NOT_YET)
    assert asked == [*range(10, 18), *range(27, 35)]
    audits.begin(100)
    assert not audits.decide(200, NEVER)
    audits.begin(200)
    assert not audits.is_due(10**6)


# --- ranks of a run ---


class Script:
    """The ranks of a run: this one, and one whose answers are known."""

    world = 2

    def __init__(self, answer):
        self.answer = answer
        self.said = []

    @contextmanager
    def pause(self, reason):
        yield

    def agree(self, value):
        number = len(self.said)
        self.said.append(value)
        return [value, self.answer(number, value)]

    def gather_rows(self, rows):
        return torch.stack((rows, rows))


class Patched(Training):
    """Reads a function that no guard compares."""

    def step(self, batch):
        return super().step(batch) * math.cos(1.0)


def trained(device, answer=None, *, kind=Training, num=20, at=None, change=None):
    """Train as one of two ranks, or alone; return report, what was said, losses and weights."""
    training, ranks = kind(device), None if answer is None else Script(answer)

    def on_batch(progress):
        if progress.batch == at:
            change(training)

    plan = "gapless" if ranks is None else "captured"
    with TrainLoop(plan=plan, device=device, ranks=ranks) as loop:
        record = loop.run_epoch(batches(*[4] * num), training.step, on_batch=on_batch)
    weights = [read_back(device, weight).tolist() for weight in training.model.parameters()]
    return loop.capture_report, ranks and ranks.said, (record.mean_loss, weights)


def same(_, value):
    return value


@pytest.fixture
def every(monkeypatch):
    def set_every(number):
        monkeypatch.setattr(audit, "DEFAULT_EVERY", number)

    return set_every


@pytest.mark.parametrize("number", [1, 3])
def test_all_ranks_audit(device, every, number):
    """Each audit asks whether all can, whether all have memory, and what all have found."""
    every(number)
    report, said, seen = trained(device, same)

    assert seen == trained(device)[2]
    assert report.audits.differences == []
    assert report.audits.num == report.audits.num_equal > 4
    assert said == [READY] * (4 + 3 * report.audits.num)
    assert report.num_replays == 17 - report.audits.num


def test_a_difference_is_acted_on_by_all(device, every, monkeypatch):
    """This rank finds it; both drop their graphs, and capture anew at the same calls."""
    every(1)
    cos = math.cos

    def change(_):
        monkeypatch.setattr(math, "cos", lambda x: cos(x) * 2)

    expected = trained(device, kind=Patched, at=10, change=change)[2]
    monkeypatch.setattr(math, "cos", cos)
    report, said, seen = trained(device, same, kind=Patched, at=10, change=change)

    assert seen == expected
    (text,) = report.audits.differences
    assert "in call 11" in text
    assert (report.num_graphs, report.refusals) == (2, [])
    # 4 questions at the capture, 3 in each audit, of which that in call 11 finds it; 4 in call 12.
    assert said[4 + 7 * 3 : 4 + 8 * 3 + 4] == [READY, READY, NEVER, *[READY] * 4]


def test_a_difference_on_another_rank_is_acted_on(device, every):
    """Here everything was equal; a second one ends captures on all."""
    every(4)

    def answer(number, value):
        # The third question of each audit; those of a capture are four.
        return NEVER if number in (6, 13) else value

    report, _, seen = trained(device, answer, num=40)

    assert seen == trained(device, num=40)[2]
    assert len(report.audits.differences) == 2
    assert "on another rank" in report.audits.differences[0]
    assert report.num_graphs == 2
    assert report.refusal.kind == "proved_wrong"


def test_without_memory_on_some_rank_none_audits(device, every, monkeypatch):
    """Whoever has none says so when it is asked next."""
    every(3)
    prove = same_results.prove

    def finds_no_memory(*args, **how):
        if how["num_written"] == 1:
            how["consent"].least(NEVER)
            raise same_results.NotProved("no memory for a copy")
        return prove(*args, **how)

    monkeypatch.setattr("gapless.graphs.proof.trial.prove", finds_no_memory)
    report, said, seen = trained(device, same)

    assert seen == trained(device)[2]
    assert said == [*[READY] * 4, READY, NEVER, READY, NEVER]
    assert report.audits.num == 0
    assert report.num_replays == 16


def test_a_rank_that_has_lost_its_graph_hangs_nobody(device, every):
    """It says so where the others ask: all ask as often, at the same calls."""
    every(4)

    class Flagged(Training):
        flag = 0

        def loss_of(self, batch):
            return super().loss_of(batch) * (2 if self.flag else 1)

    def change(training):
        training.flag = 1

    def lost(answers):
        return trained(device, answers, kind=Flagged, num=40, at=14, change=change)

    def kept(answers):
        return trained(device, answers, kind=Flagged, num=40)

    _, of_kept, _ = kept(same)
    # Each plays against what the other has said, until neither says anything else.
    for _ in range(6):
        _, of_lost, _ = lost(of_padded(of_kept))
        _, again, _ = kept(of_padded(of_lost))
        if again == of_kept:
            break
        of_kept = again
    assert again == of_kept
    assert len(of_lost) == len(of_kept)
    assert NOT_YET in of_lost
    assert NOT_YET not in of_kept


def of_padded(said):
    """Answer what was said; beyond it, the other still has to find out that it is asked."""
    return lambda number, value: said[number] if number < len(said) else value


# --- ranks of a user's group ---


class Users:
    """The ranks of a user's loop: this one, and one that tells the same but for what it is given."""

    world = 2

    def __init__(self, *, found=None, **other):
        self.other = other
        self.found = found or {}
        self.told = []
        self.num_collectives = self.num_answers = 0

    def agree(self, value):
        self.told.append(value)
        if isinstance(value, Readiness):
            self.num_answers += 1
            return [value, self.found.get(self.num_answers, value)]
        return [value, dataclasses.replace(value, **self.other)]

    def counts(self):
        self.num_collectives += 1
        return {1: (self.world, 0), 2: (2, self.num_collectives)}

    @property
    def calls(self):
        return [one.call for one in self.told if not isinstance(one, Readiness)]


@pytest.fixture
def users(monkeypatch):
    def call(**other):
        ranks = Users(**other)
        monkeypatch.setattr(calls_of_ranks, "user_ranks", lambda device: ranks)
        monkeypatch.setattr(calls_of_ranks, "collectives_so_far", ranks.counts)
        monkeypatch.setattr(calls_of_ranks, "_CALLS_OPEN", 4)
        monkeypatch.setattr(calls_of_ranks, "_CALLS_BETWEEN", 8)
        return ranks

    return call


MANY = batches(*[4] * 40)


def of_users(device, *, kind=Training, **options):
    """Return the captured step, and losses and weights; without options as written."""
    training, losses = kind(device), []
    step = gapless.capture(training.step, device=device, **options) if options else training.step
    for batch in gapless.prefetch(MANY, device):
        losses.append(read_back(device, step(batch)).tolist())
    return step, (
        losses,
        [read_back(device, weight).tolist() for weight in training.model.parameters()],
    )


@pytest.mark.parametrize("number", [1, 5])
def test_ranks_of_a_user_audit_at_the_same_calls(device, users, number):
    """Which are calls at which they tell each other how far they are."""
    ranks = users()
    step, seen = of_users(device, audit_every=number)

    assert seen == of_users(device)[1]
    audits = step.report.audits
    assert audits.differences == []
    assert audits.num == audits.num_equal == {1: 37, 5: 7}[number]
    assert {2 + number * n for n in range(1, audits.num + 1)} <= set(ranks.calls)
    assert step.report.num_replays == 37 - audits.num


def test_replays_of_users_ranks_stay_quick(device, users, monkeypatch):
    """What each rank would audit by itself does not end quick calls."""
    monkeypatch.setattr(audit, "DEFAULT_EVERY", None)
    users()
    training = Training(device)
    step = gapless.capture(training.step, device=device)
    num_quick = 0
    for number in range(4):
        for batch in gapless.prefetch(MANY, device):
            quick = step._captured.fast_path.call
            before = step.report.num_replays
            step(batch)
            num_quick += number == 3 and quick is not None and step.report.num_replays > before
    assert num_quick > 30
    assert 1 <= step.report.audits.num == step.report.audits.num_equal <= 4


@pytest.mark.filterwarnings("ignore::gapless.CaptureWarning")
def test_a_difference_on_another_rank_of_a_user(device, users):
    """All capture anew at the next call at which they tell each other, and end at a second one."""
    # Three answers of a capture; in each audit one for memory, one for what was found.
    users(found={5: NEVER, 10: NEVER})
    step, seen = of_users(device, audit_every=5)

    assert seen == of_users(device)[1]
    assert len(step.report.audits.differences) == 2
    assert step.report.num_graphs == 2
    assert not step._captured.has_graphs
    assert "proved_wrong" in {one.kind for one in step.report.refusals}
