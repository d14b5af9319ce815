"""Follow values through the statements of a file, and note the lines that would wait for a GPU."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gapless.doctor.static import calls
from gapless.doctor.static.hints import SETTINGS, meant_by
from gapless.doctor.static.scope import NEVER, OFTEN, ONCE, PERHAPS, Class, Function, Wait
from gapless.doctor.static.torch_names import (
    HOST_ATTRIBUTES,
    TENSOR_ATTRIBUTES,
    WEIGHTS,
)
from gapless.doctor.static.values import (
    ANY_DEVICE_NAME,
    CPU_NAME,
    DEVICE,
    DEVICE_NAME,
    EMPTY,
    HINT,
    HOST,
    NONE,
    ON_DEVICE,
    TENSOR,
    TENSORS,
    UNKNOWN,
    WEAK_HINT,
    Value,
    dict_of,
    element_of,
    join,
    list_of,
    named,
    strongest,
)


if TYPE_CHECKING:
    from collections.abc import Callable


_ON_THE_GPU = ("cuda", "mps", "xpu", "gpu")
_PAIRS = frozenset(
    ["items", "named_parameters", "named_buffers", "named_modules", "named_children"]
)
_SELDOM = 100  # once in so many steps
_MOST_TIMES = 3  # that a function is gone through, for calls with other values
_DEEPEST = 25  # calls within calls


class Flow:
    """Goes through a file once; a loop whose values change, and a function called anew, again.

    Attributes:
        names: what the names of the function at hand hold.
        level: how often the code at hand runs.
        discarded: the expression whose value nobody takes.
        makes_on_host: whether tensors are made on the host where no device is named.
    """

    def __init__(self, *, makes_on_host: bool = True) -> None:
        self.makes_on_host = makes_on_host
        self.names: dict[str, Value] = {}
        self.level = ONCE
        self.discarded: ast.expr | None = None
        self._outer: list[dict[str, Value]] = []
        self._function: Function | None = None
        self._returned: list[Value] = []
        self._yielded: list[Value] = []
        self._waits: dict[int, Wait] = {}
        self._is_seldom = False
        self._loop_names: frozenset[str] = frozenset()
        self._loops = 0
        self._tries = 0
        self._depth = 0
        self._functions: list[Function] = []
        self._classes: list[Class] = []
        self._same: dict[str, str] = {}
        self._statements: dict[type, Callable[..., bool | None]] = {
            getattr(ast, name): getattr(self, f"_{name.lower()}")
            for name in (
                [
                    "Assign",
                    "AnnAssign",
                    "AugAssign",
                    "Expr",
                    "For",
                    "While",
                    "If",
                    "With",
                    "Try",
                    "Return",
                    "FunctionDef",
                    "ClassDef",
                    "Import",
                    "ImportFrom",
                    "Assert",
                    "Raise",
                    "Match",
                ]
            )
        }
        self._statements[ast.AsyncFor] = self._for
        self._statements[ast.AsyncWith] = self._with
        self._statements[ast.AsyncFunctionDef] = self._functiondef
        self._statements[ast.Continue] = self._statements[ast.Break] = lambda _: True
        self._expressions: dict[type, Callable[..., Value]] = {
            getattr(ast, name): getattr(self, f"_{name.lower()}")
            for name in (
                [
                    "Constant",
                    "Name",
                    "Attribute",
                    "Subscript",
                    "BinOp",
                    "UnaryOp",
                    "BoolOp",
                    "Compare",
                    "IfExp",
                    "JoinedStr",
                    "Tuple",
                    "List",
                    "Set",
                    "Dict",
                    "ListComp",
                    "SetComp",
                    "GeneratorExp",
                    "DictComp",
                    "Lambda",
                    "NamedExpr",
                    "Starred",
                    "Await",
                    "Yield",
                    "YieldFrom",
                    "Slice",
                ]
            )
        }
        self._expressions[ast.Call] = lambda node: calls.call(self, node)

    def waits(self, tree: ast.Module) -> list[Wait]:
        """Return the waits of a file, one a line, in order."""
        self._block(tree.body)
        self._outer = [self.names]
        for function in self._functions:  # grows: functions within functions follow
            self._look_at_uncalled(function)
        found = dict(self._waits)
        for function in self._functions:
            for wait in function.waits.values():
                _keep(found, wait)
        return [found[line] for line in sorted(found)]

    @property
    def is_in_loop(self) -> bool:
        """Whether the code at hand is in a loop of its own function."""
        return self._loops > 0

    def report(self, line: int, cause: str, call: str, *, sure: bool) -> None:
        """Note that a line waits."""
        if self.level > ONCE:
            sure = sure and self.level == OFTEN and not self._is_seldom
            name = self._function.name if self._function else "<module>"
            _keep(self._waits, Wait(line, cause, call, sure, name))

    # --- functions

    def call_function(
        self,
        function: Function,
        values: list[Value],
        keywords: dict[str, Value],
        level: int | None = None,
    ) -> Value:
        """Go through a function of the file as it is called here; return what it returns."""
        given = {
            parameter.arg: value
            for parameter, value in zip(function.parameters(), values, strict=False)
        }
        changed = function.note_call(given | keywords, self.level if level is None else level)
        if (
            changed
            and not function.is_busy
            and function.times < _MOST_TIMES
            and self._depth < _DEEPEST
        ):
            self._go_through(function)
        return function.returned or UNKNOWN

    def _look_at_uncalled(self, function: Function) -> None:
        is_method = function.cls is not None
        is_public = not function.node.name.startswith("_") or function.node.name.startswith("__")
        if function.times and not function.is_passed_on and not (is_method and is_public):
            return
        level = function.level_by_itself()
        if not function.is_passed_on and (function.times or not is_method):
            level = min(level, PERHAPS)  # no loop is seen to call it, nor anything to keep it
        given: dict[str, Value] = {}
        if (
            function.cls is not None
            and function.cls.is_function
            and function.node.name == "backward"
        ):
            given = {one.arg: DEVICE for one in function.node.args.args[1:]}
        if function.note_call(given, level):
            self._go_through(function)

    def _go_through(self, function: Function) -> None:
        kept = (
            self.names, self._outer, self.level, self._function, self._returned, self._yielded, self._waits,
            self._is_seldom, self._loop_names, self._loops, self._tries,
        )  # fmt: skip
        function.is_busy = True
        function.times += 1
        self._depth += 1
        self._outer, self.level, self._function = function.outer, function.level, function
        self._returned, self._yielded, self._waits = [], [], function.waits
        self._is_seldom, self._loop_names, self._loops, self._tries = False, frozenset(), 0, 0
        self.names = self._parameters_of(function)
        if self.level > ONCE and function.trains():
            self.level = ONCE  # what is beside a loop of training runs once an epoch, or once
        self._block(function.node.body)
        function.returned = self._what_returns()
        function.is_busy = False
        self._depth -= 1
        (
            self.names, self._outer, self.level, self._function, self._returned, self._yielded, self._waits,
            self._is_seldom, self._loop_names, self._loops, self._tries,
        ) = kept  # fmt: skip

    def _parameters_of(self, function: Function) -> dict[str, Value]:
        arguments = function.node.args
        places = [*arguments.posonlyargs, *arguments.args]
        defaults = [None] * (len(places) - len(arguments.defaults)) + list(arguments.defaults)
        pairs = [*zip(places, defaults, strict=True)]
        pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        names = {one.arg: function.value_of(one, default) for one, default in pairs}
        if arguments.vararg:
            names[arguments.vararg.arg] = EMPTY
        if arguments.kwarg:
            names[arguments.kwarg.arg] = function.others_given()
        if function.cls is not None and places:
            names[places[0].arg] = (
                UNKNOWN if function.cls.is_function else Value("instance", what=function.cls)
            )
        return names

    def _what_returns(self) -> Value:
        values = self._yielded or self._returned
        if not values:
            return NONE
        joined = values[0]
        for value in values[1:]:
            joined = join(joined, value)
        return list_of(joined) if self._yielded else joined

    # --- statements: each returns whether the flow leaves the block

    def _block(self, body: list[ast.stmt]) -> bool:
        for node in body:
            handler = self._statements.get(type(node))
            if handler is not None and handler(node):
                return True
        return False

    def _expr(self, node: ast.Expr) -> None:
        self.discarded = node.value
        self.value(node.value)

    def _assign(self, node: ast.Assign) -> None:
        source = node.value
        if isinstance(source, ast.Tuple) and all(
            isinstance(target, ast.Tuple) and len(target.elts) == len(source.elts)
            for target in node.targets
        ):
            values = [self.value(one) for one in source.elts]
            for target in node.targets:
                for one, value in zip(getattr(target, "elts", ()), values, strict=True):
                    self._bind(one, value)
            return
        value = self.value(source)
        for target in node.targets:
            self._bind(target, value)
            if isinstance(target, ast.Attribute) and isinstance(source, ast.Attribute):
                self._same[ast.unparse(target)] = ast.unparse(source)

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node.target, self.value(node.value))

    def _augassign(self, node: ast.AugAssign) -> None:
        target, added = self.value(node.target), self.value(node.value)
        value = self._result_of(node.op, target, added)
        if target.kind == "list":
            value = list_of(join(target.of, element_of(added)) if target.of else element_of(added))
        self._bind(node.target, value)

    def _bind(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            part = value if value.kind == "loader" else element_of(value)
            for one in target.elts:
                self._bind(one, part)
        elif isinstance(target, ast.Attribute):
            self._bind_attribute(target, value)
        elif isinstance(target, ast.Subscript):
            self._bind_place(target, value)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, list_of(value))

    def _bind_attribute(self, target: ast.Attribute, value: Value) -> None:
        base = self.value(target.value)
        if isinstance(target.value, ast.Name):
            self.names[f"{target.value.id}.{target.attr}"] = value
        if base.kind == "instance" and isinstance(base.what, Class):
            known = base.what.attributes
            known[target.attr] = join(known[target.attr], value) if target.attr in known else value

    def _bind_place(self, target: ast.Subscript, value: Value) -> None:
        base, index = self.value(target.value), self._index(target.slice)
        if base.kind in ON_DEVICE and any(_is_mask(one) for one in index):
            if value.kind in TENSORS:
                self.report(target.lineno, "shape", "Tensor.__setitem__", sure=False)
        elif base.kind == "host tensor" and value.kind == "device":
            self.report(target.lineno, "cpu", "Tensor.__setitem__", sure=True)
        elif base.kind == "list" and isinstance(target.value, ast.Name):
            self.names[target.value.id] = list_of(join(base.of, value) if base.of else value)

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        names = frozenset(one.id for one in ast.walk(node.target) if isinstance(one, ast.Name))
        source = self.value(node.iter)  # once, whatever the loop does
        self._loop(node, lambda: self._bind_each(node.target, node.iter, source), names, source)

    def _while(self, node: ast.While) -> None:
        self._loop(node, lambda: self._spin(node.test), frozenset(), HOST)

    def _spin(self, test: ast.expr) -> None:
        self.truth(test)
        for one in ast.walk(test):
            if isinstance(one, ast.Call):
                calls.note_spin(self, one)

    def _loop(
        self,
        node: ast.For | ast.AsyncFor | ast.While,
        begin: Callable[[], None],
        names: frozenset[str],
        source: Value,
    ) -> None:
        level, waits, loop_names = self.level, self._waits, self._loop_names
        seldom = self._is_seldom
        if level != NEVER:
            self.level = OFTEN
        if source.kind == "loader" and source.form == "slow":
            self.report(node.lineno, "loader", "DataLoader.__next__", sure=False)
        self._loop_names = loop_names | names
        self._loops += 1
        after = self.names
        for attempt in range(2):
            entry = after
            self.names, self._waits = dict(entry), {}
            begin()
            self._block(node.body)
            after = _joined(entry, self.names)
            is_nested = self._loops > _MOST_TIMES
            if attempt or is_nested or all(after[name] == entry[name] for name in entry):
                break
        for wait in self._waits.values():
            _keep(waits, wait)
        self.names, self._waits = after, waits
        self.level, self._loop_names, self._is_seldom = level, loop_names, seldom
        self._loops -= 1
        self._block(node.orelse)

    def _bind_each(self, target: ast.expr, source: ast.expr, value: Value) -> None:
        """Bind the targets of a loop to the elements of what it goes over, which has this value."""
        if isinstance(source, ast.Call):
            name = getattr(source.func, "attr", getattr(source.func, "id", ""))
            parts = target.elts if isinstance(target, ast.Tuple) else []
            if name in ("tqdm", "track") and source.args:
                first = source.args[0]
                return self._bind_each(target, first, self._quietly(first))
            if name == "enumerate" and len(parts) == 2 and source.args:
                self._bind(parts[0], HOST)
                first = source.args[0]
                return self._bind_each(parts[1], first, self._quietly(first))
            if name == "zip" and len(parts) == len(source.args):
                for part, argument in zip(parts, source.args, strict=True):
                    self._bind_each(part, argument, self._quietly(argument))
                return None
            if name in _PAIRS and len(parts) == 2:
                self._bind(parts[0], HOST)
                return self._bind(parts[1], element_of(value))
        keys = value.form == "dict" and value.kind == "list"
        return self._bind(target, HOST if keys else element_of(value))

    def _quietly(self, node: ast.expr) -> Value:
        level, self.level = self.level, NEVER
        value = self.value(node)
        self.level = level
        return value

    def _if(self, node: ast.If) -> bool:
        self.truth(node.test)
        entry, seldom = self.names, self._is_seldom
        self.names = dict(entry)
        self._is_seldom = seldom or self._seldom(node.test)
        self._narrow(node.test)
        leaves = self._block(node.body)
        then = self.names
        self.names, self._is_seldom = dict(entry), seldom
        leaves_too = self._block(node.orelse)
        if leaves_too:
            self.names = then
        elif not leaves:
            self.names = _joined(then, self.names)
        return leaves and leaves_too

    def _seldom(self, test: ast.expr) -> bool:
        """Return whether a condition holds in few steps, such as `step % 1000 == 0`."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            return any(self._seldom(one) for one in test.values)
        if _is_first_time(test):
            return True
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
            return False
        left = test.left
        if isinstance(left, ast.Name):
            return left.id in self._loop_names
        if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod):
            every = left.right
            number = every.value if isinstance(every, ast.Constant) else 0
            return isinstance(number, int) and number >= _SELDOM
        return False

    def _narrow(self, test: ast.expr) -> None:
        """Use what `isinstance` and `is_tensor` say of a name."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for one in test.values:
                self._narrow(one)
        if (
            not isinstance(test, ast.Call)
            or not test.args
            or not isinstance(test.args[0], ast.Name)
        ):
            return
        name = test.args[0].id
        known = self.names.get(name, UNKNOWN)
        called = getattr(test.func, "id", getattr(test.func, "attr", ""))
        kinds = ast.unparse(test.args[1]) if called == "isinstance" and len(test.args) == 2 else ""
        if called == "is_tensor" or "Tensor" in kinds:
            if known.kind == "unknown":
                self.names[name] = TENSOR
        elif kinds and known.kind in ("unknown", "tensor"):
            self.names[name] = (
                EMPTY if kinds in ("list", "tuple", "dict", "(list, tuple)") else HOST
            )

    def _with(self, node: ast.With | ast.AsyncWith) -> bool:
        for item in node.items:
            value = self.value(item.context_expr)
            if item.optional_vars is not None:
                self._bind(
                    item.optional_vars, element_of(value) if value.kind == "list" else value
                )
        return self._block(node.body)

    def _try(self, node: ast.Try) -> bool:
        entry = dict(self.names)
        self._tries += 1
        leaves = self._block(node.body) or self._block(node.orelse)
        self._tries -= 1
        after, seldom = self.names, self._is_seldom
        for handler in node.handlers:
            self.names, self._is_seldom = dict(entry), True
            if not self._block(handler.body):
                after = self.names if leaves else _joined(after, self.names)
                leaves = False
        self.names, self._is_seldom = after, seldom
        return self._block(node.finalbody) or leaves

    def _match(self, node: ast.Match) -> None:
        self.value(node.subject)
        entry = after = self.names
        for case in node.cases:
            self.names = dict(entry)
            for name in [
                one.name for one in ast.walk(case.pattern) if isinstance(one, ast.MatchAs)
            ]:
                if name is not None:
                    self.names[name] = UNKNOWN
            if case.guard is not None:
                self.truth(case.guard)
            if not self._block(case.body):
                after = _joined(after, self.names)
        self.names = after

    def _return(self, node: ast.Return) -> bool:
        self._returned.append(NONE if node.value is None else self.value(node.value))
        return True

    def _raise(self, node: ast.Raise) -> bool:
        if node.exc is not None and not self._tries:
            self._quietly(node.exc)  # it is said once, if at all
        elif node.exc is not None:
            seldom, self._is_seldom = self._is_seldom, True
            self.value(node.exc)
            self._is_seldom = seldom
        return True

    def _assert(self, node: ast.Assert) -> None:
        self.truth(node.test)

    def _functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        function = Function(node, [self.names, *self._outer])
        self._functions.append(function)
        self.names[node.name] = Value("function", what=function)
        for decorator in node.decorator_list:
            self.discarded = None
            if isinstance(decorator, ast.Attribute | ast.Call):
                calls.decorate(self, decorator, function)

    def _classdef(self, node: ast.ClassDef) -> None:
        bases: tuple[str, ...] = ()
        for base in node.bases:
            value = self.value(base)
            own = value.what if isinstance(value.what, str) else getattr(base, "id", "")
            inherited = value.what.bases if isinstance(value.what, Class) else ()
            bases = (*bases, own, *inherited)
        cls = Class(node.name, bases)
        self._classes.append(cls)
        self.names[node.name] = Value("class", what=cls)
        for one in node.body:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                function = Function(one, [self.names, *self._outer], cls)
                cls.methods[one.name] = function
        constructor = cls.methods.get("__init__")
        ordered = sorted(cls.methods.values(), key=lambda one: one is not constructor)
        self._functions.extend(ordered)

    def _import(self, node: ast.Import) -> None:
        for one in node.names:
            if one.asname:
                self.names[one.asname] = named(one.name)
            else:
                root = one.name.partition(".")[0]
                self.names[root] = named(root)

    def _importfrom(self, node: ast.ImportFrom) -> None:
        for one in node.names:
            self.names[one.asname or one.name] = named(f"{node.module or ''}.{one.name}")

    # --- expressions: each returns what the expression is

    def value(self, node: ast.expr) -> Value:
        """Go through an expression; return what it is."""
        handler = self._expressions.get(type(node))
        return handler(node) if handler is not None else UNKNOWN

    def truth(self, node: ast.expr) -> Value:
        """Go through an expression that Python makes a bool of; return what it is."""
        if isinstance(node, ast.BoolOp):
            for one in node.values:
                self.truth(one)
            return HOST
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.truth(node.operand)
            return HOST
        value = self.value(node)
        # A name that may hold a tensor is more often asked whether it is None.
        if value.kind == "device" or isinstance(node, ast.Compare | ast.Call):
            self.read(node.lineno, "bool", "Tensor.__bool__", value)
        return value

    def read(
        self, line: int, cause: str, call: str, value: Value, *, or_unknown: bool = False
    ) -> None:
        """Note that the host asks for a value, if it is on a device or may be."""
        kind = value.kind
        if kind == "device":
            self.report(line, cause, call, sure=True)
        elif kind in ("output", "tensor") or (or_unknown and kind == "unknown"):
            if value.form in ("hint", "weak") and cause in ("format", "print"):
                return  # a number is more often written than a tensor
            self.report(line, cause, call, sure=False)

    def are_the_same(self, one: ast.expr, other: ast.expr) -> bool:
        """Return whether two expressions were seen to be one and the same tensor."""
        first, second = ast.unparse(one), ast.unparse(other)
        return self._same.get(first, first) == self._same.get(second, second)

    def look_up(self, name: str) -> Value | None:
        """Return what a name holds; None where nothing was seen to bind it."""
        value = self.names.get(name)
        if value is None:
            for scope in self._outer:
                value = scope.get(name)
                if value is not None:
                    break
        return value

    def _constant(self, node: ast.Constant) -> Value:
        value = node.value
        if value is None:
            return NONE
        if isinstance(value, str):
            if value.startswith("cpu"):
                return CPU_NAME
            if value.startswith(_ON_THE_GPU):
                return DEVICE_NAME
        return HOST

    def _name(self, node: ast.Name) -> Value:
        value = self.look_up(node.id)
        if value is None or value.kind == "unknown":
            return meant_by(node.id)
        if value.kind == "function" and isinstance(value.what, Function):
            value.what.is_passed_on = True
        return value

    def _attribute(self, node: ast.Attribute) -> Value:
        name = node.attr
        if isinstance(node.value, ast.Name):
            assigned = self.look_up(f"{node.value.id}.{name}")
            if assigned is not None and assigned.kind != "unknown":
                return assigned
        base = self.value(node.value)
        kind = base.kind
        if kind == "named":
            return named(f"{base.what}.{name}")
        if name == "device":
            return self._place_of(node.value, base)
        if name in HOST_ATTRIBUTES or name.startswith("is_") or kind in ("host", "object"):
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
        if name in cls.methods:
            cls.methods[name].is_passed_on = True
        if known.kind != "unknown":
            return known
        return _attribute_called(name)

    def _attribute_of_module(self, base: Value, name: str) -> Value:
        if name == "module":
            return base
        if isinstance(base.what, Class) and name in base.what.attributes:
            return base.what.attributes[name]
        if name in TENSOR_ATTRIBUTES:
            return DEVICE if base.of is not None and base.of.kind in ON_DEVICE else TENSOR
        return meant_by(name)

    @staticmethod
    def _place_of(owner: ast.expr, value: Value) -> Value:
        if value.kind in ON_DEVICE:
            return DEVICE_NAME
        if value.kind in ("host tensor", "pinned"):
            return CPU_NAME
        settles = isinstance(owner, ast.Name) and owner.id in SETTINGS
        return DEVICE_NAME if settles else ANY_DEVICE_NAME

    def _subscript(self, node: ast.Subscript) -> Value:
        base, index = self.value(node.value), self._index(node.slice)
        kind = base.kind
        if kind in ON_DEVICE or kind == "tensor":
            self._note_index(node, base, index)
            return Value(kind, base.form if base.form == "mask" else "")
        first = index[0] if index else HOST
        if kind == "list" and base.form != "dict" and first.kind == "device":
            self.report(node.lineno, "index", "Tensor.__index__", sure=True)
        if kind == "unknown" and first.kind == "device" and _is_mask(first):
            self.report(node.lineno, "shape", "Tensor.__getitem__", sure=False)
        element = element_of(base)
        if element.kind == "unknown" and isinstance(node.slice, ast.Constant):
            meant = meant_by(str(node.slice.value))
            return meant if meant.kind == "tensor" else UNKNOWN
        return element

    def _index(self, node: ast.expr) -> list[Value]:
        """Return what the parts of an index are."""
        return [self.value(one) for one in (node.elts if isinstance(node, ast.Tuple) else [node])]

    def _note_index(self, node: ast.Subscript, base: Value, index: list[Value]) -> None:
        masks = [one for one in index if _is_mask(one)]
        if masks:
            sure = base.kind == "device" and masks[0].kind == "device"
            self.report(node.lineno, "shape", "Tensor.__getitem__", sure=sure)
        elif any(one.form == "bound" for one in index):
            self.report(node.lineno, "index", "Tensor.__index__", sure=base.kind == "device")
        elif base.kind == "device":
            if isinstance(node.slice, ast.List) or any(one.kind == "host tensor" for one in index):
                self.report(node.lineno, "cpu index", "Tensor.__getitem__", sure=True)
            elif any(one.form == "scalar" for one in index):
                self.report(node.lineno, "index", "Tensor.__getitem__", sure=False)

    def _slice(self, node: ast.Slice) -> Value:
        bounds = [
            self.value(one) for one in (node.lower, node.upper, node.step) if one is not None
        ]
        return Value("host", "bound") if any(one.kind == "device" for one in bounds) else HOST

    def _binop(self, node: ast.BinOp) -> Value:
        if isinstance(node.op, ast.Mod) and _is_text_or_none(node.left):
            self.value(node.left)
            parts = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            for one in parts:
                value = self.value(one)
                held = value.of if value.kind == "list" and value.of is not None else value
                self.read(node.lineno, "format", "Tensor.__format__", held)
            return HOST
        return self._result_of(node.op, self.value(node.left), self.value(node.right))

    @staticmethod
    def _result_of(operator: ast.operator, left: Value, right: Value) -> Value:
        if left.kind == "list":
            return join(left, right) if right.kind == "list" else left
        value = strongest([left, right])
        is_mask = isinstance(operator, ast.BitAnd | ast.BitOr | ast.BitXor)
        if is_mask and "mask" in (left.form, right.form):
            return Value(value.kind, "mask")
        if value.kind == "device" and {left.form, right.form} <= {"scalar", ""}:
            both = (left, right)
            if all(one.form == "scalar" or one.kind == "host" for one in both):
                return Value("device", "scalar")
        return value

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            self.truth(node.operand)
            return HOST
        value = self.value(node.operand)
        return value if isinstance(node.op, ast.Invert) else strongest([value])

    def _boolop(self, node: ast.BoolOp) -> Value:
        joined = [self.truth(one) for one in node.values[:-1]]
        value = self.value(node.values[-1])
        for one in joined:
            value = join(one, value)
        return value

    def _compare(self, node: ast.Compare) -> Value:
        operands = [self.value(node.left), *[self.value(one) for one in node.comparators]]
        operator = node.ops[0]
        if isinstance(operator, ast.Is | ast.IsNot):
            return HOST
        if isinstance(operator, ast.In | ast.NotIn):
            if operands[1].kind == "device":
                self.report(node.lineno, "bool", "Tensor.__contains__", sure=True)
            elif operands[0].kind == "device" and operands[1].kind == "list":
                self.report(node.lineno, "bool", "Tensor.__eq__", sure=False)
            return HOST
        if any(_is_text_or_none(one) for one in (node.left, *node.comparators)):
            return HOST
        value = strongest(operands)
        if len(operands) > 2:
            self.read(node.lineno, "bool", "Tensor.__bool__", value)
        return Value(value.kind, "mask") if value.kind in TENSORS else value

    def _ifexp(self, node: ast.IfExp) -> Value:
        self.truth(node.test)
        return join(self.value(node.body), self.value(node.orelse))

    def _joinedstr(self, node: ast.JoinedStr) -> Value:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = self.value(part.value)
                self.read(part.value.lineno, "format", "Tensor.__format__", value)
        return HOST

    def _tuple(self, node: ast.Tuple | ast.List | ast.Set) -> Value:
        values = [self.value(one) for one in node.elts]
        if not values:
            return EMPTY
        joined = values[0]
        for value in values[1:]:
            joined = join(joined, value)
        return list_of(joined)

    _list = _set = _tuple

    def _dict(self, node: ast.Dict) -> Value:
        for key in node.keys:
            if key is not None:
                self.value(key)
        values = [self.value(one) for one in node.values]
        return dict_of([list_of(value) for value in values])

    def _listcomp(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> Value:
        names, self.names = self.names, dict(self.names)
        for one in node.generators:
            self._bind_each(one.target, one.iter, self.value(one.iter))
            for condition in one.ifs:
                self.truth(condition)
        if isinstance(node, ast.DictComp):
            self.value(node.key)
            element = self.value(node.value)
        else:
            element = self.value(node.elt)
        self.names = names
        return list_of(element)

    _setcomp = _generatorexp = _dictcomp = _listcomp

    def _lambda(self, node: ast.Lambda) -> Value:
        return self.call_lambda(node, {}, self.level if self.level == NEVER else OFTEN)

    def call_lambda(self, node: ast.Lambda, given: dict[str, Value], level: int) -> Value:
        """Go through the body of a lambda that is called with these values."""
        names, self.names = self.names, dict(self.names)
        former, self.level = self.level, level
        for one in node.args.args:
            self.names[one.arg] = given.get(one.arg, UNKNOWN)
        self.value(node.body)
        self.names, self.level = names, former
        return UNKNOWN

    def _namedexpr(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self._bind(node.target, value)
        return value

    def _starred(self, node: ast.Starred) -> Value:
        return element_of(self.value(node.value))

    def _await(self, node: ast.Await) -> Value:
        return self.value(node.value)

    def _yield(self, node: ast.Yield) -> Value:
        self._yielded.append(NONE if node.value is None else self.value(node.value))
        return UNKNOWN

    def _yieldfrom(self, node: ast.YieldFrom) -> Value:
        self._yielded.append(element_of(self.value(node.value)))
        return UNKNOWN


def _attribute_called(name: str) -> Value:
    if name in TENSOR_ATTRIBUTES:
        return WEAK_HINT if name in WEIGHTS else HINT
    return meant_by(name)


def _keep(waits: dict[int, Wait], wait: Wait) -> None:
    """Note a wait, unless a surer or earlier one of its line is there."""
    former = waits.get(wait.line)
    if former is None or (wait.sure and not former.sure):
        waits[wait.line] = wait


def _joined(one: dict[str, Value], other: dict[str, Value]) -> dict[str, Value]:
    joined = dict(one)
    for name, value in other.items():
        former = one.get(name)
        joined[name] = value if former is None or former is value else join(former, value)
    for name in one.keys() ^ other.keys():
        if joined[name] is CPU_NAME and "." in name:  # `args.device`, where there is no GPU
            joined[name] = DEVICE_NAME
    return joined


def _is_first_time(test: ast.expr) -> bool:
    """Return whether a condition holds until something is made: `self.x is None`, `not hasattr(...)`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return (
            isinstance(test.operand, ast.Call)
            and getattr(test.operand.func, "id", "") == "hasattr"
        )
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.Is)
        and isinstance(test.left, ast.Attribute)
        and isinstance(test.comparators[0], ast.Constant)
    )


def _is_mask(index: Value) -> bool:
    return index.form == "mask" and index.kind in ("device", "output", "tensor")


def _is_text_or_none(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | None)
    )
