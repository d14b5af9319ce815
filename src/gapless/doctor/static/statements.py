"""Go through the statements of a function; say whether the flow leaves the block with them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gapless.doctor.static import calls
from gapless.doctor.static.bindings import bind
from gapless.doctor.static.expressions import Expressions, result_of, runs_on_gpu
from gapless.doctor.static.flow import Flow
from gapless.doctor.static.frame import joined_names, keep
from gapless.doctor.static.scope import NEVER, OFTEN, Class, Function
from gapless.doctor.static.values import (
    NONE,
    Value,
    each_of,
    element_of,
    join,
    list_of,
    named,
)


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.doctor.static.frame import Frame
    from gapless.doctor.static.scope import Wait


_DEEPEST_LOOP = 3  # that is gone through twice where its values change


def waits_of(tree: ast.Module, *, makes_on_host: bool = True, log_level: int = 0) -> list[Wait]:
    """Return the waits of a file, one a line, in order.

    Args:
        tree: of the file.
        makes_on_host: whether tensors are made on the host where no device is named.
        log_level: below which nothing is logged.
    """
    flow = Flow(makes_on_host=makes_on_host, log_level=log_level)
    expressions = Expressions(flow)
    flow.value, flow.block = expressions.visit, Statements(flow, expressions).block
    return flow.waits(tree)


class Statements(ast.NodeVisitor):
    """Goes through statements: each `visit` returns whether the flow leaves the block.

    Args:
        flow: the walk through the file.
        expressions: of it.
    """

    def __init__(self, flow: Flow, expressions: Expressions) -> None:
        self._flow = flow
        self._expressions = expressions

    @property
    def _frame(self) -> Frame:
        return self._flow.frame

    def block(self, body: list[ast.stmt]) -> bool:
        """Go through statements in their order, until the flow leaves; return whether it does."""
        return any(self.visit(node) for node in body)

    def generic_visit(self, node: ast.AST) -> None:
        """Pass over a statement that neither binds nor computes anything that is followed."""

    def visit_Expr(self, node: ast.Expr) -> None:
        """Nobody takes the value."""
        self._flow.discarded = node.value
        self._flow.value(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Binds each target."""
        value = self._flow.value(node.value)
        for target in node.targets:
            bind(self._flow, target, value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """An annotation alone binds nothing."""
        if node.value is not None:
            bind(self._flow, node.target, self._flow.value(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Binds the result; a list keeps what was in it."""
        target, added = self._flow.value(node.target), self._flow.value(node.value)
        value = result_of(node.op, target, added)
        if target.kind == "list":
            value = list_of(join(target.of, element_of(added)) if target.of else element_of(added))
        bind(self._flow, node.target, value)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        """Goes over the elements of a value."""
        source = self._flow.value(node.iter)  # once, whatever the loop does
        self._loop(node, lambda: bind(self._flow, node.target, each_of(source)))

    def visit_While(self, node: ast.While) -> None:
        """May ask an event until it is done."""
        self._loop(node, lambda: self._spin(node.test))

    def _spin(self, test: ast.expr) -> None:
        self._expressions.truth(test)
        for one in ast.walk(test):
            if isinstance(one, ast.Call):
                calls.note_spin(self._flow, one)

    def _loop(
        self,
        node: ast.For | ast.AsyncFor | ast.While,
        begin: Callable[[], None],
    ) -> None:
        frame = self._frame
        level, waits = frame.level, frame.waits
        if level != NEVER:
            frame.level = OFTEN
        frame.num_loops += 1
        after = frame.names
        for attempt in range(2):
            entry = after
            frame.names, frame.waits = dict(entry), {}
            begin()
            self.block(node.body)
            after = joined_names(entry, frame.names)
            is_nested = frame.num_loops > _DEEPEST_LOOP
            if attempt or is_nested or all(after[name] == entry[name] for name in entry):
                break
        for wait in frame.waits.values():
            keep(waits, wait)
        frame.names, frame.waits = after, waits
        frame.level = level
        frame.num_loops -= 1
        self.block(node.orelse)

    def visit_If(self, node: ast.If) -> bool:
        """The paths come together behind it, unless one leaves."""
        frame = self._frame
        self._expressions.truth(node.test)
        entry = frame.names
        frame.names = dict(entry)
        on_gpu, level = runs_on_gpu(node.test), frame.level
        frame.level = NEVER if on_gpu is False else level
        leaves = self.block(node.body)
        then = frame.names
        frame.names = dict(entry)
        frame.level = NEVER if on_gpu else level
        leaves_too = self.block(node.orelse)
        frame.level = level
        if leaves_too:
            frame.names = then
        elif not leaves:
            frame.names = joined_names(then, frame.names)
        return leaves and leaves_too

    def visit_With(self, node: ast.With | ast.AsyncWith) -> bool:
        """Binds what the context gives."""
        for item in node.items:
            value = self._flow.value(item.context_expr)
            if item.optional_vars is not None:
                bind(
                    self._flow,
                    item.optional_vars,
                    element_of(value) if value.kind == "list" else value,
                )
        return self.block(node.body)

    def visit_Try(self, node: ast.Try) -> bool:
        """Handlers run seldom, with names as they were at the beginning."""
        frame = self._frame
        entry = dict(frame.names)
        leaves = self.block(node.body) or self.block(node.orelse)
        after = frame.names
        for handler in node.handlers:
            frame.names = dict(entry)
            if not self.block(handler.body):
                after = frame.names if leaves else joined_names(after, frame.names)
                leaves = False
        frame.names = after
        return self.block(node.finalbody) or leaves

    def visit_Match(self, node: ast.Match) -> None:
        """One case after the other: few scripts have any."""
        self._flow.value(node.subject)
        for case in node.cases:
            self.block(case.body)

    def visit_Return(self, node: ast.Return) -> bool:
        """The flow leaves."""
        self._frame.returned.append(NONE if node.value is None else self._flow.value(node.value))
        return True

    def visit_Raise(self, node: ast.Raise) -> bool:
        """The flow leaves; a message is made once, if at all."""
        return True

    def visit_Assert(self, node: ast.Assert) -> None:
        """Asks for a truth value."""
        self._expressions.truth(node.test)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Keeps the function for its calls."""
        frame = self._frame
        function = Function(node, [frame.names, *frame.outer])
        places = [*node.args.posonlyargs, *node.args.args]
        for one, default in zip(reversed(places), reversed(node.args.defaults), strict=False):
            if isinstance(default, ast.Attribute | ast.Name):
                value = self._flow.value(default)
                if value.kind in ("named", "function"):
                    function.defaults[one.arg] = value
        self._flow.functions.append(function)
        frame.names[node.name] = Value("function", what=function)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Keeps the methods; the constructor comes first."""
        frame = self._frame
        bases: tuple[str, ...] = ()
        for base in node.bases:
            value = self._flow.value(base)
            own = value.what if isinstance(value.what, str) else getattr(base, "id", "")
            inherited = value.what.bases if isinstance(value.what, Class) else ()
            bases = (*bases, own, *inherited)
        fields = [
            one.target.id
            for one in node.body
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        ]
        is_record = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
        cls = Class(node.name, bases, fields=tuple(fields) if is_record else ())
        frame.names[node.name] = Value("class", what=cls)
        for one in node.body:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                function = Function(one, [frame.names, *frame.outer], cls)
                cls.methods[one.name] = function
        constructor = cls.methods.get("__init__")
        ordered = sorted(cls.methods.values(), key=lambda one: one is not constructor)
        self._flow.functions.extend(ordered)

    def visit_Import(self, node: ast.Import) -> None:
        """Binds the module, or the first part of its name."""
        frame = self._frame
        for one in node.names:
            if one.asname:
                frame.names[one.asname] = named(one.name)
            else:
                root = one.name.partition(".")[0]
                frame.names[root] = named(root)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Binds names by their whole paths."""
        for one in node.names:
            self._frame.names[one.asname or one.name] = named(f"{node.module or ''}.{one.name}")

    visit_AsyncFor = visit_For  # noqa: N815
    visit_AsyncWith = visit_With  # noqa: N815
    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Continue(self, node: ast.Continue) -> bool:
        """The flow leaves."""
        return True

    def visit_Break(self, node: ast.Break) -> bool:
        """The flow leaves."""
        return True
