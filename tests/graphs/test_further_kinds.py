"""Further kinds of calls that run known code: nothing is searched for anew, and all is noticed all the same."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gapless.graphs.reads import host_watch, run_profile
from gapless.graphs.reads.code_kinds import CodeKind, kind_of
from gapless.graphs.reads.host_watch import HostWatch
from watched_steps import is_cpu, names


class Thing:
    def __init__(self, **parts):
        self.__dict__.update(parts)


@pytest.fixture
def searches(monkeypatch):
    """Return a list that gets an entry for each search of what code reaches."""
    found = []

    class Counted(host_watch.Reach):
        def __init__(self, *args, **kwargs):
            found.append(None)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(host_watch, "Reach", Counted)
    return found


@pytest.fixture
def profiled(monkeypatch):
    """Return a list that gets an entry for each run that a profiler has seen."""
    found = []
    running = run_profile.RunProfile.running

    def note_and_run(self):
        found.append(None)
        return running(self)

    monkeypatch.setattr(run_profile.RunProfile, "running", note_and_run)
    return found


def run_of(watch, step, size):
    """Run a step on a batch of a size, which makes a kind; return what the run did."""
    batch = torch.ones(size)
    with watch.watch((batch,), {}) as run:
        step(batch)
    return run


def watched_twice(step, size=3):
    """Return a watch of a step that has had its first kind, and the guards that were made for it."""
    watch = HostWatch(step, on_device=is_cpu, torch_random=False)
    for _ in range(2):
        run_of(watch, step, size)
    return watch, watch.guards()


def test_a_further_kind_of_known_code_shares_the_guards(searches, profiled):
    """It is searched for nothing, and only its first run is seen by a profiler."""
    thing = Thing(alpha=0.5)

    def step(batch):
        return batch.sum() * thing.alpha

    watch, guards = watched_twice(step)
    searches.clear()
    profiled.clear()
    runs = [run_of(watch, step, 5) for _ in range(2)]

    assert watch.guards() is guards
    assert searches == []
    assert len(profiled) == 1
    assert all(run.is_complete and not run.found_code and not run.writes for run in runs)


def test_a_value_that_has_changed_since_is_guarded_as_it_is():
    """The guards of the first kind do not hold any more."""
    thing = Thing(alpha=0.5)

    def step(batch):
        return batch.sum() * thing.alpha

    watch, guards = watched_twice(step)
    thing.alpha = 2.0
    for _ in range(2):
        run_of(watch, step, 5)
    others = watch.guards()

    assert others.holds()
    assert not guards.holds()
    thing.alpha = 3.0
    assert others.first_changed().name == "thing.alpha"


def test_other_code_in_a_further_kind_is_followed():
    """What it reads is guarded."""
    thing = Thing(beta=0.5)

    def scaled(batch):
        return batch * thing.beta

    def step(batch):
        return (scaled(batch) if len(batch) > 3 else batch).sum()

    watch, _ = watched_twice(step)
    runs = [run_of(watch, step, 5) for _ in range(3)]
    others = watch.guards()
    thing.beta = 1.0

    assert [run.found_code for run in runs] == [True, False, False]
    assert others.first_changed().name == "thing.beta"


def test_a_write_in_the_second_run_of_a_further_kind_is_told():
    """That run is seen by no profiler."""
    seen = []

    def step(batch):
        if len(batch) > 3 and batch[0] > 1:
            seen.append(1)
        return batch.sum()

    watch, _ = watched_twice(step)
    run_of(watch, step, 5)
    told = []
    for _ in range(2):
        batch = torch.full((5,), 2.0)
        with watch.watch((batch,), {}) as run:
            step(batch)
        told.append((names(run), run.is_complete))

    assert told == [([], False), (["seen"], True)]


def test_an_effect_of_a_further_kind_is_told(capsys):
    """Its second run is seen by a profiler, since the first had an effect."""

    def step(batch):
        if len(batch) > 3:
            print("many rows")
        return batch.sum()

    watch, _ = watched_twice(step)
    runs = [run_of(watch, step, 5) for _ in range(2)]

    assert [names(run) for run in runs] == [[], ["print"]]
    capsys.readouterr()


def test_an_object_that_a_further_kind_is_the_first_to_be_given_is_guarded():
    """No name leads to it: it comes from a function made in C, by the shape of the batch."""
    things = {3: Thing(scale=1.0), 5: Thing(scale=2.0)}
    choose = list(things.values()).__getitem__

    def scaled(thing, batch):
        return batch * thing.scale

    def step(batch):
        return scaled(choose(int(len(batch) > 3)), batch).sum()

    watch, _ = watched_twice(step)
    for _ in range(2):
        run_of(watch, step, 5)
    guards = watch.guards()
    things[5].scale = 3.0

    assert not guards.holds()


def test_a_batch_that_the_step_has_reached_is_no_known_kind(searches):
    """What stands in a place may be what comes as the batch."""
    thing = Thing(kept=torch.ones(5))

    def step(batch):
        return batch.sum() + thing.kept.sum()

    watch, _ = watched_twice(step)
    searches.clear()
    with watch.watch((thing.kept,), {}):
        step(thing.kept)

    assert searches != []


@pytest.mark.parametrize(
    ("module", "is_guarded"),
    [("script", True), ("torch._inductor.runtime.compile_tasks.c1", False)],
)
def test_code_that_torch_has_made_while_it_compiled_is_not_followed(module, is_guarded):
    """It stands in a file of its own and belongs to torch, as what it calls."""
    names = {"__name__": module, "factor": 2.0}
    exec(compile("def call(x):\n    return x * factor\n", "made.py", "exec"), names)
    call = names["call"]

    def step(batch):
        return call(batch).sum()

    _, guards = watched_twice(step)
    names["factor"] = 3.0

    assert guards.holds() is not is_guarded


def test_what_launches_a_kernel_of_inductor_is_not_followed():
    """A step with compiled layers calls hundreds of these on a GPU; a function of a script that is called so is followed."""
    from torch._inductor.runtime.triton_heuristics import CompileResult

    class Config(dict):
        """As Triton's where it is installed, or as what stands for it."""

        kwargs, num_warps, num_stages = {"XBLOCK": 64}, 1, 1

    about = SimpleNamespace(inductor_meta={"grid_type": "Grid1D"}, config=Config(XBLOCK=64))
    names = {"runner": print}
    launcher = CompileResult._gen_launcher_code(about, names, ["xnumel"], ["grid_0"])
    of_script = {"runner": print, "__name__": "script"}
    exec("def launcher():\n    pass\n", of_script)

    assert kind_of(launcher.__code__, names) is CodeKind.TORCH
    assert kind_of(of_script["launcher"].__code__, of_script) is CodeKind.USER
