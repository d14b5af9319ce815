"""Remove every ordering operation of the loop, one at a time, and see that it is noticed.

`make mutants` prints for each who noticed, what it is about, and where it was and is. An
operation that nobody misses is a missing test or a needless guard. Operations are found in the
source by what they call; `concepts.toml` says in words what each is for.

    python -m simulation.mutants [TEXT]    judge all, or those whose line contains a text
    python -m simulation.mutants --list    print what is found, "?" where the list has no words
    python -m simulation.mutants --remap   after a move: find the new places of known operations
"""

from __future__ import annotations

import ast
import importlib.util
import multiprocessing
import os
import signal
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from time import perf_counter

import torch

from simulation import concepts
from simulation.scenarios import SCENARIOS, run, schedules


SOURCE = Path(__file__).parents[2] / "src" / "gapless"

# Folders and files of the source whose ordering operations take part.
ROOMS = ["pipeline", "graphs", "loop", "nmt/stream_manager.py"]

# Calls that stand alone and are left out.
REMOVED = {
    *("record_event", "wait_event", "wait_stream", "set_current_stream"),
    *("synchronize_event", "synchronize_stream", "synchronize", "synchronize_all"),
    *("flush", "poll", "drain", "_make_room", "_read_rows", "_read_losses"),
    *("chain", "_limit_run_ahead", "_wait_for_losses", "after_step", "at_end", "wait_for_all"),
    *("_finish", "_finish_after", "give_back", "reset", "pause", "close", "clear"),
}
# Questions that are answered as if there were nothing to guard against.
ANSWERED = {"query_event": True, "_may_grow": True, "is_kept": False, "needs_copy": True}
# Contexts that are not entered.
NOT_ENTERED = {"use_stream", "use", "on_compute_stream", "blocking", "_on_own_stream"}
# Sums that give one less.
SHRUNK = {"depth + 2": "depth + 1"}

# Tried in this order: most mutants are noticed by the first.
SEEDS = [[1], [2, 3, 4, 5]]

# Lines of functions that a scenario calls, by scenario, cheapest first.
_reached = {}

# Far more than any scenario takes under one schedule; a mutant that hangs has been noticed.
_TIMEOUT_S = 10


@dataclass(frozen=True)
class Mutant:
    """An ordering operation, and what is done to it.

    Attributes:
        place: of the operation, without its line.
        line: in the module.
        done: what is done to it.
        number: among the mutants of its module.
    """

    place: concepts.Place
    line: int
    done: str
    number: int

    def __str__(self):
        at = self.place
        return f"{at.module}:{self.line}  {at.function}  {self.done}  {at.code}"


class Mutator(ast.NodeTransformer):
    """Find the ordering operations of a module, and change the one of that number.

    Args:
        module: path relative to the source.
        chosen: number of the mutant to make; None: only find them.
    """

    def __init__(self, module, chosen=None):
        self.mutants = []
        self._module = module
        self._chosen = chosen
        self._inside = []
        self._counts = Counter()

    def _enter(self, node):
        self._inside.append(node.name)
        node = self.generic_visit(node)
        self._inside.pop()
        return node

    def visit_ClassDef(self, node):
        return self._enter(node)

    def visit_FunctionDef(self, node):
        return self._enter(node)

    def visit_AsyncFunctionDef(self, node):
        return self._enter(node)

    def _offer(self, node, done, changed):
        number = len(self.mutants)
        same = ".".join(self._inside), " ".join(ast.unparse(node).split())
        self._counts[same] += 1
        place = concepts.Place(self._module, *same, self._counts[same])
        self.mutants.append(Mutant(place, node.lineno, done, number))
        if number != self._chosen:
            return node
        return ast.fix_missing_locations(ast.copy_location(changed, node))

    def visit_Expr(self, node):
        node = self.generic_visit(node)
        if _called(node.value) in REMOVED:
            return self._offer(node, "removed", ast.Pass())
        return node

    def visit_Call(self, node):
        node = self.generic_visit(node)
        name = _called(node)
        if name in ANSWERED:
            done = f"answered {ANSWERED[name]}"
            return self._offer(node, done, ast.Constant(ANSWERED[name]))
        if name == "record":
            pool = ast.unparse(node.func.value)
            fresh = ast.parse(f"{pool}._device.create_event(timed=True)", mode="eval").body
            return self._offer(node, "not recorded", fresh)
        return node

    def visit_With(self, node):
        node = self.generic_visit(node)
        for item in node.items:
            if _called(item.context_expr) in NOT_ENTERED:
                body = ast.parse("__import__('contextlib').nullcontext()", mode="eval").body
                item.context_expr = self._offer(item.context_expr, "not entered", body)
        return node

    def visit_BinOp(self, node):
        node = self.generic_visit(node)
        smaller = SHRUNK.get(ast.unparse(node))
        if smaller is None:
            return node
        return self._offer(node, f"became {smaller}:", ast.parse(smaller, mode="eval").body)


