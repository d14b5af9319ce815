"""Run scenarios on a mutant, each mutant in a process of its own, and see who notices it."""

from __future__ import annotations

import gc
import importlib
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from functools import cache
from time import perf_counter
from types import FunctionType

from simulation.mutations import (
    SOURCE,
    changed_functions,
    find_mutants,
    modules,
    name_of_module,
)
from simulation.scenarios import SCENARIOS, RaceError, run, schedules


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

    A search of minutes; what was found is kept in `concepts.toml`.

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
    functions_of_rooms()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            _judge_here(mutant, names, lambda line: os.write(writer, f"{line}\n".encode()))
        except BaseException:
            # It could not even be made or tried: that nobody noticed it is what will be told.
            traceback.print_exc()
            os.write(writer, b"\n")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as told:
        *begun, last = told.read().splitlines() or [""]
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"hang        in {last!r} (ended by signal {os.WTERMSIG(status)})"
    return last if begun else ""


def scenario_of(verdict):
    """Return the name of the scenario in a verdict."""
    return re.search(r" in '([^']+)' \(", verdict)[1]


def _judge_here(mutant, names, tell):
    """Tell each scenario before it is run, and at the end the verdict."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    warnings.resetwarnings()
    change_in_place(mutant)
    for seeds in SEEDS:
        for name in names:
            tell(name)
            for scheduler, seed in schedules(name, seeds):
                signal.alarm(_TIMEOUT_S)
                try:
                    run(name, scheduler=scheduler, seed=seed)
                except BaseException as error:
                    tell(f"{_kind_of(error):11} in {name!r} ({scheduler} {seed})")
                    return
    tell("")


def _kind_of(error):
    """Return what a verdict calls an error."""
    kinds = {RaceError: "checker", AssertionError: "value"}
    return kinds.get(type(error), type(error).__name__)


@cache
def functions_of_rooms():
    """Return all functions of the rooms that are there when all their modules are imported."""
    for module in modules():
        importlib.import_module(name_of_module(module))
    files = {str(SOURCE / module) for module in modules()}
    # Objects that a test session has frozen are in no list.
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    functions = [
        found
        for found in gc.get_objects()
        if type(found) is FunctionType and found.__code__.co_filename in files
    ]
    if is_frozen:
        gc.collect()
        gc.freeze()
    return functions


def change_in_place(mutant):
    """Give functions the code of a mutant: of all that it changes, in this process."""
    give_code(changed_functions(mutant))


def give_code(pairs):
    """Give functions that have the first code of a pair the second one; return how to take it back."""
    changed = []
    for old, new in pairs:
        owners = [
            found
            for found in functions_of_rooms()
            if found.__code__ == old and found.__code__.co_filename == old.co_filename
        ]
        assert owners, f"no function has the code of {old.co_qualname}"
        for owner in owners:
            changed.append((owner, owner.__code__))
            owner.__code__ = new

    def take_back():
        for owner, code in changed:
            owner.__code__ = code

    return take_back
