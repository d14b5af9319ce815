"""What calls do: whom they call, what that returns, and whether it waits."""

from __future__ import annotations

import ast
from collections.abc import Callable

from gapless.doctor.static import torch_names
from gapless.doctor.static.flow import Call, Flow
from gapless.doctor.static.hints import made_by, meant_by
from gapless.doctor.static.methods import call_method, call_module, log
from gapless.doctor.static.scope import NEVER, Class, Function
from gapless.doctor.static.torch_calls import call_torch, note_size
from gapless.doctor.static.values import (
    ARRAY,
    EMPTY,
    HOST,
    MODULE,
    TENSOR,
    UNKNOWN,
    Value,
    dict_of,
    each_of,
    element_of,
    join,
    list_of,
    pairs_of,
    strongest,
    tuple_of,
)


def call(flow: Flow, node: ast.Call) -> Value:
    """Go through a call; return what it returns."""
    function = node.func
    if isinstance(function, ast.Attribute):
        is_discarded = flow.discarded is node
        flow.discarded = None
        base = flow.value(function.value)
        done = Call(flow, node)
        if base.kind == "named":
            path = f"{base.what}.{function.attr}"
            return _named(flow, done, path)
        if base.kind == "instance" and isinstance(base.what, Class):
            held = base.what.attributes.get(function.attr, UNKNOWN)
            if held.kind in ("named", "function", "module", "object", "class"):
                return _called(flow, done, held)
        return call_method(flow, done, base, is_discarded=is_discarded)
    flow.discarded = None
    if isinstance(function, ast.Name):
        value = flow.frame.look_up(function.id)
        done = Call(flow, node)
        if value is None and (builtin := _BUILTINS.get(function.id)) is not None:
            return builtin(flow, done, function.id)
        if value is None or value.kind == "unknown":
            return _called(flow, done, meant_by(function.id))
        return _called(flow, done, value)
    value = flow.value(function)
    return _called(flow, Call(flow, node), value)


def note_spin(flow: Flow, node: ast.Call) -> None:
    """Note a loop that asks `query()` until it is true."""
    if isinstance(node.func, ast.Attribute) and node.func.attr == "query" and not node.args:
        base = flow.value(node.func.value)
        if base.kind == "object":
            flow.report(node.lineno, "query", "Event.query", sure=True)


def _called(flow: Flow, done: Call, value: Value) -> Value:
    """Call what a name or an expression holds."""
    kind = value.kind
    if kind == "named":
        return _named(flow, done, str(value.what))
    if kind == "function" and isinstance(value.what, Function):
        return flow.call_function(value.what, done.values, done.keywords)
    if kind == "class" and isinstance(value.what, Class):
        return _construct(flow, done, value.what)
    if kind in ("module", "unknown") and (made := made_by(done.name)) is not UNKNOWN:
        return made
    if kind == "module":
        return call_module(flow, done, value)
    return UNKNOWN


def _construct(flow: Flow, done: Call, cls: Class) -> Value:
    constructor = cls.methods.get("__init__")
    # A module is made once; another object, such as a batch, as often as the code runs that makes it.
    level = NEVER if cls.is_module or cls.is_on_host else None
    if constructor is not None:
        flow.call_function(constructor, done.values, done.keywords, level)
    elif cls.fields:
        given = {**dict(zip(cls.fields, done.values, strict=False)), **done.keywords}
        for name, value in given.items():
            known = cls.attributes.get(name)
            cls.attributes[name] = value if known is None else join(known, value)
        if (behind := cls.methods.get("__post_init__")) is not None:
            flow.call_function(behind, [], {}, level)
    if cls.is_module:
        return Value("module", of=TENSOR, what=cls)
    return Value("instance", what=cls)


def _named(flow: Flow, done: Call, path: str) -> Value:
    """Call what is imported."""
    root = path.partition(".")[0]
    if root == "torch":
        return call_torch(flow, done, path)
    handler = _NAMED.get(path) or _NAMED.get(root)
    if handler is not None:
        return handler(flow, done, path)
    if root in torch_names.HOST_MODULES:
        return _of_host_module(done, root, path)
    if path.startswith("torchvision.models."):
        return MODULE
    hint = meant_by(path)
    if path.rpartition(".")[2][:1].isupper():
        return hint if hint.kind == "module" else Value("object", what=path)
    return _called(flow, done, hint)


