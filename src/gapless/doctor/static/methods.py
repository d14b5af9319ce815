"""What methods return, and which of them wait."""

from __future__ import annotations

import ast
import logging
from typing import TYPE_CHECKING

from gapless.doctor.static import torch_names
from gapless.doctor.static.bindings import note_copy
from gapless.doctor.static.hints import LOG_METHODS, LOGGERS, made_by, meant_by
from gapless.doctor.static.moves import move, moved
from gapless.doctor.static.scope import OFTEN, Class, Function
from gapless.doctor.static.torch_calls import operation
from gapless.doctor.static.values import (
    ARRAY,
    DEVICE,
    HOST,
    HOST_TENSOR,
    ON_DEVICE,
    OUTPUT,
    PINNED,
    TENSOR,
    TENSORS,
    UNKNOWN,
    Value,
    element_of,
    join,
    list_of,
    pairs_of,
    strongest,
    tuple_of,
)


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.doctor.static.flow import Call, Flow

    _Handler = Callable[[Flow, Call, Value], Value]


def call_method(flow: Flow, done: Call, base: Value, *, is_discarded: bool = False) -> Value:
    """Call a method; `is_discarded`: nobody takes what it returns."""
    name, cls = done.name, base.what
    if torch_names.HOOKS.search(name) and done.values:
        return _note_hook(flow, done)
    if isinstance(cls, Class) and (method := cls.methods.get(name)) is not None:
        return flow.call_function(method, done.values, done.keywords)
    if name in ("to", "cuda", "cpu"):
        return move(flow, done, base, is_discarded=is_discarded)
    if name == "type" and str(done.first.what).startswith("torch.cuda."):
        return moved(flow, done, base, "device", "Tensor.type")
    return _METHODS_OF.get(base.kind, _of_unknown)(flow, done, base)


def _of_tensor(flow: Flow, done: Call, base: Value) -> Value:
    name = done.name
    if name in torch_names.READS:
        sure = DEVICE if base.kind == "output" else base
        flow.read(done.line, torch_names.READS[name], f"Tensor.{name}", sure)
        return HOST
    if name in torch_names.HOST_METHODS:
        return HOST
    if name in torch_names.TAKE_SIZES and any(one.kind == "device" for one in done.values):
        flow.report(done.line, "index", f"Tensor.{name}", sure=True)
    if name in torch_names.KEEP_MASK:
        return base
    special = _OF_TENSORS.get(name)
    if special is not None:
        return special(flow, done, base)
    if base.kind in ("host tensor", "pinned"):
        return operation(flow, done, f"Tensor.{name}", [HOST_TENSOR])
    others = [one for one in done.values if one.kind in TENSORS]
    return operation(flow, done, f"Tensor.{name}", [base, *others])


def _as_other(flow: Flow, done: Call, base: Value) -> Value:
    """Go through `x.type_as(y)`, which goes to where `y` is."""
    other = done.first
    note_copy(flow, done.line, "Tensor.type_as", base, other, or_unknown=True)
    return Value(other.kind if other.kind in TENSORS else "tensor")


def _pin_memory(flow: Flow, done: Call, base: Value) -> Value:
    if base.kind == "host tensor" and (flow.frame.is_in_loop or flow.frame.level == OFTEN):
        flow.report(done.line, "host allocation", "Tensor.pin_memory", sure=False)
    return PINNED


def _new_tensor(flow: Flow, done: Call, base: Value) -> Value:
    if done.values and done.values[0].kind in ("host", "list"):
        flow.read(done.line, "new tensor", "Tensor.new_tensor", base)
    return Value(base.kind)


def _copy_into(flow: Flow, done: Call, base: Value) -> Value:
    if done.values and not done.flag("non_blocking") and len(done.values) < 2:
        note_copy(flow, done.line, "Tensor.copy_", done.values[0], base)
    return base


def _of_unknown(flow: Flow, done: Call, base: Value) -> Value:
    """Call a method of what may be anything: its name says what it is most likely."""
    name = done.name
    function = done.node.func
    owner = function.value if isinstance(function, ast.Attribute) else function
    own_name = getattr(owner, "id", getattr(owner, "attr", ""))
    if name in LOG_METHODS and LOGGERS.search(own_name):
        return log(flow, done)
    special = _OF_UNKNOWNS.get(name)
    if special is not None:
        return special(flow, done, base)
    if name in torch_names.MASK_METHODS:
        return Value("tensor", "mask")
    if name in torch_names.TENSOR_METHODS:
        return TENSOR
    if name in ("max", "min", "sum") and not done.node.args:
        return Value("unknown", "largest")
    return HOST if name in torch_names.HOST_METHODS else made_by(name)


