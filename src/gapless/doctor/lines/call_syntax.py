"""Name the call or operation that an instruction of the user's code belongs to."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from types import CodeType


# Line and column of the beginning and of the end.
_Span = tuple[int, int, int, int]

# Syntax that has no name to call it by.
_OPERATIONS: dict[type[ast.expr | ast.stmt], str] = {
    ast.Subscript: "indexing",
    ast.BinOp: "arithmetic",
    ast.AugAssign: "arithmetic",
    ast.Compare: "comparison",
}


def operation_at(code: CodeType, instruction: int) -> str:
    """Return what an instruction does: the last name of a call, or a kind of operation.

    Empty where the source cannot be read, or has nothing there that has a name.
    """
    node = _node_at(code, instruction)
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and _is_text(node.left):
        return "format"
    return "" if node is None else _OPERATIONS[type(node)]


def index_at(code: CodeType, instruction: int) -> ast.expr | None:
    """Return the index of `a[index]` that an instruction reads or sets; None where it does not."""
    node = _node_at(code, instruction)
    return node.slice if isinstance(node, ast.Subscript) else None


def last_name(node: ast.expr) -> str:
    """Return `c` for `a.b.c` and for `c`; empty where there is no such name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _node_at(code: CodeType, instruction: int) -> ast.expr | ast.stmt | None:
    position = next(itertools.islice(code.co_positions(), instruction // 2, None), None)
    if position is None or None in position:
        return None
    line, end_line, column, end_column = (int(part or 0) for part in position)
    nodes = _nodes(code.co_filename)
    # An instruction of a call over several lines begins at its last name, and ends where the call ends.
    return nodes.get((line, column, end_line, end_column)) or nodes.get(
        (0, 0, end_line, end_column)
    )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@functools.lru_cache(maxsize=64)
def _nodes(path: str) -> dict[_Span, ast.expr | ast.stmt]:
    """Return calls and operations of a file by their span; calls also by their end alone."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return {}
    found: dict[_Span, ast.expr | ast.stmt] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.Subscript | ast.BinOp | ast.AugAssign | ast.Compare):
            end = (node.end_lineno or 0, node.end_col_offset or 0)
            found[node.lineno, node.col_offset, *end] = node
            if isinstance(node, ast.Call):
                found[0, 0, *end] = node
    return found
