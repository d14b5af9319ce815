"""Remove every ordering operation of the pipeline, one at a time, and see that it is noticed.

`make mutants` prints one line for each: where it is, what was done to it, and who noticed. An
operation that nobody misses is a missing test or a needless guard. Operations are found in the
source by what they call, so that a new one takes part without being listed.
"""

from __future__ import annotations

import ast
import importlib.util
import multiprocessing
import os
import signal
import sys
import threading
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from time import perf_counter

import torch

from simulation.scenarios import SCENARIOS, run, schedules


PIPELINE = Path(__file__).parents[2] / "src" / "gapless" / "pipeline"

# Calls that stand alone and are left out.
REMOVED = {
    *("record_event", "wait_event", "wait_stream", "set_current_stream"),
    *("synchronize_event", "synchronize_stream", "synchronize", "synchronize_all"),
    *("flush", "poll", "drain", "_make_room", "_read_rows", "_read_losses"),
    *("_chain", "_limit_run_ahead", "_wait_for_event", "_follow_plan"),
    *("finish", "finish_after", "give_back", "reset", "pause", "close", "clear"),
}
# Questions that are answered as if there were nothing to guard against.
ANSWERED = {"query_event": True, "_may_grow": True, "is_kept": False, "needs_copy": True}
# Contexts that are not entered.
NOT_ENTERED = {"use_stream", "use", "compute", "blocking"}
# Room that is taken away: (file, code, what it becomes).
SHRUNK = [("staging.py", "depth + 2", "depth + 1")]

# Tried in this order: most mutants are noticed by the first.
SEEDS = [[1], [2, 3, 4, 5]]

# Lines of the pipeline that a scenario calls functions of, by scenario, cheapest first.
_reached = {}

# Far more than any scenario takes under one schedule; a mutant that hangs has been noticed.
_TIMEOUT_S = 10


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    code: str
    done: str
    number: int

    def __str__(self):
        return f"{self.file}:{self.line}  {self.done}  {self.code}"


class Mutator(ast.NodeTransformer):
    """Find the ordering operations of a module, and change the one of that number."""

    def __init__(self, path, chosen=None):
        self.path = path
        self.mutants = []
        self._chosen = chosen

    def _offer(self, node, done, changed):
        number = len(self.mutants)
        code = " ".join(ast.unparse(node).split())
        self.mutants.append(Mutant(self.path.name, node.lineno, code, done, number))
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
        for file, code, smaller in SHRUNK:
            if file == self.path.name and ast.unparse(node) == code:
                return self._offer(
                    node, f"became {smaller}:", ast.parse(smaller, mode="eval").body
                )
        return node


def _called(node):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr
    return None


def find_mutants():
    """Return every ordering operation of the pipeline."""
    found = []
    for path in sorted(PIPELINE.glob("*.py")):
        mutator = Mutator(path)
        mutator.visit(ast.parse(path.read_text(encoding="utf-8")))
        found += mutator.mutants
    return found


class MutatedModule(MetaPathFinder, Loader):
    """Import one module of the pipeline with a mutant in it."""

    def __init__(self, mutant):
        path = PIPELINE / mutant.file
        self._name = f"gapless.pipeline.{path.stem}"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self._code = compile(Mutator(path, mutant.number).visit(tree), str(path), "exec")

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
    names = [name for name, lines in _reached.items() if (mutant.file, mutant.line) in lines]
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
    """The lines of all functions of the pipeline that are called while it is entered."""

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
        """Return them as (file, line)."""
        found = set()
        for code in self._codes:
            path = Path(code.co_filename)
            if path.parent == PIPELINE:
                last = max(line for _, _, line in code.co_lines() if line)
                found.update((path.name, line) for line in range(code.co_firstlineno, last + 1))
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


def main(chosen=""):
    """Judge all mutants, or those whose line of the table contains a text."""
    torch.set_num_threads(1)
    _reached.update(reach_of_all())
    mutants = [mutant for mutant in find_mutants() if chosen in str(mutant)]
    num_killed = 0
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for mutant, verdict in pool.imap(_judge_apart, mutants):
            num_killed += bool(verdict)
            print(f"{verdict or 'SURVIVED':70}  {mutant}", flush=True)
    print(f"{num_killed}/{len(mutants)} killed")
    return 0 if mutants and num_killed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
