"""Says which part of a program each line belongs to: the training step, what it calls, evaluation and so on.

By names alone: what is called `evaluate` evaluates, and a name that the step has is a call of each
function of that name.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gapless.records.finding import Part


_OPTIMIZER = re.compile(r"optim|(^|_)opt(_|\d|s|$)", re.IGNORECASE)
_STEP_NAMES = frozenset({"training_step", "train_step", "compute_loss"})
# A loop that calls one of these trains, whatever loops it has itself: it takes a batch or a few.
_TAKES_A_STEP = re.compile(r"(^|_)(step|update|learn|optimi[sz]e)(_|$)", re.IGNORECASE)
_EVALUATES = re.compile(
    r"(^|_)(eval\w*|valid\w*|val|vali|test\w*|infer\w*|estimate_loss)(_|$)|dev(_|$)", re.IGNORECASE
)
_SAVES = re.compile(r"(^|_)(save\w*|checkpoint\w*|export\w*|dump\w*)(_|$)", re.IGNORECASE)
# What modules and loaders call by these names, no script calls by them.
_CALLED_BY_TORCH = frozenset({"forward", "__call__", "__getitem__", "__iter__", "collate_fn"})


@dataclass
class Outline:
    """A function, or the module around them, as far as its part is of interest.

    Attributes:
        name: of the function; empty for the module.
        owner: the class that it is a method of; empty for none.
        lines: that it has.
        steps: lines of the innermost loops that train, or all if it trains outside of a loop.
        around: the loops around those, or all lines of a function that takes a step, as its name says.
        seldom: blocks below conditions that do not train, such as every ten epochs.
        evaluations: loops over what is not trained on.
        names: that each line has.
        calls: names that are called, with the innermost loop around each call.
        made_of: names of what is made here, with the class of it.
        evaluates: whether it switches modules to evaluation.
        has_loop: whether there is a loop in it.
    """

    name: str
    owner: str
    lines: range
    steps: list[range] = field(default_factory=list)
    around: list[range] = field(default_factory=list)
    seldom: list[range] = field(default_factory=list)
    evaluations: list[range] = field(default_factory=list)
    names: dict[int, set[str]] = field(default_factory=dict)
    calls: dict[str, list[range]] = field(default_factory=dict)
    made_of: dict[str, str] = field(default_factory=dict)
    evaluates: bool = False
    has_loop: bool = False

    @property
    def is_evaluation(self) -> bool:
        """Whether it is called as evaluations are, and is not a part of a model that is called so."""
        is_part = self.owner and not self.has_loop and not self.evaluates
        return bool(_EVALUATES.search(self.name)) and not is_part

    def names_in_steps(self) -> set[str]:
        """Return what the step has names of."""
        return {
            name
            for line, names in self.names.items()
            if _is_in(line, self.steps)
            for name in names
        }


def outlines_of(tree: ast.Module) -> list[Outline]:
    """Return the functions of a file, the innermost first, and last the file itself."""
    last = max((node.end_lineno or 1 for node in tree.body), default=1)
    found: list[Outline] = []
    walk = _Walk(Outline("", "", range(1, last + 1)), found)
    walk.visit(tree)
    walk.end()
    return found


def parts_of(
    outlines: Mapping[str, list[Outline]], lines: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], Part]:
    """Return the part of each line of files.

    Args:
        outlines: of all files that are looked at, by path.
        lines: paths and numbers from 1.
    """
    everything = [one for its in outlines.values() for one in its]
    _add_loops_that_call(everything)
    trains = any(one.steps for one in everything)
    training_classes = {one.owner for one in everything if one.steps and one.owner}
    called = _called(everything)
    found: dict[tuple[str, int], Part] = {}
    for path, line in lines:
        around = [one for one in outlines.get(path, ()) if line in one.lines]
        if around:
            found[path, line] = _part(
                around, line, called, trains=trains, training_classes=training_classes
            )
    return found


def _part(
    around: list[Outline],
    line: int,
    called: set[str],
    *,
    trains: bool,
    training_classes: set[str],
) -> Part:
    for one in around:  # of functions in functions, the innermost that says something
        by_line = _by_line(one, line)
        if by_line or one.is_evaluation:
            return by_line or "evaluation"
        if one.name in called:
            return "called"
        if one.evaluates and not one.steps:
            return "evaluation"
        if _SAVES.search(one.name):
            return "saving"
        if one.owner in training_classes and one.name != "__init__":
            return "called"
    return "set-up" if trains or not around[0].name else "called"


def _by_line(one: Outline, line: int) -> Part | None:
    """Return what the loops around a line say; None where they say nothing."""
    spans: tuple[tuple[list[range], Part], ...] = (
        (one.evaluations, "evaluation"),
        (one.steps, "step"),
        (one.seldom if _is_in(line, one.around) else [], "evaluation"),
        (one.around, "step"),
    )
    return next((part for its, part in spans if _is_in(line, its)), None)


def _called(everything: list[Outline]) -> set[str]:
    """Return the names of functions that a step calls, directly or through others."""
    by_name: dict[str, list[Outline]] = {}
    for one in everything:
        by_name.setdefault(one.name, []).append(one)
    called = {name for name in _CALLED_BY_TORCH if name in by_name}
    new = set(called).union(*(one.names_in_steps() for one in everything))
    while new:
        new = {
            name
            for name in new
            if name in by_name
            and not _SAVES.search(name)
            and not all(one.is_evaluation for one in by_name[name])
        }
        called |= new
        new = {
            name
            for function in new
            for one in by_name[function]
            for names in one.names.values()
            for name in names
        } - called
    return called


def _add_loops_that_call(everything: list[Outline]) -> None:
    """Let loops that call a function which trains be steps too."""
    made_of = {name: owner for one in everything for name, owner in one.made_of.items()}
    for function in [one for one in everything if one.steps and one.name]:
        if function.steps != [function.lines]:
            continue
        names = {function.name}
        if function.name in _CALLED_BY_TORCH:
            names = {name for name, owner in made_of.items() if owner == function.owner}
        for one in everything:
            one.steps.extend(loop for name in names for loop in one.calls.get(name, ()))


def _is_in(line: int, spans: list[range]) -> bool:
    return any(line in span for span in spans)


class _Walk(ast.NodeVisitor):
    """Fills the outline of a function, and hands functions in it to walks of their own."""

    def __init__(self, its: Outline, found: list[Outline]) -> None:
        self._its = its
        self._found = found
        self._class = ""
        self._around: tuple[range, ...] = ()
        self._training: list[tuple[range, ...]] = [()] if its.name in _STEP_NAMES else []
        self._lines_that_train: list[int] = []

    def end(self) -> None:
        its = self._its
        steps = {around[-1] if around else its.lines for around in self._training}
        trains = {span for around in self._training for span in around}
        takes = _TAKES_A_STEP.search(its.name)
        its.steps = list(steps)
        its.around = [*trains.difference(steps), *([its.lines] if steps and takes else [])]
        its.seldom = self._without_training(its.seldom)
        its.evaluations = self._without_training(its.evaluations)
        self._found.append(its)

    def _without_training(self, spans: list[range]) -> list[range]:
        return [one for one in spans if not any(line in one for line in self._lines_that_train)]

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        inner = _Walk(Outline(node.name, self._class, _lines(node)), self._found)
        for statement in node.body:
            inner.visit(statement)
        inner.end()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        before, self._class = self._class, node.name
        self.generic_visit(node)
        self._class = before

    def visit_If(self, node: ast.If) -> None:
        first, last = node.body[0], node.body[-1]
        lines = range(first.lineno, (last.end_lineno or last.lineno) + 1)
        self._its.seldom.append(lines)
        if any(map(_EVALUATES.search, _words(node.test))) or any(map(_is_eval, node.body)):
            self._its.evaluations.append(lines)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.value, ast.Call):
            made = node.value.func
            while isinstance(inner := getattr(made, "value", None), ast.Call):
                made = inner.func  # of `Model().to(device)`
            owner, *_ = [*_words(made), ""]
            self._its.made_of.update((word, owner) for one in node.targets for word in _words(one))
        self.generic_visit(node)

    def visit_For(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        header = node.test if isinstance(node, ast.While) else node.iter
        lines = _lines(node)
        self._its.has_loop = True
        if any(_EVALUATES.search(word) for word in _words(header)):
            self._its.evaluations.append(lines)
        before, self._around = self._around, (*self._around, lines)
        self.generic_visit(node)
        self._around = before

    visit_AsyncFor = visit_While = visit_For  # noqa: N815

    def visit_Name(self, node: ast.Name) -> None:
        self._its.names.setdefault(node.lineno, set()).add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._its.names.setdefault(node.lineno, set()).add(node.attr)
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            name = node.func.attr
            is_step = name == "step" and any(map(_OPTIMIZER.search, _words(node.func.value)))
            if name in ("backward", "manual_backward") or is_step:
                self._training.append(self._around)
                self._lines_that_train.append(node.lineno)
            self._its.evaluates |= name == "eval" and not node.args
        if self._around:
            called, *_ = [*_words(node.func), ""]
            self._its.calls.setdefault(called, []).append(self._around[-1])
        self.generic_visit(node)


def _is_eval(node: ast.stmt) -> bool:
    """Whether a statement switches a module to evaluation."""
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "eval"


def _words(node: ast.AST | None) -> Iterator[str]:
    """Return the names in an expression."""
    for one in ast.walk(node) if node is not None else ():
        if isinstance(one, ast.Name):
            yield one.id
        elif isinstance(one, ast.Attribute):
            yield one.attr


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)