def _of_host_module(done: Call, root: str, path: str) -> Value:
    """Call numpy or another module of the host: what is drawn without a size is one number."""
    makes = root == "numpy" and torch_names.MAKES_ARRAY.search(path)
    if not makes or (path in torch_names.DRAWS_ONE and not done.has(*torch_names.DRAWS_ONE[path])):
        return HOST
    return ARRAY


def _counted(flow: Flow, done: Call, path: str) -> Value:
    """Call what returns as many places as the device has counted."""
    flow.report(done.line, "shape", path, sure=False)
    return TENSOR


def _collect_garbage(flow: Flow, done: Call, path: str) -> Value:
    if flow.frame.is_in_loop:
        flow.report(done.line, "gc", path, sure=False)
    return HOST


def _make_number(flow: Flow, done: Call, path: str) -> Value:
    cause = path if path in ("int", "bool") else "float"
    name = path if "." in path else f"Tensor.__{path}__"
    flow.read(done.line, cause, name, done.first)
    return HOST


def _make_text(flow: Flow, done: Call, path: str) -> Value:
    for value in done.values:
        flow.read(done.line, "print", "Tensor.__repr__", value.held)
    return HOST


def _make_grid(flow: Flow, done: Call, path: str) -> Value:
    if done.flag("normalize"):
        flow.read(done.line, "float", path, done.first.held)
    return done.first.held


def _save_image(flow: Flow, done: Call, path: str) -> Value:
    flow.read(done.line, "cpu", path, done.first.held)
    return HOST


def _any_or_all(flow: Flow, done: Call, path: str) -> Value:
    for value in done.values:
        flow.read(done.line, "bool", "Tensor.__bool__", element_of(value))
    return HOST


def _range(flow: Flow, done: Call, path: str) -> Value:
    for node, value in zip(done.node.args, done.values, strict=False):
        note_size(flow, done.line, "Tensor.__index__", node, value)
    return HOST


def _container(flow: Flow, done: Call, path: str) -> Value:
    if not done.values:
        return EMPTY
    return Value("list", "tuple" if path == "tuple" else "", element_of(done.first))


def _dict(flow: Flow, done: Call, path: str) -> Value:
    return dict_of([*done.values[:1], *map(list_of, done.keywords.values())])


def _comparing(flow: Flow, done: Call, path: str) -> Value:
    one = len(done.values) == 1
    place = element_of(done.first) if one else strongest(done.values)
    if place.kind == "device" or (place.kind == "tensor" and not one):
        flow.read(done.line, "bool", "Tensor.__bool__", place)
    return list_of(place) if path == "sorted" else place


_Handler = Callable[[Flow, Call, str], Value]
_BUILTINS: dict[str, _Handler] = {
    **dict.fromkeys(["float", "int", "bool", "complex"], _make_number),
    **dict.fromkeys(["print", "str", "repr", "format"], _make_text),
    **dict.fromkeys(["min", "max", "sorted"], _comparing),
    **dict.fromkeys(["any", "all"], _any_or_all),
    **dict.fromkeys(["list", "tuple", "set", "frozenset", "iter", "reversed"], _container),
    **dict.fromkeys(["sum", "next"], lambda flow, done, path: element_of(done.first)),
    **dict.fromkeys(torch_names.HOST_BUILTINS, lambda flow, done, path: HOST),
    "range": _range,
    "enumerate": lambda flow, done, path: pairs_of(each_of(done.first)),
    "zip": lambda flow, done, path: list_of(tuple_of([each_of(one) for one in done.values])),
    "dict": _dict,
    "abs": lambda flow, done, path: strongest(done.values),
}
_NAMED: dict[str, _Handler] = {
    "math": _make_number,
    "gc.collect": _collect_garbage,
    "logging": lambda flow, done, path: log(flow, done),
    "logging.getLogger": lambda flow, done, path: UNKNOWN,
    **dict.fromkeys(torch_names.RETURN_THE_FIRST, lambda flow, done, path: done.first),
    **dict.fromkeys(["random.sample", "random.choices"], _container),
    "random.choice": lambda flow, done, path: element_of(done.first),
    "torchvision.utils.make_grid": _make_grid,
    "torchvision.utils.save_image": _save_image,
    "torchvision.ops.nms": _counted,
    "torchvision.ops.batched_nms": _counted,
}
