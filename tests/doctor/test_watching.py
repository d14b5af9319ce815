"""A watch over real loops of torch: what a step is, what is told, and that nothing remains."""

from __future__ import annotations

import os
import re
import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, TensorDataset, dataloader

import gapless
import gapless.doctor
from gapless.device import torch_gpu
from gapless.doctor.session import run as session_run
from gapless.doctor.watching import watch as watch_module
from gapless.doctor.watching.step_source import watched_by
from gapless.doctor.watching.watch import Watch, WatchSettings
from gapless.doctor.watching.windows import Phases
from gapless.errors import UserError


class Careful(torch.optim.SGD):
    """An optimizer of a user, whose step calls that of its base."""

    def step(self, closure=None):
        return super().step(closure)


@pytest.fixture
def model():
    return torch.nn.Linear(4, 4)


@pytest.fixture(autouse=True)
def nothing_remains():
    """Whatever a test does, torch is as before."""
    parts = [
        (torch.autograd, "_engine_run_backward"),
        (dataloader._BaseDataLoaderIter, "__next__"),
        (torch.Tensor, "item"),
        (torch, "tensor"),
        (sys, "meta_path"),
    ]
    before = [vars(owner).get(name) for owner, name in parts]
    yield
    assert [vars(owner).get(name) for owner, name in parts] == before
    assert not torch_optimizer._global_optimizer_post_hooks


def train(model, *optimizers, num_steps=60, batches=None):
    for step in range(num_steps):
        batch = next(batches) if batches is not None else torch.randn(2, 4)
        for one in optimizers:
            one.zero_grad()
            model(batch).square().mean().backward()
            one.step()
        yield step


def run_all(steps):
    for _ in steps:
        pass


def test_hooks_of_the_script_are_called_on_when_ours_are_out(model):
    """Torch goes through all hooks of optimizers in turn, and ours comes before those of the script."""
    optimizer = torch.optim.SGD(model.parameters())
    calls = []

    with gapless.doctor.watch():
        handle = torch_optimizer.register_optimizer_step_post_hook(lambda *_: calls.append(1))
        run_all(train(model, optimizer, num_steps=120))
        handle.remove()

    assert len(calls) == 120


def test_a_loop_is_watched_and_the_report_is_there_at_its_end(model):
    """Twenty plain steps are timed; before the end there is no report."""
    optimizer = torch.optim.AdamW(model.parameters())

    with gapless.doctor.watch() as watched:
        run_all(train(model, optimizer, num_steps=50))
        with pytest.raises(UserError, match="has ended"):
            watched.text()

    assert watched.session.step == "a call of AdamW.step"
    assert watched.session.steps.num_steps == 20
    assert "a call of AdamW.step" in watched.text()


def test_a_short_loop_is_told_of_with_a_note(model):
    """What there was of the windows counts."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with gapless.doctor.watch(warm_up=2, num_steps=10) as watched:
        run_all(train(model, optimizer, num_steps=8))

    assert watched.session.steps.num_steps == 5
    assert any("ended after 7 steps" in note for note in watched.session.notes)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda weights: [Careful(weights, lr=0.1)], "Careful.step"),
        # The base is hooked as well once somebody has made one.
        (lambda weights: [Careful(weights, lr=0.1), torch.optim.SGD(weights, lr=0.1)], "Careful"),
        (lambda weights: [torch.optim.SGD(weights, lr=0.1)], "SGD.step"),
    ],
)
def test_each_iteration_is_one_step(model, make, name):
    """Also where the step of a class calls that of its base, or two optimizers take turns."""
    with gapless.doctor.watch(warm_up=0, num_steps=100) as watched:
        run_all(train(model, *make(list(model.parameters())), num_steps=30))

    assert name in watched.session.step
    assert watched.session.steps.num_steps == 29


def test_a_closure_that_is_called_many_times_is_one_step(model):
    """As of LBFGS."""
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    data = torch.randn(8, 4)

    def closure():
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        return loss

    with gapless.doctor.watch(warm_up=0, num_steps=100) as watched:
        for _ in range(12):
            optimizer.step(closure)

    assert watched.session.step == "a call of LBFGS.step"
    assert watched.session.steps.num_steps == 11


@pytest.mark.parametrize("warm_up", [10, 2])
def test_weights_that_are_changed_by_hand_have_steps(model, warm_up):
    """Nine backward passes show that there is no optimizer, and are part of the warm-up, or all of it."""
    with gapless.doctor.watch(warm_up=warm_up, num_steps=20) as watched:
        for _ in range(56):
            model(torch.randn(2, 4)).square().mean().backward()
            with torch.no_grad():
                for weight in model.parameters():
                    weight -= 0.1 * weight.grad
                    weight.grad = None

    assert watched.session.step == "a call of backward"
    assert watched.session.steps.num_steps == 20
    assert not any("ended after" in note for note in watched.session.notes)


def test_accumulated_gradients_are_one_step(model):
    """However many batches go into it, also more than a loader alone would be taken for."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(640, 4)), batch_size=1)

    with gapless.doctor.watch(warm_up=0, num_steps=100) as watched:
        for number, (batch,) in enumerate(loader):
            model(batch).square().mean().backward()
            if number % 32 == 31:
                optimizer.step()

    assert watched.session.step == "a call of SGD.step"
    assert watched.session.steps.num_steps == 19


