"""Every scenario gives the right values under every schedule, and no access is unordered."""

from __future__ import annotations

import pytest

from simulation import sweep
from simulation.registry import Scenario
from simulation.scenarios import SCENARIOS, RaceError, run, schedules


# `make test` runs some of them as late as it may; `make check` runs all, also as soon, and in a random
# order; `make sweep` in two hundred.
NUM_QUICK = 30
NUM_SEEDS = 1
QUICK = list(SCENARIOS)[:: len(SCENARIOS) // NUM_QUICK]


def check(name, planned):
    assert planned
    for scheduler, seed in planned:
        try:
            run(name, scheduler=scheduler, seed=seed)
        except Exception as error:
            error.add_note(f"in run({name!r}, scheduler={scheduler!r}, seed={seed})")
            raise


def all_schedules(name):
    """Return those of the slow test."""
    return schedules(name, range(NUM_SEEDS))


@pytest.mark.parametrize("name", QUICK)
def test_a_scenario_passes_as_late_as_it_may_run(name):
    """Or under the one scheduler that it is about."""
    planned = all_schedules(name)

    check(name, [one for one in planned if one[0] == "lazy"] or planned)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    """It passes as soon, as late and in the random order that the device may run it in."""
    check(name, all_schedules(name))


def test_all_three_schedulers_and_all_seeds_are_tried():
    """Every scenario that is not about one scheduler runs under all of them."""
    tried = all_schedules("plan_gapless")

    assert tried == [("asap", 0), ("lazy", 0), *(("random", n) for n in range(NUM_SEEDS))]
    assert sum(scenario.only is None for scenario in SCENARIOS.values()) >= 60
    assert len(SCENARIOS) >= 75
    assert len(QUICK) >= NUM_QUICK


def test_a_failing_scenario_says_what_repeats_it(monkeypatch):
    """The note on its error is the call that fails again."""

    def race(device):
        target = device.device_buffer(4)
        target.fill_(0)
        with device.use_stream(device.create_stream()):
            target.fill_(1)

    monkeypatch.setitem(SCENARIOS, "a_race", Scenario(race))

    with pytest.raises(RaceError) as caught:
        check("a_race", schedules("a_race", [7]))

    assert caught.value.__notes__ == ["in run('a_race', scheduler='asap', seed=0)"]


def test_the_sweep_counts_runs_and_accesses(capsys):
    """A sweep without a failure prints one line and exits with 0."""
    runs = [run for run in sweep.plan_runs(1) if run[0] == "losses_read_every_time"]

    assert sweep.sweep(runs, jobs=2) == 0
    counted = capsys.readouterr().out.split()
    assert counted[:2] == [str(len(runs)), "runs,"]
    assert int(counted[2]) > 100
    assert counted[3:] == ["accesses,", "0", "failures"]


def test_the_sweep_prints_what_failed(capsys):
    """A failure is printed with the call that repeats it, and the exit code is 1."""
    assert sweep.sweep([("no such scenario", "lazy", 3)], jobs=1) == 1

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "FAILED run('no such scenario', scheduler='lazy', seed=3)"
    assert lines[-1] == "1 runs, 0 accesses, 1 failures"
