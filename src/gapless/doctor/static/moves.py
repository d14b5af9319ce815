"""Copies between the host and the device: `to`, `cuda`, `cpu`, and where `device=` says."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gapless.doctor.static.bindings import bind
from gapless.doctor.static.values import (
    DEVICE,
    HOST_TENSOR,
    MASK,
    ON_DEVICE,
    OUTPUT,
    PINNED,
    TENSOR,
    Value,
)


if TYPE_CHECKING:
    from gapless.doctor.static.flow import Call, Flow


def move(flow: Flow, done: Call, base: Value, *, is_discarded: bool) -> Value:
    """Go through `to`, `cuda` or `cpu`."""
    place: str | None = "device" if done.name == "cuda" else "cpu"
    if done.name == "to":
        first = done.node.args[0] if done.node.args else None
        place = device_of(done) if first is None else _place(first, done.values[0])
    function = done.node.func
    if is_discarded and base.kind in ("unknown", "tensor", "module", "object"):
        base = Value("module", of=TENSOR)  # a tensor is not moved in place, a module is
        module = _moved_module(base, place)
        if isinstance(function, ast.Attribute):
            bind(flow, _owner(function.value), module)
        return module
    if base.kind in ("module", "object"):
        return _moved_module(base, place)
    return moved(flow, done, base, place, f"Tensor.{done.name}")


def _owner(node: ast.expr) -> ast.expr:
    """Return the module in `model.eval().cpu()`."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def _moved_module(module: Value, place: str | None) -> Value:
    if place == "device":
        of = DEVICE if module.form == "torch" else OUTPUT
    else:
        of = TENSOR if place == "cpu" else module.of or TENSOR
    return Value("module", module.form, of, module.what if module.kind == "module" else None)


def moved(flow: Flow, done: Call, base: Value, place: str | None, name: str) -> Value:
    """Copy a tensor to a place, if it is not there."""
    kind, is_late = base.kind, _is_non_blocking(done)
    if place is None or kind in ("host", "none"):
        return base
    if place == "cpu":
        if kind in ("host tensor", "pinned"):
            return base
        if not is_late:
            value = DEVICE if kind == "output" else base
            flow.read(done.line, "cpu", name, value, or_unknown=True)
        return PINNED if is_late else HOST_TENSOR
    if kind in ON_DEVICE:
        return base
    if place == "any":
        if kind == "host tensor":
            flow.report(done.line, "pageable copy" if is_late else "copy", name, sure=False)
        return TENSOR
    if kind == "host tensor":
        flow.report(done.line, "pageable copy" if is_late else "copy", name, sure=True)
    elif not is_late:
        flow.report(done.line, "copy", name, sure=kind == "pinned")
    on_device = MASK if base.form == "mask" else DEVICE
    return OUTPUT if kind == "unknown" else on_device  # it may be a structure that has a `to`


def device_of(done: Call) -> str | None:
    """Return what `device=` names: "device", "cpu", "any" device; None where it is not given."""
    for one in done.node.keywords:
        if one.arg == "device":
            return _place(one.value, done.keywords["device"]) or "any"
    return None


def _place(node: ast.expr, value: Value) -> str | None:
    """Return what an argument of `to` names: "device", "cpu", "any" device; None for a dtype."""
    kind = value.kind
    if kind == "device name" or kind in ON_DEVICE:
        return "device"
    if kind in ("cpu name", "host tensor", "pinned"):
        return "cpu"
    if kind in ("any device name", "tensor"):
        return "any"
    return "device" if isinstance(node, ast.Constant) and type(node.value) is int else None


def _is_non_blocking(done: Call) -> bool:
    second = done.node.args[1:2] if done.name == "to" else done.node.args[:1]
    by_place = [one for one in second if isinstance(one, ast.Constant) and one.value is True]
    return done.flag("non_blocking") or bool(by_place)
