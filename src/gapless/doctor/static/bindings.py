"""Bind what is assigned to: names, attributes, places of containers, the targets of loops."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gapless.doctor.static.scope import Class
from gapless.doctor.static.values import (
    ON_DEVICE,
    TENSORS,
    Value,
    element_of,
    is_host_index,
    is_mask,
    join,
    list_of,
)


if TYPE_CHECKING:
    from gapless.doctor.static.flow import Flow


def bind(flow: Flow, target: ast.expr, value: Value) -> None:
    """Bind a target to a value."""
    if isinstance(target, ast.Name):
        flow.frame.names[target.id] = value
    elif isinstance(target, ast.Tuple | ast.List):
        if len(value.parts) == len(target.elts):
            for one, its in zip(target.elts, value.parts, strict=True):
                bind(flow, one, its)
            return
        part = element_of(value)
        for one in target.elts:
            bind(flow, one, part)
    elif isinstance(target, ast.Attribute):
        _bind_attribute(flow, target, value)
    elif isinstance(target, ast.Subscript):
        _bind_place(flow, target, value)


def _bind_attribute(flow: Flow, target: ast.Attribute, value: Value) -> None:
    base = flow.value(target.value)
    if base.kind == "instance" and isinstance(base.what, Class):
        known = base.what.attributes
        former = known.get(target.attr)
        # A module that is moved is the one that it was.
        is_new = former is None or value.kind == former.kind == "module"
        known[target.attr] = value if former is None or is_new else join(former, value)


def _bind_place(flow: Flow, target: ast.Subscript, value: Value) -> None:
    base, index = flow.value(target.value), parts_of_index(flow, target.slice)
    if base.kind in ON_DEVICE and any(is_mask(one) for one in index):
        if value.kind in TENSORS:
            flow.report(target.lineno, "shape", "Tensor.__setitem__", sure=False)
    elif base.kind == "device" and any(map(is_host_index, index)):
        flow.report(target.lineno, "cpu index", "Tensor.__setitem__", sure=True)
    else:
        note_copy(flow, target.lineno, "Tensor.__setitem__", value, base)
    if base.kind == "list" and isinstance(target.value, ast.Name):
        names = flow.frame.names
        names[target.value.id] = list_of(join(base.of, value) if base.of else value)


def note_copy(
    flow: Flow, line: int, name: str, source: Value, target: Value, *, or_unknown: bool = False
) -> None:
    """Note a tensor that is copied into another, or to where that is, or may be."""
    if source.kind in ("host tensor", "pinned"):
        if target.kind in ON_DEVICE or (or_unknown and target.kind in ("tensor", "unknown")):
            flow.report(line, "copy", name, sure=target.kind == "device")
    elif source.kind == "device" and target.kind in ("host tensor", "pinned"):
        flow.report(line, "cpu", name, sure=True)


def parts_of_index(flow: Flow, node: ast.expr) -> list[Value]:
    """Return what the parts of an index are."""
    return [flow.value(one) for one in (node.elts if isinstance(node, ast.Tuple) else [node])]