def _called(node):
    """Return the name of the method or function that a node calls, None if it calls none."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else None


def modules():
    """Return the modules of all rooms, as paths relative to the source."""
    return [
        str(path.relative_to(SOURCE))
        for room in ROOMS
        for path in (
            [SOURCE / room] if room.endswith(".py") else sorted((SOURCE / room).glob("*.py"))
        )
    ]


def parse(module):
    return ast.parse((SOURCE / module).read_text(encoding="utf-8"))


def find_mutants():
    """Return every ordering operation of all rooms."""
    found = []
    for module in modules():
        mutator = Mutator(module)
        mutator.visit(parse(module))
        found += mutator.mutants
    return found


class MutatedModule(MetaPathFinder, Loader):
    """Import one module with a mutant in it."""

    def __init__(self, mutant):
        module = mutant.place.module
        self._name = ".".join(["gapless", *Path(module).with_suffix("").parts])
        tree = Mutator(module, mutant.number).visit(parse(module))
        self._code = compile(tree, str(SOURCE / module), "exec")

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name == self._name else None

    def exec_module(self, module):
        module.__file__ = self._code.co_filename
        exec(self._code, module.__dict__)


def _import_anew(mutant):
    """Import gapless with a mutant in it, and the scenarios that use it."""
    loaded = [name for name in sys.modules if name.split(".")[0] in ("gapless", "simulation")]
    for name in loaded:
        del sys.modules[name]
    sys.meta_path.insert(0, MutatedModule(mutant))
    return importlib.import_module("simulation.scenarios")


def judge(mutant):
    """Return who notices a mutant, None if nobody does. Runs in a process of its own."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    scenarios = _import_anew(mutant)
    place = (mutant.place.module, mutant.line)
    names = [name for name, lines in _reached.items() if place in lines]
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
                except Exception as error:
                    return f"{type(error).__name__:11} in {name!r} ({scheduler} {seed})"
    return None


def _judge_apart(mutant):
    """Fork, so that torch is loaded once; return the verdict of the child."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        verdict = judge(mutant)
        os.write(writer, (verdict or "").encode())
        os._exit(0)
    os.close(writer)
    verdict = os.read(reader, 4096).decode()
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        verdict = f"hang        ended by signal {os.WTERMSIG(status)}"
    return mutant, verdict


class Reached:
    """The lines of all functions of the rooms that are called while it is entered."""

    def __init__(self):
        self._codes = set()

    def __enter__(self):
        # Called for every call, and with this answer for nothing else.
        def note(frame, event, _):
            self._codes.add(frame.f_code)

        threading.settrace(note)
        sys.settrace(note)
        return self

    def __exit__(self, *error):
        sys.settrace(None)
        threading.settrace(None)

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


def reach_of_all():
    """Return what each scenario reaches, cheapest first; all pass before anything is removed.

    Run in this process: the children that judge inherit what torch loads late.
    """
    seconds, reached = {}, {}
    for name in SCENARIOS:
        start = perf_counter()
        with Reached() as found:
            for scheduler, seed in schedules(name, [1]):
                run(name, scheduler=scheduler, seed=seed)
        seconds[name], reached[name] = perf_counter() - start, found.lines()
    return {name: reached[name] for name in sorted(seconds, key=seconds.get)}


def describe(mutant, known):
    """Return a mutant's concept, its old place and its present one; "?" where there is none."""
    concept = known.get(mutant.place)
    words, was = (concept.name, concept.was) if concept else ("?", "?")
    return f"{words}\n        was {was}\n        is  {mutant}"


def judge_all(chosen=""):
    """Judge all mutants, or those whose description contains a text; return the exit code."""
    torch.set_num_threads(1)
    _reached.update(reach_of_all())
    known = concepts.by_place(concepts.read())
    mutants = [mutant for mutant in find_mutants() if chosen in describe(mutant, known)]
    num_killed = 0
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for mutant, verdict in pool.imap(_judge_apart, mutants):
            num_killed += bool(verdict)
            print(f"{verdict or 'SURVIVED':70}  {describe(mutant, known)}", flush=True)
    print(f"{num_killed}/{len(mutants)} killed")
    return 0 if mutants and num_killed == len(mutants) else 1


def list_all():
    """Print every mutant that is found and every concept that is not; return the exit code."""
    known = concepts.by_place(concepts.read())
    mutants = find_mutants()
    for mutant in mutants:
        print(describe(mutant, known))
    places = {mutant.place for mutant in mutants}
    lost = [concept for place, concept in known.items() if place not in places]
    for concept in lost:
        print(f"LOST {concept.name}\n        was {concept.was}\n        not {concept.place}")
    num_unknown = len(places - set(known))
    print(f"{len(mutants)} mutants, {num_unknown} without a concept, {len(lost)} concepts lost")
    return 1 if num_unknown or lost else 0


def remap_all(path=concepts.FILE):
    """Rewrite the places of operations that moved, print what is in doubt; return the exit code."""
    before = concepts.read(path)
    places = {mutant.place for mutant in find_mutants()}
    after, lost = concepts.remap(before, places)
    for old, new in zip(before, after, strict=True):
        if old != new:
            print(f"MOVED {new.name}\n        from {old.place}\n        to   {new.place}")
    free = places - {concept.place for concept in after}
    for concept in lost:
        print(f"LOST {concept.name}\n        from {concept.place}")
        for place in concepts.likely(concept, free):
            print(f"        like {place}")
    for place in sorted(free):
        print(f"? {place}")
    if after != before:
        concepts.write(after, path)
    return 1 if lost or free else 0


def main(*arguments):
    """Do what the command line says; return the exit code."""
    if arguments in (("--list",), ("--remap",)):
        return {"--list": list_all, "--remap": remap_all}[arguments[0]]()
    return judge_all(*arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