def test_an_optimizer_takes_over_in_the_midst_of_a_window(model):
    """What was watching the batches of a first validation ends before the steps are watched."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with gapless.doctor.watch(warm_up=0, num_steps=20) as watched:
        for _ in DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=1):
            pass
        assert "item" in vars(torch.Tensor)
        run_all(train(model, optimizer, num_steps=2))
        assert "item" not in vars(torch.Tensor)
        run_all(train(model, optimizer, num_steps=20))

    assert watched.session.step == "a call of SGD.step"


def test_steps_by_the_loader(model):
    """What was asked for, although there is an optimizer."""
    loader = DataLoader(TensorDataset(torch.randn(100, 4)), batch_size=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with gapless.doctor.watch(step="loader", warm_up=0, num_steps=10) as watched:
        batches = (batch for (batch,) in loader)
        run_all(train(model, optimizer, optimizer, num_steps=50, batches=batches))

    assert watched.session.step == "a batch of DataLoader"


def test_steps_by_the_name_of_a_function(model, monkeypatch):
    """It is found once it is there, and put back afterwards."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    main = sys.modules["__main__"]

    def one_epoch():
        run_all(train(model, optimizer, num_steps=2))

    monkeypatch.setattr(main, "one_epoch", one_epoch, raising=False)
    with gapless.doctor.watch(step="one_epoch", warm_up=0, num_steps=100) as watched:
        for _ in range(12):
            main.one_epoch()

    assert watched.session.step == "a call of one_epoch"
    assert watched.session.steps.num_steps == 10
    assert main.one_epoch is one_epoch


def test_steps_that_the_script_tells_of(model):
    """Only those count from then on; where nobody watches, the call does nothing."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with gapless.doctor.watch(warm_up=0, num_steps=100) as watched:
        for step in train(model, optimizer, num_steps=40):
            if step % 4 == 3:
                gapless.doctor.step()
    gapless.doctor.step()

    assert watched.session.step == "a call of gapless.doctor.step"
    assert watched.session.steps.num_steps == 9


def test_without_a_step_the_report_says_so(model):
    """And how to name one."""
    with gapless.doctor.watch() as watched:
        model(torch.randn(2, 4))

    assert any("--step" in note for note in watched.session.notes)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_steps": 0}, "`num_steps` must be a whole number of 1 or more, but is 0"),
        ({"num_steps": 1.5}, "`num_steps` must be a whole number of 1 or more, but is 1.5"),
        ({"warm_up": -3}, "`warm_up` must be a whole number of 0 or more, but is -3"),
        ({"warm_up": "a"}, "`warm_up` must be a whole number of 0 or more, but is 'a'"),
        ({"step": ""}, "`step` names what a step is, but is ''"),
        ({"step": None}, "`step` names what a step is, but is None"),
    ],
)
def test_what_cannot_be_watched_is_refused(given, said):
    """Before the body begins."""
    with pytest.raises(UserError, match=f"^{re.escape(said)}$"), gapless.doctor.watch(**given):
        pytest.fail("the body runs")


def test_an_exception_of_the_body_is_the_bodys(model):
    """It comes out as it is, and what was seen is there."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with pytest.raises(KeyError, match="mine"), gapless.doctor.watch() as watched:
        run_all(train(model, optimizer, num_steps=35))
        raise KeyError("mine")

    assert watched.session.steps.num_steps == 20


def test_a_failure_of_the_doctor_is_no_failure_of_the_script(model, monkeypatch):
    """The loop goes on, and the report says what happened."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr(watch_module, "_passes_of", lambda phase, is_exact: 1 / 0)
    steps = []

    with gapless.doctor.watch() as watched:
        steps = list(train(model, optimizer))

    assert len(steps) == 60
    assert any("ZeroDivisionError" in note for note in watched.session.notes)


def test_what_goes_wrong_at_the_end_is_told_as_well(model, monkeypatch):
    """Nobody looks for a second failure where only the first is told."""
    monkeypatch.setattr(Phases, "step_ended", lambda self: 1 / 0)
    monkeypatch.setattr(Phases, "end", lambda self: {}["end"])

    with gapless.doctor.watch() as watched:
        run_all(train(model, torch.optim.SGD(model.parameters())))

    assert any("ZeroDivisionError" in one and "KeyError" in one for one in watched.session.notes)


# What the command line and a GPU make of a watch


@pytest.fixture
def gpu_is_used(monkeypatch):
    """Says to all watches that begin from now on that the script has begun to use a GPU."""
    told = []
    monkeypatch.setattr(torch_gpu, "call_when_gpu_is_used", told.append)
    return lambda: [tell() for tell in told]


@contextmanager
def watched(**given):
    """Watch the body as the command line does."""
    watch = Watch(WatchSettings(**given))
    watch.start()
    try:
        with watched_by(watch):
            yield watch
    finally:
        watch.end()


def is_watching_seconds():
    return "gapless-doctor" in {thread.name for thread in threading.enumerate()}


def test_steps_before_a_gpu_is_used_do_not_count(model, gpu_is_used):
    """They are another script's, as it were: windows begin anew."""
    optimizer = torch.optim.SGD(model.parameters())

    with watched(warm_up=0, num_steps=4) as watch:
        run_all(train(model, optimizer, num_steps=3))
        gpu_is_used()
        run_all(train(model, optimizer, num_steps=3))
        assert watch.seen == []
        run_all(train(model, optimizer, num_steps=3))

    assert [(one.phase, one.num_steps) for one in watch.seen] == [("plain", 4), ("sites", 1)]


