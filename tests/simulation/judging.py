"""Run the scenarios on a mutant, each mutant in a process of its own, and see who notices it."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
from time import perf_counter

from simulation.mutations import SOURCE, MutatedModule, find_mutants, modules
from simulation.scenarios import SCENARIOS, run, schedules


# Tried in this order: most mutants are noticed by the first.
SEEDS = [[1], [2, 3, 4, 5]]

# Far more than any scenario takes under one schedule; a mutant that hangs has been noticed.
_TIMEOUT_S = 10


# --- who could notice ---


class Reached:
    """The lines of all functions of the rooms that are called while it is entered."""

    def __init__(self):
        self._codes = set()

    def __enter__(self):
        # Called for every call, and with this answer for nothing else.
        def note(frame, event, _):
            self._codes.add(frame.f_code)

        self._before = sys.gettrace(), threading.gettrace()
        threading.settrace(note)
        sys.settrace(note)
        return self

    def __exit__(self, *error):
        sys.settrace(self._before[0])
        threading.settrace(self._before[1])

    def lines(self):
        """Return them as (module, line)."""
        names = {str(SOURCE / module): module for module in modules()}
        found = set()
        for code in self._codes:
            module = names.get(code.co_filename)
            if module is not None:
                last = max(line for _, _, line in code.co_lines() if line)
                found.update((module, line) for line in range(code.co_firstlineno, last + 1))
        return found


def find_witnesses():
    """Return the scenarios that call the function of each mutant, by its place, cheapest first.

    As soon and as late as the device may run, they reach what can be reached, and all pass before
    anything is removed.
    """
    seconds, reached = {}, {}
    for name in SCENARIOS:
        start = perf_counter()
        with Reached() as found:
            for scheduler, seed in schedules(name, [1])[:2]:
                run(name, scheduler=scheduler, seed=seed)
        seconds[name], reached[name] = perf_counter() - start, found.lines()
    cheapest_first = sorted(seconds, key=seconds.get)
    return {
        str(mutant.place): [
            name for name in cheapest_first if (mutant.place.module, mutant.line) in reached[name]
        ]
        for mutant in find_mutants()
    }


# --- who does ---


def judge(mutant, names):
    """Return who of these scenarios notices a mutant, "" if none does. Forks.

    Torch is loaded once, and what a mutant breaks ends with the child.
    """
    # Torch loads it late, which takes seconds: once here, or else in every child.
    importlib.import_module("torch._dynamo")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, _judge_here(mutant, names).encode()[:4096])
        except BaseException:
            # It could not even be imported: that nobody noticed it is what will be told.
            traceback.print_exc()
        os._exit(0)
    os.close(writer)
    verdict = os.read(reader, 4096).decode()
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"hang        ended by signal {os.WTERMSIG(status)}"
    return verdict


def _judge_here(mutant, names):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    warnings.resetwarnings()
    scenarios = _import_anew(mutant)
    for seeds in SEEDS:
        for name in names:
            for scheduler, seed in scenarios.schedules(name, seeds):
                signal.alarm(_TIMEOUT_S)
                try:
                    scenarios.run(name, scheduler=scheduler, seed=seed)
                except scenarios.RaceError:
                    return f"checker     in {name!r} ({scheduler} {seed})"
                except AssertionError:
                    return f"value       in {name!r} ({scheduler} {seed})"
                except BaseException as error:
                    return f"{type(error).__name__:11} in {name!r} ({scheduler} {seed})"
    return ""


def _import_anew(mutant):
    """Import gapless with a mutant in it, and the scenarios that use it."""
    packages = ("gapless", "simulation", "toy_steps", "late_device")
    for name in [name for name in sys.modules if name.split(".")[0] in packages]:
        del sys.modules[name]
    sys.meta_path.insert(0, MutatedModule(mutant))
    return importlib.import_module("simulation.scenarios")