def _read_unknown(flow: Flow, done: Call, base: Value) -> Value:
    cause = torch_names.READS[done.name]
    flow.read(done.line, cause, f"Tensor.{done.name}", base, or_unknown=True)
    return HOST


def _shape_of_unknown(flow: Flow, done: Call, base: Value) -> Value:
    flow.read(done.line, "shape", f"Tensor.{done.name}", base, or_unknown=True)
    return TENSOR


def _synchronize_unknown(flow: Flow, done: Call, base: Value) -> Value:
    if not done.values:
        flow.report(done.line, "stream", "synchronize", sure=False)
    return HOST


def _register_buffer(flow: Flow, done: Call, base: Value) -> Value:
    first = done.node.args[0] if done.node.args else None
    if isinstance(base.what, Class) and isinstance(first, ast.Constant):
        base.what.attributes[str(first.value)] = TENSOR
    return HOST


def _get_scale(flow: Flow, done: Call, base: Value) -> Value:
    flow.report(done.line, "item", "GradScaler.get_scale", sure=False)
    return HOST


def _log_prob(flow: Flow, done: Call, base: Value) -> Value:
    """Ask a distribution that was made elsewhere; a model has such a method as well."""
    owner = getattr(done.node.func, "value", None)
    name = getattr(owner, "id", getattr(owner, "attr", ""))
    if base.kind == "unknown" and meant_by(name).kind != "module":
        flow.report(done.line, "validation", "Distribution.log_prob", sure=False)
    return TENSOR


def _add_to_summary(flow: Flow, done: Call, base: Value) -> Value:
    if any(value.held.kind in (*ON_DEVICE, "tensor") for value in done.values):
        flow.report(done.line, "cpu", f"SummaryWriter.{done.name}", sure=False)
    return HOST


def _of_module(flow: Flow, done: Call, module: Value) -> Value:
    name = done.name
    if name in torch_names.SAME_MODULE:
        return module
    is_moved = module.of is not None and module.of.kind in ON_DEVICE
    if name in ("parameters", "named_parameters", "buffers", "named_buffers"):
        held = DEVICE if is_moved else TENSOR
        return pairs_of(held) if name.startswith("named") else list_of(held)
    if name == "state_dict":
        return Value("list", "dict", DEVICE if is_moved else TENSOR)
    if name in torch_names.MODULE_CALLS:
        return call_module(flow, done, module)
    return _of_unknown(flow, done, UNKNOWN)


def call_module(flow: Flow, done: Call, module: Value) -> Value:
    """Return what a module returns: on the device, if it was moved there or its input is."""
    given = strongest(done.everything())
    if isinstance(module.what, Class) and (forward := module.what.methods.get("forward")):
        returned = flow.call_function(forward, done.values, done.keywords)
        if returned.kind != "unknown":
            return returned
    on_device = OUTPUT if module.form != "torch" else DEVICE
    if given.kind in ON_DEVICE or (module.of is not None and module.of.kind in ON_DEVICE):
        return on_device
    if module.form == "torch":
        return HOST_TENSOR if given.kind == "host tensor" else TENSOR
    return UNKNOWN


def _of_list(flow: Flow, done: Call, base: Value) -> Value:
    function = done.node.func
    if (
        done.name in torch_names.ADD_TO_LISTS
        and done.values
        and isinstance(function, ast.Attribute)
    ):
        added = element_of(done.values[-1]) if done.name == "extend" else done.values[-1]
        new = list_of(join(base.of, added) if base.of else added)
        if isinstance(function.value, ast.Name) and function.value.id in flow.frame.names:
            flow.frame.names[function.value.id] = new
        return HOST
    if done.name in ("copy", "__iter__"):
        return base
    if done.name == "items":
        return pairs_of(base.of or UNKNOWN)
    if done.name == "values":
        return list_of(base.of)
    return element_of(base) if done.name in torch_names.OF_LISTS else HOST


