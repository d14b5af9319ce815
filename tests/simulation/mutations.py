"""The ordering operations of the loop, and the code of functions with one of them taken away.

Operations are found in the source by what they call. `KINDS` is the table of what is looked for
and what is done to it; a new kind takes part as soon as it has a row.
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

from simulation.concepts import Place


if TYPE_CHECKING:
    from collections.abc import Callable


SOURCE = Path(__file__).parents[2] / "src" / "gapless"

# Folders and files of the source whose ordering operations take part.
ROOMS = ["pipeline", "graphs", "loop", "nmt/stream_manager.py", "ranks/collective_decision.py"]


def modules():
    """Return the modules of all rooms, as paths relative to the source."""
    return [
        str(path.relative_to(SOURCE))
        for room in ROOMS
        for path in (
            [SOURCE / room] if room.endswith(".py") else sorted((SOURCE / room).rglob("*.py"))
        )
    ]


def parse(module):
    return ast.parse((SOURCE / module).read_text(encoding="utf-8"))


# --- kinds of mutation ---


@dataclass(frozen=True)
class Kind:
    """A way to take an operation away.

    Attributes:
        done: to the operation, in words.
        finds: says whether a node of the syntax tree is such an operation.
        change: returns the node that takes its place.
    """

    done: str
    finds: Callable[[ast.AST], bool]
    change: Callable[[ast.AST], ast.AST]


def statement(*names):
    """Find calls of these functions or methods that stand alone."""
    return lambda node: isinstance(node, ast.Expr) and _called(node.value) in names


def question(*names):
    """Find calls of these functions or methods, whatever is done with the answer."""
    return lambda node: _called(node) in names


def context(*names):
    """Find calls of these functions or methods that a `with` enters."""
    return lambda node: isinstance(node, ast.withitem) and _called(node.context_expr) in names


def written(kind, *codes):
    """Find what is written so."""
    wanted = [_alone(ast.parse(code).body[0], kind) for code in codes]
    return lambda node: isinstance(node, kind) and any(_alike(node, one) for one in wanted)


def _alone(node, kind):
    """Return a statement, or the expression that it consists of if that is what is looked for."""
    return node if isinstance(node, kind) else node.value


def _alike(one, other):
    """Whether two parts of syntax trees are the same code: quicker than to write both out."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if not isinstance(one, ast.AST):
        return one == other
    return isinstance(one, ast.expr_context) or all(
        _alike(getattr(one, name, None), getattr(other, name, None)) for name in one._fields
    )


def flagged(name):
    """Find calls that set this flag."""
    return lambda node: (
        isinstance(node, ast.Call)
        and any(
            keyword.arg == name and ast.unparse(keyword.value) == "True"
            for keyword in node.keywords
        )
    )