def test_seconds_are_watched_until_the_script_ends(gpu_is_used):
    """Where there is no step; a GPU that is used after the end, or in a child, is nobody's business."""
    with watched():
        gpu_is_used()
        assert is_watching_seconds()
    gpu_is_used()
    assert not is_watching_seconds()


def test_a_forked_child_is_not_watched(gpu_is_used):
    """It has no hook of ours, and no thread begins in it."""
    with watched():
        child = os.fork()
        if child == 0:
            gpu_is_used()
            os._exit(len(torch_optimizer._global_optimizer_post_hooks) + is_watching_seconds())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert code == 0


def test_steps_that_the_doctor_makes_are_no_steps_of_the_script(model, monkeypatch):
    """A variant may call an optimizer when it is put in."""
    optimizer = torch.optim.SGD(model.parameters())
    begin = watch_module._passes_of

    def trains_itself(phase, *, is_exact):
        optimizer.step()
        return begin(phase, is_exact=is_exact)

    monkeypatch.setattr(watch_module, "_passes_of", trains_itself)
    with watched(warm_up=0, num_steps=4) as watch:
        run_all(train(model, optimizer, num_steps=7))

    assert [(one.phase, one.num_steps) for one in watch.seen] == [("plain", 4), ("sites", 2)]


def test_a_script_that_catches_its_end_is_stopped_again(model):
    """`except BaseException: pass` around a step would let it run for days."""
    optimizer = torch.optim.SGD(model.parameters())
    codes = []
    with watched(warm_up=0, num_steps=1, stops_after=True):
        for _ in range(6):
            try:
                run_all(train(model, optimizer, num_steps=1))
            except watch_module.Stopped as end:
                codes.append(end.code)

    assert codes == [0] * 2


def test_a_failure_of_the_doctor_does_not_stop_the_script(model, monkeypatch):
    """Although its windows are over then."""
    monkeypatch.setattr(watch_module, "_passes_of", lambda phase, is_exact: 1 / 0)
    optimizer = torch.optim.SGD(model.parameters())

    with watched(warm_up=0, num_steps=1, stops_after=True) as watch:
        run_all(train(model, optimizer, num_steps=6))

    assert "ZeroDivisionError" in watch.problem


class Endless:
    """A variant that is never settled."""

    name, change, refusal, details = "endless", "Nothing.", "", ()
    is_settled, num_steps_to_recover = False, 0

    def start(self, step_ended):
        self.is_in = True

    def stop(self):
        self.is_in = False

    def close(self):
        pass


def test_the_report_has_what_was_measured_behind_the_windows(monkeypatch):
    """On a GPU all else is known when they end."""
    monkeypatch.setattr(session_run, "make_session", lambda watch, command: [watch.variant_trials])
    reported = []
    reports = SimpleNamespace(
        keep=lambda session, is_over: None,
        take=lambda session, problem, is_failure: reported.append(session),
    )
    program = SimpleNamespace(words=("train.py",))
    run = session_run._WatchedProgram(program, WatchSettings(variants=list), reports)
    run.watch.has_gpu = run.watch.is_complete = True
    run._keep(run.watch)
    run.watch.variant_trials = SimpleNamespace(is_over=True)

    run.end(is_failure=False)

    assert reported == [[run.watch.variant_trials]]


def test_variants_are_measured_behind_the_windows_until_the_script_ends(model):
    """Whatever the script calls its steps by then; what was seen in the windows stays."""
    optimizer = torch.optim.SGD(model.parameters())
    variant = Endless()

    with watched(warm_up=0, num_steps=1, variants=lambda: [variant], tries_all=True) as watch:
        run_all(train(model, optimizer, num_steps=90))
        assert (variant.is_in, watch.variant_trials.is_over) == (True, False)
        for _ in range(2):
            gapless.doctor.step()

    assert (variant.is_in, watch.variant_trials.is_over) == (False, True)
    assert [(one.phase, one.num_steps) for one in watch.seen] == [
        *(("plain", 1), ("sites", 1), ("parts", 2))
    ]
