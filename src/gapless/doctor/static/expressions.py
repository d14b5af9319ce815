"""Go through expressions, and say what each of them is."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from gapless.doctor.static import calls
from gapless.doctor.static.bindings import bind, parts_of_index
from gapless.doctor.static.hints import SETTINGS, meant_by
from gapless.doctor.static.scope import NEVER, OFTEN, Class, Function
from gapless.doctor.static.torch_names import HOST_ATTRIBUTES, TENSOR_ATTRIBUTES
from gapless.doctor.static.values import (
    ANY_DEVICE_NAME,
    CPU_NAME,
    DEVICE,
    DEVICE_NAME,
    EMPTY,
    HINT,
    HOST,
    HOST_TENSOR,
    NONE,
    ON_DEVICE,
    TENSOR,
    TENSORS,
    UNKNOWN,
    UNKNOWN_MASK,
    Value,
    dict_of,
    each_of,
    element_of,
    is_host_index,
    is_mask,
    join,
    list_of,
    named,
    strongest,
    tuple_of,
)


if TYPE_CHECKING:
    from gapless.doctor.static.flow import Flow
    from gapless.doctor.static.frame import Frame


_ON_THE_GPU = ("cuda", "mps", "xpu", "gpu")


class Expressions(ast.NodeVisitor):
    """Goes through expressions: each `visit` returns what the expression is.

    Args:
        flow: the walk through the file.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    if TYPE_CHECKING:

        def visit(self, node: ast.AST) -> Value:
            """Go through an expression; return what it is."""

    @property
    def _frame(self) -> Frame:
        return self._flow.frame

    def generic_visit(self, node: ast.AST) -> Value:
        """Pass over an expression of which nothing is known."""
        return UNKNOWN

    def truth(self, node: ast.expr) -> Value:
        """Go through an expression that Python makes a bool of; return what it is."""
        if isinstance(node, ast.BoolOp):
            frame, former = self._frame, self._frame.may_be_none
            for one in node.values:
                self.truth(one)
                if isinstance(node.op, ast.And) and _may_be_none(one):
                    frame.may_be_none = True
            frame.may_be_none = former
            return HOST
        value = self.visit(node)
        # A name that may hold a tensor is more often asked whether it is None.
        if value.kind == "device" or isinstance(node, ast.Compare | ast.Call):
            self._flow.read(node.lineno, "bool", "Tensor.__bool__", value)
        return value

    def visit_Call(self, node: ast.Call) -> Value:
        """Ask `calls` what a call does; tokenizers make tensors of the host."""
        value = calls.call(self._flow, node)
        makes_tensors = any(one.arg == "return_tensors" for one in node.keywords)
        return HOST_TENSOR if makes_tensors else value

    def visit_Constant(self, node: ast.Constant) -> Value:
        """A text may name a device."""
        value = node.value
        if value is None:
            return NONE
        if isinstance(value, str):
            if value.startswith("cpu"):
                return CPU_NAME
            if value.startswith(_ON_THE_GPU):
                return DEVICE_NAME
        return HOST

    def visit_Name(self, node: ast.Name) -> Value:
        """A name that nothing binds is what people mean by it."""
        value = self._frame.look_up(node.id)
        if value is None or value == UNKNOWN:
            return meant_by(node.id)
        if value.kind == "function" and isinstance(value.what, Function):
            value.what.is_passed_on = True
        return value

    def visit_Attribute(self, node: ast.Attribute) -> Value:
        """What an object is says what its attribute is; else the name does."""
        name = node.attr
        base = self.visit(node.value)
        kind = base.kind
        if kind == "named":
            return named(f"{base.what}.{name}")
        if name == "device":
            return self._place_of(node.value, base)
        if name in HOST_ATTRIBUTES or kind in ("host", "object"):
            return HOST
        if kind in TENSORS:
            return base
        if kind == "module":
            return self._attribute_of_module(base, name)
        if kind == "instance" and isinstance(base.what, Class):
            return self._attribute_of_instance(base.what, name)
        return _attribute_called(name)

    @staticmethod
    def _attribute_of_instance(cls: Class, name: str) -> Value:
        known = cls.attributes.get(name, UNKNOWN)
        if known.kind != "unknown":
            return known
        return _attribute_called(name)

    def _attribute_of_module(self, base: Value, name: str) -> Value:
        if name == "module":
            return base
        if name in TENSOR_ATTRIBUTES:
            return DEVICE if base.of is not None and base.of.kind in ON_DEVICE else TENSOR
        return meant_by(name)

    @staticmethod
    def _place_of(owner: ast.expr, value: Value) -> Value:
        if value.kind in ON_DEVICE:
            return DEVICE_NAME
        settles = getattr(owner, "id", getattr(owner, "attr", "")) in SETTINGS
        return DEVICE_NAME if settles else ANY_DEVICE_NAME

    def visit_Subscript(self, node: ast.Subscript) -> Value:
        """An index may wait for its shape, or for one place."""
        base, index = self.visit(node.value), parts_of_index(self._flow, node.slice)
        kind = base.kind
        if kind in ON_DEVICE or kind == "tensor":
            self._note_index(node, base, index)
            return Value(kind, base.form if base.form == "mask" else "")
        first = index[0] if index else HOST
        if kind in ("list", "host") and base.form != "dict" and first.kind in ("device", "tensor"):
            sure = first.kind == "device" and kind == "list"
            if first.form != "hint":
                self._flow.report(node.lineno, "index", "Tensor.__index__", sure=sure)
        if kind == "unknown" and self._chooses(index):
            self._flow.report(node.lineno, "shape", "Tensor.__getitem__", sure=False)
        if isinstance(node.slice, ast.Slice) and kind in ("host", "list"):
            return replace(base, parts=())
        element = element_of(base)
        if element.kind == "unknown" and isinstance(node.slice, ast.Constant):
            meant = meant_by(str(node.slice.value))
            return meant if meant.kind == "tensor" else UNKNOWN
        return element

    def _chooses(self, index: list[Value]) -> bool:
        """Whether an index of what may be a tensor or an array of numpy is a mask of torch."""
        return UNKNOWN_MASK in index or any(is_mask(one) for one in index)

    def _note_index(self, node: ast.Subscript, base: Value, index: list[Value]) -> None:
        masks = [one for one in index if is_mask(one)]
        if masks:
            sure = base.kind == "device" and masks[0].kind == "device"
            self._flow.report(node.lineno, "shape", "Tensor.__getitem__", sure=sure)
        elif any(one.form == "bound" for one in index):
            self._flow.report(node.lineno, "index", "Tensor.__index__", sure=base.kind == "device")
        elif base.kind == "device":
            if isinstance(node.slice, ast.List) or any(map(is_host_index, index)):
                self._flow.report(node.lineno, "cpu index", "Tensor.__getitem__", sure=True)
        elif UNKNOWN_MASK in index:
            self._flow.report(node.lineno, "shape", "Tensor.__getitem__", sure=False)
        elif base.form != "hint" and any(map(is_host_index, index)):
            self._flow.report(node.lineno, "cpu index", "Tensor.__getitem__", sure=False)

    def visit_Slice(self, node: ast.Slice) -> Value:
        """A bound on the device is read."""
        bounds = [
            self.visit(one) for one in (node.lower, node.upper, node.step) if one is not None
        ]
        return Value("host", "bound") if any(one.kind == "device" for one in bounds) else HOST

    def visit_BinOp(self, node: ast.BinOp) -> Value:
        """`text % tensor` is a format; the rest is computed where its operands are."""
        if isinstance(node.op, ast.Mod) and _is_text_or_none(node.left):
            self.visit(node.left)
            self._format(node)
            return HOST
        left = self.visit(node.left)
        if isinstance(node.op, ast.Mod) and left == HOST and isinstance(node.right, ast.Tuple):
            self._format(node)  # a text that a name holds, or a product of one
            return HOST
        return result_of(node.op, left, self.visit(node.right))

    def _format(self, node: ast.BinOp) -> None:
        parts = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
        for one in parts:
            value = self.visit(one)
            for held in value.parts or (value.held,):
                self._flow.read(node.lineno, "format", "Tensor.__format__", held)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Value:
        """`not` asks for a truth value."""
        if isinstance(node.op, ast.Not):
            self.truth(node.operand)
            return HOST
        value = self.visit(node.operand)
        return value if isinstance(node.op, ast.Invert) else strongest([value])

    def visit_BoolOp(self, node: ast.BoolOp) -> Value:
        """All but the last part are asked for their truth value."""
        joined = [self.truth(one) for one in node.values[:-1]]
        value = self.visit(node.values[-1])
        for one in joined:
            value = join(one, value)
        return value

    def visit_Compare(self, node: ast.Compare) -> Value:
        """A comparison of tensors is a mask; `is` and texts wait for nothing."""
        operands = [self.visit(node.left), *[self.visit(one) for one in node.comparators]]
        operator = node.ops[0]
        if isinstance(operator, ast.Is | ast.IsNot):
            return HOST
        if isinstance(operator, ast.In | ast.NotIn):
            if _is_text_or_none(node.left):
                return HOST  # no tensor holds a text
            self._flow.read(node.lineno, "bool", "Tensor.__contains__", operands[1])
            return HOST
        if any(_is_text_or_none(one) for one in (node.left, *node.comparators)):
            return HOST
        value = strongest(operands)
        if value.kind == "unknown":
            return UNKNOWN_MASK
        return Value(value.kind, "mask") if value.kind in TENSORS else value

    def visit_IfExp(self, node: ast.IfExp) -> Value:
        """What both branches are."""
        self.truth(node.test)
        level = self._frame.level
        body = self.visit(node.body)
        self._frame.level = NEVER if runs_on_gpu(node.test) else level
        orelse = self.visit(node.orelse)
        self._frame.level = level
        if {body.kind, orelse.kind} == {"device name", "cpu name"} and not _asks_for_gpu(
            node.test
        ):
            return ANY_DEVICE_NAME
        if isinstance(node.orelse, ast.Lambda) or isinstance(node.body, ast.Lambda):
            return body if isinstance(node.orelse, ast.Lambda) else orelse  # what does something
        return join(body, orelse)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Value:
        """Each part is formatted."""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = self.visit(part.value)
                self._flow.read(part.value.lineno, "format", "Tensor.__format__", value)
        return HOST

    def visit_Tuple(self, node: ast.Tuple | ast.List | ast.Set) -> Value:
        """A container of what its elements have in common."""
        values = [self.visit(one) for one in node.elts]
        if not values:
            return EMPTY
        if isinstance(node, ast.Tuple):
            return tuple_of(values)
        joined = values[0]
        for value in values[1:]:
            joined = join(joined, value)
        return list_of(joined)

    visit_List = visit_Set = visit_Tuple  # noqa: N815  # as `ast.NodeVisitor` names them

    def visit_Dict(self, node: ast.Dict) -> Value:
        """A dict of what its values have in common."""
        for key in node.keys:
            if key is not None:
                self.visit(key)
        values = [self.visit(one) for one in node.values]
        return dict_of([list_of(value) for value in values])

    def visit_ListComp(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> Value:
        """A container of what the element is; its names end with it."""
        frame = self._frame
        names, frame.names = frame.names, dict(frame.names)
        for one in node.generators:
            bind(self._flow, one.target, each_of(self.visit(one.iter)))
            for condition in one.ifs:
                self.truth(condition)
        if isinstance(node, ast.DictComp):
            self.visit(node.key)
            made = dict_of([list_of(self.visit(node.value))])
        else:
            made = list_of(self.visit(node.elt))
        frame.names = names
        return made

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> Value:
        """A lambda that is passed on may be called at any time."""
        frame = self._frame
        return self._flow.call_lambda(node, {}, frame.level if frame.level == NEVER else OFTEN)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Value:
        """Binds the name as well."""
        value = self.visit(node.value)
        bind(self._flow, node.target, value)
        return value

    def visit_Starred(self, node: ast.Starred) -> Value:
        """One of its elements."""
        return element_of(self.visit(node.value))

    def visit_Yield(self, node: ast.Yield) -> Value:
        """What is yielded is an element of what the function returns."""
        self._frame.yielded.append(NONE if node.value is None else self.visit(node.value))
        return UNKNOWN

    def visit_YieldFrom(self, node: ast.YieldFrom) -> Value:
        """Its elements are elements of what the function returns."""
        self._frame.yielded.append(element_of(self.visit(node.value)))
        return UNKNOWN


def result_of(operator: ast.operator, left: Value, right: Value) -> Value:
    """Return what an operator makes of two values."""
    value = strongest([left, right])
    is_mask = isinstance(operator, ast.BitAnd | ast.BitOr | ast.BitXor)
    if is_mask and "mask" in (left.form, right.form):
        return Value(value.kind, "mask")
    return value


def _may_be_none(node: ast.expr) -> bool:
    """Whether a condition asks if there is something at all."""
    if isinstance(node, ast.Compare):
        return isinstance(node.ops[0], ast.IsNot)
    return isinstance(node, ast.Name | ast.Attribute)


_ASKS_FOR_TYPE = re.compile(r".*(?:device|\.type)[\w.]* (==|!=) '(cuda|cpu)'")
_GPU_WORDS = re.compile(r"cuda|gpu|device|mps|xpu|accelerator|available", re.IGNORECASE)


def _asks_for_gpu(test: ast.expr) -> bool:
    return bool(_GPU_WORDS.search(ast.unparse(test)))


def runs_on_gpu(test: ast.expr) -> bool | None:
    """Return whether what a condition guards runs on a GPU alone, True, or on the host alone, False.

    None where it says neither.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = runs_on_gpu(test.operand)
        return None if inner is None else not inner
    if not isinstance(test, ast.Call | ast.Attribute | ast.Compare):
        return None
    text = ast.unparse(test)
    if text.endswith(("cuda.is_available()", ".is_cuda")):
        return True
    found = _ASKS_FOR_TYPE.fullmatch(text)
    return None if found is None else (found[1] == "==") == (found[2] == "cuda")


def _attribute_called(name: str) -> Value:
    if name in TENSOR_ATTRIBUTES:
        return HINT
    return meant_by(name)


def _is_text_or_none(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | None)
    )