def _of_object(flow: Flow, done: Call, base: Value) -> Value:
    name, what = done.name, str(base.what)
    first = done.first
    if what.endswith(("Event", "tream")) and name in ("synchronize", "query"):
        cause = "event" if what.endswith("Event") else "stream"
        if name == "synchronize":
            flow.report(done.line, cause, f"{cause.title()}.synchronize", sure=True)
        return HOST
    if what.endswith("GradScaler") and name in ("step", "scale"):
        if name == "step" and first.form != "fused":
            flow.report(done.line, "scaler", "GradScaler.step", sure=False)
        return first if name == "scale" else HOST
    if what == "torch.distributions":
        return _of_distribution(flow, done, base)
    if what in torch_names.READING_OPTIMIZERS and name == "step":
        read = first if what.endswith("Plateau") else TENSOR
        flow.read(done.line, "optimizer", f"{what.rpartition('.')[2]}.step", read)
        return TENSOR
    return _of_unknown(flow, done, UNKNOWN)


def _prepare(flow: Flow, done: Call, base: Value) -> Value:
    """Let Accelerate move modules, and the batches of loaders as they come."""
    moved = {"list": list_of(DEVICE), "module": Value("module", of=OUTPUT)}
    prepared = [moved.get(one.kind, one) for one in done.values]
    return prepared[0] if len(prepared) == 1 else tuple_of(prepared)


def _update_average(flow: Flow, done: Call, base: Value) -> Value:
    """Update a model that averages another; an agent's method of this name is given more."""
    if len(done.values) == 1:
        flow.report(done.line, "validation", "AveragedModel.update_parameters", sure=False)
    return HOST


def _of_distribution(flow: Flow, done: Call, base: Value) -> Value:
    place = base.of or UNKNOWN
    kinds = {place.kind, *(one.kind for one in done.values)}
    if (
        done.name == "log_prob"
        and base.form == "checked"
        and kinds & {*ON_DEVICE, "tensor", "unknown"}
    ):
        flow.report(done.line, "validation", "Distribution.log_prob", sure=False)
    return HOST_TENSOR if place.kind == "host" else place


def _of_host(flow: Flow, done: Call, base: Value) -> Value:
    if done.name == "format":
        for value in done.everything():
            flow.read(done.line, "format", "Tensor.__format__", value)
    keeps = ("copy", "astype", "reshape", "argsort", "flatten", "nonzero")
    return ARRAY if base == ARRAY and done.name in keeps else HOST


def _note_hook(flow: Flow, done: Call) -> Value:
    """Go through a function that runs in each step."""
    function = done.values[0].what
    if isinstance(function, Function):
        given = [DEVICE] if done.name == "register_hook" else []
        flow.call_function(function, given, {}, OFTEN)
    return HOST


def log(flow: Flow, done: Call) -> Value:
    """Call a method of a logger; one whose level is off formats nothing."""
    if getattr(logging, done.name.upper(), logging.CRITICAL) < flow.log_level:
        return HOST
    for value in done.values:
        if value.held.kind in ON_DEVICE:  # a level that is off formats nothing
            flow.report(done.line, "format", "Tensor.__format__", sure=False)
    return HOST


_METHODS_OF: dict[str, _Handler] = {
    **dict.fromkeys(TENSORS, _of_tensor),
    "module": _of_module,
    "list": _of_list,
    "object": _of_object,
    "host": _of_host,
    "none": _of_host,
}
_OF_TENSORS: dict[str, _Handler] = {
    "pin_memory": _pin_memory,
    "copy_": _copy_into,
    "new_tensor": _new_tensor,
    "type_as": _as_other,
    "as_subclass": lambda flow, done, base: UNKNOWN,
    "items": lambda flow, done, base: pairs_of(base),
    "values": lambda flow, done, base: base,
    "keys": lambda flow, done, base: HOST,
}
_OF_UNKNOWNS: dict[str, _Handler] = {
    "register_buffer": _register_buffer,
    "item": _read_unknown,
    "tolist": _read_unknown,
    "synchronize": _synchronize_unknown,
    "get_scale": _get_scale,
    "prepare": _prepare,
    **dict.fromkeys(
        ["items", "named_parameters", "named_buffers", "named_modules", "named_children"],
        lambda flow, done, base: pairs_of(UNKNOWN),
    ),
    "update_parameters": _update_average,
    **dict.fromkeys(torch_names.TENSOR_SHAPES, _shape_of_unknown),
    "bool": lambda flow, done, base: Value("tensor", "mask"),
    "log_prob": _log_prob,
    **dict.fromkeys(["add_scalar", "add_scalars", "add_histogram"], _add_to_summary),
    **dict.fromkeys(["add_image", "add_images", "add_audio", "add_figure"], _add_to_summary),
}
