r"""Where a text goes that a late number becomes a part of, by the syntax of the user's line.

Only texts that are seen to go nowhere but to an output of the process may be written late, such as

    print(f"loss {loss:.3f}")      print("loss", loss)      log.info(f"loss {loss}")
    sys.stdout.write("loss {}\n".format(loss))

and those of a function or of `__str__` that returns the text to such a call.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import logging
import sys
from dataclasses import dataclass
from functools import cache
from string import Formatter
from typing import TYPE_CHECKING, Any, TypeAlias

from gapless.unnoticed import local_names


if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, FrameType

    # Line, last line, column, last column.
    _Span: TypeAlias = tuple[int, int, int, int]


_LOG_CALLS = frozenset(
    ["debug", "info", "warning", "error", "critical", "fatal", "exception", "log"]
)

# Functions that return a text to another, one within the other.
_MOST_CALLERS = 4

_STR_NO_CONVERSION = (-1, ord("s"))

# Methods whose text goes where their object stood.
_ASKED_FOR_TEXT = ("__str__", "__repr__")


class _Source:
    """The syntax tree of a file, by the places of its expressions."""

    def __init__(self, tree: ast.AST) -> None:
        self.parents: dict[ast.AST, ast.AST] = {}
        self.nodes: dict[_Span, list[ast.AST]] = {}
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            if isinstance(node, ast.expr) and node.end_lineno and node.end_col_offset is not None:
                span = (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)
                self.nodes.setdefault(span, []).append(node)


@cache
def source_of(path: str) -> _Source | None:
    """Return the syntax tree of a file, None if it cannot be read."""
    try:
        return _Source(ast.parse("".join(linecache.getlines(path))))
    except (SyntaxError, ValueError):
        return None


@cache
def _span_at(code: CodeType, instruction: int) -> _Span | None:
    spans = list(code.co_positions())
    found = spans[instruction // 2] if 0 <= instruction // 2 < len(spans) else (None,) * 4
    line, last_line, column, last_column = found
    if line is None or last_line is None or column is None or last_column is None:
        return None
    return line, last_line, column, last_column


def goes_to_output(frame: FrameType | None, streams: Sequence[Any]) -> bool:
    """Return whether the text that is being made goes nowhere but to an output.

    Args:
        frame: the user's, whose call or f-string asks for the text of a late number.
        streams: the outputs.
    """
    is_result = False
    for _ in range(_MOST_CALLERS):
        if frame is None:
            return False
        source, nodes = _nodes_at(frame)
        start = next((node for node in nodes if _makes_text(node, source)), None)
        if source is None or start is None:
            return False
        end = _end_of_text(start, source, is_text=is_result)
        if isinstance(end, _TakenBy):
            is_alone = isinstance(source.parents.get(end.call), ast.Expr)
            return _is_output(end, frame, streams, is_alone=is_alone)
        if end is None:
            return False
        name, frame = frame.f_code.co_name, frame.f_back
        is_result = name not in _ASKED_FOR_TEXT
        if is_result and not _is_call_of(name, frame):
            return False
    return False


def _nodes_at(frame: FrameType) -> tuple[_Source | None, list[ast.AST]]:
    """Return the expressions that run in a frame, and the source that holds them."""
    span = _span_at(frame.f_code, frame.f_lasti)
    source = None if span is None else source_of(frame.f_code.co_filename)
    return source, [] if source is None or span is None else source.nodes.get(span, [])


def _is_call_of(name: str, frame: FrameType | None) -> bool:
    """Return whether what runs in a frame is a call of a function of that name."""
    nodes = [] if frame is None else _nodes_at(frame)[1]
    return any(isinstance(node, ast.Call) and _name_of(node.func) == name for node in nodes)


def _name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else ""


# --- within a line ---


@dataclass(frozen=True)
class _TakenBy:
    """A call that takes a text.

    Attributes:
        call: the call.
        place: of the text among its arguments; None if it makes the text of them itself.
    """

    call: ast.Call
    place: int | None


def _end_of_text(
    start: ast.AST, source: _Source, *, is_text: bool
) -> _TakenBy | ast.Return | None:
    """Return the call that takes a text, or the `return`; None if it is used otherwise.

    Args:
        start: what makes the text.
        source: that holds it.
        is_text: whether a call there returns the text, rather than making one of its arguments.
    """
    if isinstance(start, ast.Call) and not is_text and not _passes_text_on(start):
        return _TakenBy(start, None)
    node = start
    while True:
        above = source.parents.get(node)
        if isinstance(above, ast.Return):
            return above
        if isinstance(above, ast.Call):
            if node not in above.args:
                return None
            if not _is_str(above):
                return _TakenBy(above, above.args.index(node))
        elif above is None or not _holds_as_it_is(above, node):
            return None
        node = above


def _makes_text(node: ast.AST, source: _Source | None) -> bool:
    if source is None:
        return False
    if isinstance(node, ast.Call):
        return True
    if isinstance(node, ast.FormattedValue):
        above = source.parents.get(node)
        return isinstance(above, ast.JoinedStr) and _keeps_texts(above)
    return isinstance(node, ast.JoinedStr) and _keeps_texts(node)


def _keeps_texts(node: ast.JoinedStr) -> bool:
    """Return whether an f-string has its values' texts in it as they are."""
    values = [part for part in node.values if isinstance(part, ast.FormattedValue)]
    return not any(
        part.format_spec is not None
        and (part.conversion != -1 or not _is_constant(part.format_spec))
        for part in values
    )


