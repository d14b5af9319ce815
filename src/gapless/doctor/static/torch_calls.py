"""What functions and classes of torch return, and which of them wait."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gapless.doctor.static import torch_names
from gapless.doctor.static.moves import device_of, moved
from gapless.doctor.static.values import (
    ARRAY,
    DEVICE,
    DEVICE_NAME,
    HOST,
    HOST_TENSOR,
    ON_DEVICE,
    OUTPUT,
    PINNED,
    TENSOR,
    TENSORS,
    UNKNOWN,
    Value,
    list_of,
    strongest,
)


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.doctor.static.flow import Call, Flow

    _Handler = Callable[[Flow, Call, str], Value]


def call_torch(flow: Flow, done: Call, path: str) -> Value:
    """Call a function or class of torch by its whole name."""
    if path in torch_names.SYNCHRONIZE:
        cause = torch_names.SYNCHRONIZE[path]
        flow.report(done.line, cause, path, sure=cause == "device" or flow.frame.is_in_loop)
        return HOST
    handler = _NAMED.get(path)
    if handler is None:
        handler = next((one for start, one in _NAMESPACES if path.startswith(start)), None)
    return handler(flow, done, path) if handler is not None else UNKNOWN


def _of_the_root(flow: Flow, done: Call, path: str) -> Value:
    """Call a function of torch itself: it makes a tensor, or computes with some."""
    last = path.rpartition(".")[2]
    if last in torch_names.FACTORIES:
        return _factory(flow, done, path)
    if last[:1].isupper():
        return Value("object", what=path)
    return operation(flow, done, path, done.values) if path.count(".") == 1 else UNKNOWN


def _compute(flow: Flow, done: Call, path: str) -> Value:
    return operation(flow, done, path, done.everything())


def _on_host(flow: Flow, done: Call, path: str) -> Value:
    """Call what returns nothing of the device; a class, or a stream, is an object that has methods."""
    last = path.rpartition(".")[2]
    is_object = last[:1].isupper() or last.endswith("stream")
    return Value("object", what=path) if is_object else HOST


def _device(flow: Flow, done: Call, path: str) -> Value:
    first = done.values[0] if done.values else HOST
    return first if first.kind in ("cpu name", "any device name") else DEVICE_NAME


def _of_cuda(flow: Flow, done: Call, path: str) -> Value:
    if not path.endswith("Tensor"):
        return _on_host(flow, done, path)
    if done.first == ARRAY or (done.first.kind == "list" and done.first.form != "tuple"):
        flow.report(done.line, "new tensor", path, sure=True)
    return DEVICE


def _of_nn(flow: Flow, done: Call, path: str) -> Value:
    last = path.rpartition(".")[2]
    first = done.first
    if last == "Parameter":
        return TENSOR
    if last in ("DataParallel", "DistributedDataParallel"):
        return Value("module", of=OUTPUT, what=first.what if first.kind == "module" else None)
    if last[:1].isupper():
        holds_own = any(one.held.form != "torch" for one in done.values if one.kind == "list")
        return Value("module", "" if holds_own else "torch", TENSOR)
    return UNKNOWN


def _of_nn_utils(flow: Flow, done: Call, path: str) -> Value:
    last = path.rpartition(".")[2]
    first = done.first
    if last == "clip_grad_norm_":
        if done.flag("error_if_nonfinite"):
            flow.report(done.line, "clip", "torch.nn.utils.clip_grad_norm_", sure=True)
        return DEVICE if first.held.kind == "device" else TENSOR
    return first if first.kind == "module" else strongest([first])


def _of_distributions(flow: Flow, done: Call, path: str) -> Value:
    if path.rpartition(".")[2] in ("kl_divergence", "register_kl"):
        return strongest(done.values)
    is_checked = not any(
        one.arg == "validate_args" and isinstance(one.value, ast.Constant) and not one.value.value
        for one in done.node.keywords
    )
    place = strongest(done.everything())
    if is_checked and place.kind in (*ON_DEVICE, "tensor", "unknown"):
        flow.report(done.line, "validation", path, sure=False)
    return Value("object", "checked" if is_checked else "", place, what="torch.distributions")


def _of_data(flow: Flow, done: Call, path: str) -> Value:
    if not path.endswith("DataLoader"):
        return UNKNOWN
    return list_of(PINNED if done.flag("pin_memory") else HOST_TENSOR)


def _factory(flow: Flow, done: Call, path: str) -> Value:
    """Make a tensor where `device=` says, or else on the host."""
    last = path.rpartition(".")[2]
    place = device_of(done)
    if last in torch_names.SIZED:
        for node, value in zip(done.node.args, done.values, strict=False):
            note_size(flow, done.line, path, node, value)
    if done.values and last in torch_names.FROM_VALUES:
        first = done.values[0]
        if first.kind in TENSORS:
            return first if place is None else moved(flow, done, first, place, path)
        _note_values(flow, done, path, place)
    is_mask = any(
        one.arg == "dtype" and ast.unparse(one.value) == "torch.bool" for one in done.node.keywords
    )
    form = "mask" if is_mask else ""
    if place is None and not flow.makes_on_host:
        return TENSOR
    if place is None or place == "cpu":
        return Value("pinned" if done.flag("pin_memory") else "host tensor", form)
    return Value("device", form) if place == "device" else TENSOR


def note_size(flow: Flow, line: int, path: str, node: ast.expr, value: Value) -> None:
    """Note a size or a bound that is a value of the device, or the largest of who knows what."""
    if value.kind == "device":
        flow.report(line, "index", path, sure=True)
        return
    is_largest = any(
        isinstance(one, ast.Call)
        and not one.args
        and getattr(one.func, "attr", "") in ("max", "min", "sum")
        for one in ast.walk(node)
    )
    if value.kind in ("unknown", "tensor") and (is_largest or value.form == "largest"):
        flow.report(line, "index", path, sure=False)


def _note_values(flow: Flow, done: Call, path: str, place: str | None) -> None:
    """Note a tensor that is made of Python values; what is given may be a tensor already."""
    first = done.values[0]
    if first.held.kind == "device":
        flow.report(done.line, "item", path, sure=False)
    elif place in ("device", "any"):
        is_value = path == "torch.tensor" or first.kind in ("host", "list")
        flow.report(done.line, "new tensor", path, sure=is_value and place == "device")


def _load(flow: Flow, done: Call, path: str) -> Value:
    """Read a file: what it holds is where it was, or on the host."""
    places = [one.value for one in done.node.keywords if one.arg == "map_location"]
    is_on_host = bool(places) and flow.value(places[0]).kind == "cpu name"
    return HOST_TENSOR if is_on_host else UNKNOWN


def _save(flow: Flow, done: Call, path: str) -> Value:
    for value in done.values[:1]:
        of = value.of if value.kind in ("list", "module") and value.of else value
        may_be = of.kind == "tensor" or "state_dict" in ast.unparse(done.node.args[0])
        if of.kind in ON_DEVICE or (may_be and of.kind not in ("host", "host tensor")):
            flow.report(done.line, "save", "torch.save", sure=of.kind == "device")
    return HOST


def operation(flow: Flow, done: Call, path: str, operands: list[Value]) -> Value:
    """Go through an operation; its result is where its operands are."""
    last = path.rpartition(".")[2]
    place = strongest(operands)
    if path.startswith("torch.") and place.kind == "unknown":
        place = TENSOR  # a function of torch computes with tensors
    if (named := device_of(done)) is not None:
        place = {"device": DEVICE, "cpu": HOST_TENSOR}.get(named, TENSOR)
    elif place.kind != "host tensor":
        _note_operation(flow, done, path, last, place)
    if last in torch_names.EQUALS or last in torch_names.HOST_FUNCTIONS:
        return HOST
    joins = last in torch_names.JOIN_MASKS and operands
    is_mask = joins and all(one.held.form == "mask" for one in operands)
    if (is_mask or last in torch_names.MASK_METHODS) and place.kind in TENSORS:
        return Value(place.kind, "mask")
    return place


def _note_operation(flow: Flow, done: Call, path: str, last: str, place: Value) -> None:
    name = path if path.startswith("torch.") else f"Tensor.{last}"
    is_function = name is path
    if last in torch_names.SHAPES or (last == "where" and is_function and len(done.values) == 1):
        if last == "repeat_interleave":
            counts = done.values[1 if is_function else 0 :][:1]
            counts = counts or [done.keywords.get("repeats", HOST)]
            if done.has(99, "output_size") or counts[0].kind not in ON_DEVICE:
                return
        flow.read(done.line, "shape", name, place)
    elif last == "one_hot" and not done.has(1, "num_classes"):
        flow.read(done.line, "shape", name, place)
    elif last in torch_names.EQUALS:
        flow.read(done.line, "equal", name, place)
    elif last in torch_names.LINALG and (path.startswith("torch.linalg.") or last != "solve"):
        is_sure = last in torch_names.LINALG_SURELY
        flow.read(done.line, "linalg", name, place if is_sure else TENSOR)


_NAMED: dict[str, _Handler] = {
    "torch.device": _device,
    "torch.save": _save,
    "torch.load": _load,
    "torch.autograd.grad": _compute,
    **dict.fromkeys(
        ["torch.compile", "torch.jit.script", "torch.jit.trace", "torch.autograd.Variable"],
        lambda flow, done, path: done.first,
    ),
}
# The first that a name begins with.
_NAMESPACES: list[tuple[str, _Handler]] = [
    ("torch.nn.functional.", _compute),
    ("torch.nn.utils.", _of_nn_utils),
    ("torch.nn.", _of_nn),
    (
        "torch.optim.",
        lambda flow, done, path: Value("object", "fused" if done.flag("fused") else "", what=path),
    ),
    ("torch.distributions.", _of_distributions),
    ("torch.utils.data.", _of_data),
    ("torch.cuda.", _of_cuda),
    *((f"{room}.", _on_host) for room in torch_names.HOST_NAMESPACES),
    ("torch.linalg.", _compute),
    ("torch.fft.", _compute),
    ("torch.special.", _compute),
    ("torch.", _of_the_root),
]