def _called(node):
    """Return the name of the method or function that a node calls, None if it calls none."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else None


def _expression(code):
    return ast.parse(code, mode="eval").body


def _trees():
    return [parse(module) for module in modules()]


def guards():
    """Return the names of all classes that are guards."""
    return [
        node.name
        for tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and "Guard" in {ast.unparse(base) for base in node.bases}
    ]


def refusers():
    """Return the names of all functions that say why something is refused."""
    answers = {"Refusal", "Refusal | None"}
    return [
        node.name
        for tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.returns
        and ast.unparse(node.returns) in answers
    ]


def _guard_that_holds(node):
    return _expression("__import__('types').SimpleNamespace(check=lambda: lambda: True)")


def _fresh_event(node):
    return _expression(f"{ast.unparse(node.func.value)}._device.create_event(timed=True)")


def _without_flag(name):
    def change(node):
        kept = [keyword for keyword in node.keywords if keyword.arg != name]
        return ast.Call(func=node.func, args=node.args, keywords=kept)

    return change


def _null_context(node):
    entered = _expression("__import__('contextlib').nullcontext()")
    entered = ast.copy_location(entered, node.context_expr)
    return ast.withitem(context_expr=entered, optional_vars=node.optional_vars)


_OF_A_DEVICE = ["record_event", "record_stream", "wait_event", "wait_stream", "set_current_stream"]
_OF_A_DEVICE += ["synchronize_event", "synchronize_stream", "synchronize", "synchronize_all"]
_OF_LOSSES = ["flush", "poll", "drain", "_drain", "make_room", "take_arrived"]
_OF_BATCHES = ["leave_loader_memory", "collect", "leave", "result", "shutdown"]
_OF_BATCHES += [
    "_wait_for_thread",
    "_wait_for_copies",
    "_wait_for_helpers",
    "_order_moves",
    "_mark_ends",
]
_OF_A_LOOP = ["chain", "_limit_run_ahead", "_wait_for_losses", "after_step", "at_end"]
_OF_A_LOOP += ["wait_for_all", "_finish", "_finish_after", "on_update"]
_OF_WHAT_IS_OWNED = ["give_back", "reset", "restore", "pause", "close", "close_queues", "clear"]
_OF_A_PROOF = ["spoil", "level", "put_back"]

KINDS = [
    Kind(
        "removed",
        statement(
            *_OF_A_DEVICE,
            *_OF_LOSSES,
            *_OF_BATCHES,
            *_OF_A_LOOP,
            *_OF_WHAT_IS_OWNED,
            *_OF_A_PROOF,
        ),
        lambda node: ast.Pass(),
    ),
    # What a later wait, or a later look, depends on.
    Kind(
        "removed",
        written(
            (ast.Expr, ast.Assign, ast.AugAssign),
            "memory.tensors.append(tensor)",
            "self._loader_memory.tensors += tensors_inside(value)",
            "self._last.moved.append(moved)",
            "self._last.moved.append(found)",
            "staged.reads_loader_memory = self._leaves_late",
            "staged.reads_loader_memory = False",
            "staged.num_bytes += source.nbytes",
            "self._in_flight.add(staged)",
            "self._writers.append(stream)",
            "history.take(self.rows.read(history.num_read, copy.end))",
            "updates.compare_in(self.rows)",
            "self.rows.hold_too('shapes of kept tensors', [kept.are_alike])",
            "self.rows.add_all(reads.rows)",
            "rows.equal('classes of modules', type, self._modules)",
            "self._entries.drop_graphs()",
            "self.entries.drop_graphs()",
            "self._entries.forget_all()",
        ),
        lambda node: ast.Pass(),
    ),
    # As if there were nothing to guard against.
    Kind(
        "answered True",
        question("query_event", "needs_copy"),
        lambda node: ast.Constant(True),
    ),
    Kind(
        "answered True",
        written(ast.Compare, "num_holders(self.memory) == _ONE_HOLDER"),
        lambda node: ast.Constant(True),
    ),
    Kind(
        "answered False", question("_is_full", "may_be_pinned"), lambda node: ast.Constant(False)
    ),
    Kind("not detached", written(ast.Call, "target.detach()"), lambda node: node.func.value),
    Kind("without copy=True:", flagged("copy"), _without_flag("copy")),
    Kind("not recorded", question("record"), _fresh_event),
    Kind(
        "not entered",
        context(
            "use_stream", "use", "on_compute_stream", "blocking", "_blocking", "on_side_stream"
        ),
        _null_context,
    ),
    Kind("always holds", question(*guards()), _guard_that_holds),
    Kind(
        "always holds", written(ast.UnaryOp, "not verdict.holds"), lambda node: ast.Constant(False)
    ),
    Kind("refuses nothing", question(*refusers(), "objection"), lambda node: ast.Constant(None)),
]


# --- where they are ---


@dataclass(frozen=True)
class Mutant:
    """An ordering operation, and what is done to it.

    Attributes:
        place: of the operation, without its line.
        line: in the module.
        done: what is done to it.
        number: among the mutants of its module.
    """

    place: Place
    line: int
    done: str
    number: int

    def __str__(self):
        at = self.place
        return f"{at.module}:{self.line}  {at.function}  {self.done}  {at.code}"


# Most nodes of a tree; none of them is an operation.
_LEAVES = (ast.expr_context, ast.Name, ast.Constant)


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

    def visit(self, node):
        if isinstance(node, _LEAVES):
            return node
        for kind in KINDS:
            if kind.finds(node) and self._note(node, kind) == self._chosen:
                return ast.fix_missing_locations(ast.copy_location(kind.change(node), node))
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            return self.generic_visit(node)
        self._inside.append(node.name)
        node = self.generic_visit(node)
        self._inside.pop()
        return node

    def _note(self, node, kind):
        """Keep a mutant; return its number."""
        same = ".".join(self._inside), " ".join(ast.unparse(node).split())
        self._counts[same] += 1
        place = Place(self._module, *same, self._counts[same])
        # What a `with` enters has no line of its own.
        line = getattr(node, "context_expr", node).lineno
        self.mutants.append(Mutant(place, line, kind.done, len(self.mutants)))
        return self.mutants[-1].number


@cache
def find_mutants():
    """Return every ordering operation of all rooms."""
    found = []
    for module in modules():
        mutator = Mutator(module)
        mutator.visit(parse(module))
        found += mutator.mutants
    return tuple(found)


# --- code without one ---


def name_of_module(module):
    """Return the name by which a module of the rooms is imported."""
    return ".".join(["gapless", *Path(module).with_suffix("").parts])


def compiled(module, chosen=None):
    """Return the code of a module with a mutant of that number in it."""
    tree = Mutator(module, chosen).visit(parse(module))
    return compile(tree, str(SOURCE / module), "exec")


def changed_functions(mutant):
    """Return the functions of a module that a mutant changes, as pairs of old and new code."""
    module = mutant.place.module
    return list(unlike(compiled(module), compiled(module, mutant.number)))


def unlike(old, new):
    """Yield the outermost functions in two codes that are not the same."""
    for one, other in zip(_codes(old), _codes(new), strict=True):
        if one == other:
            continue
        if one.co_flags & inspect.CO_NEWLOCALS and one.co_flags & inspect.CO_OPTIMIZED:
            yield one, other
        else:
            yield from unlike(one, other)


def _codes(code):
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]