def _is_constant(spec: ast.expr) -> bool:
    return isinstance(spec, ast.JoinedStr) and all(
        isinstance(part, ast.Constant) for part in spec.values
    )


def _holds_as_it_is(above: ast.AST, node: ast.AST) -> bool:
    """Return whether an expression has the text of a part in it as it is."""
    if isinstance(above, ast.JoinedStr):
        return node in above.values and _keeps_texts(above)
    if isinstance(above, ast.FormattedValue):
        return (
            node is above.value
            and above.format_spec is None
            and above.conversion in _STR_NO_CONVERSION
        )
    if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Add):
        other = above.right if node is above.left else above.left
        is_text = isinstance(other, ast.Constant) and isinstance(other.value, str)
        return is_text or isinstance(other, ast.JoinedStr | ast.BinOp | ast.IfExp)
    return isinstance(above, ast.IfExp) and node is not above.test


def _is_str(call: ast.Call) -> bool:
    is_named = isinstance(call.func, ast.Name) and call.func.id == "str"
    return is_named and len(call.args) == 1 and not call.keywords


def _passes_text_on(call: ast.Call) -> bool:
    """Return whether a call returns the texts of its arguments as they are."""
    function = call.func
    if _is_str(call):
        return True
    if not isinstance(function, ast.Attribute) or function.attr != "format":
        return False
    return isinstance(function.value, ast.Constant) and _is_simple_form(function.value.value)


def _is_simple_form(form: Any) -> bool:
    """Return whether `form.format(...)` formats each value by a form that is written there."""
    if not isinstance(form, str):
        return False
    try:
        parts = list(Formatter().parse(form))
    except ValueError:
        return False
    return not any(conversion or "{" in (spec or "") for _, _, spec, conversion in parts)


# --- the call that takes it ---


def _is_output(
    taken: _TakenBy, frame: FrameType, streams: Sequence[Any], *, is_alone: bool
) -> bool:
    """Return whether a call writes a text to an output, and does nothing else with it.

    Args:
        taken: the call.
        frame: that makes it.
        streams: the outputs.
        is_alone: whether nobody uses what it returns; `write` returns how many characters there were.
    """
    function = taken.call.func
    if isinstance(function, ast.Name):
        return function.id == "print" and _is_print(taken.call, frame, streams)
    if not isinstance(function, ast.Attribute) or taken.place is None:
        return False
    target = _value_of(function.value, frame)
    if function.attr == "write":
        return is_alone and _is_among(target, streams)
    if function.attr not in _LOG_CALLS or taken.place != int(function.attr == "log"):
        return False
    return _is_of_logging(logging.root if target is logging else target, function.attr)


def _is_print(call: ast.Call, frame: FrameType, streams: Sequence[Any]) -> bool:
    if _value_of(call.func, frame) is not builtins.print:
        return False
    files = [keyword.value for keyword in call.keywords if keyword.arg == "file"]
    has_others = any(keyword.arg is None for keyword in call.keywords)
    stream = _value_of(files[0], frame) if files else sys.stdout
    return not has_others and _is_among(stream, streams)


def _is_among(stream: Any, streams: Sequence[Any]) -> bool:
    return any(stream is one for one in streams)


def _is_of_logging(logger: Any, name: str) -> bool:
    """Return whether a call is one of a logger that is as the standard library has it."""
    kind = type(logger)
    return (
        issubclass(kind, logging.Logger)
        and getattr(kind, name) is getattr(logging.Logger, name)
        and kind.handle is logging.Logger.handle
        and kind.makeRecord is logging.Logger.makeRecord
        and logging.getLogRecordFactory() is logging.LogRecord
    )


def _value_of(node: ast.expr, frame: FrameType) -> Any:
    """Return what a name, or an attribute of one, stands for; None for other expressions."""
    if isinstance(node, ast.Name):
        for names in (local_names(frame), frame.f_globals, vars(builtins)):
            if node.id in names:
                return names[node.id]
        return None
    if not isinstance(node, ast.Attribute):
        return None
    holder = _value_of(node.value, frame)
    if holder is None:
        return None
    return vars(holder).get(node.attr) if hasattr(holder, "__dict__") else None
