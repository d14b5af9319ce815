"""What expressions in the user's code are in all calls, as far as that is known without running any of it.

Followed are constants, variables that are assigned once or always the same, attributes that no function sets,
`hasattr`, comparisons, and what joins them. Everything else is not known.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

from gapless.device.torch_private import MODULE_PARTS


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


UNKNOWN: Any = object()

_PLAIN = (bool, int, float, str, type(None))

# Expressions within expressions, at most.
_DEEPEST = 8

_Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

_COMPARES = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


@dataclass(frozen=True)
class Names:
    """What names in a function stand for.

    Attributes:
        own: its variables, as far as they are known.
        scopes: those around it by name, the innermost first.
    """

    own: Mapping[str, Any]
    scopes: Sequence[Mapping[str, Any]]

    def around(self, name: str) -> Any:
        """Return what a name stands for outside of the function, `UNKNOWN` if that is not known."""
        for scope in self.scopes:
            if name in scope:
                return scope[name]
        return getattr(builtins, name, UNKNOWN)


@dataclass(frozen=True)
class StaticValues:
    """What is known of the values around a place in the code, now and for all calls.

    Attributes:
        names: what names stand for there.
        around: what it stands in.
        stored: attributes that functions set.
        flag: name of an argument that is what its default says: whoever passes it is looked at as well.
    """

    names: Names
    around: tuple[ast.AST, ...]
    stored: frozenset[str]
    flag: str

    def may_run(self) -> bool:
        """Return whether no branch that is never taken stands around the place."""
        inner: ast.AST | None = None
        for node in self.around:
            if isinstance(node, ast.If | ast.IfExp) and inner is not None:
                value = self.value(node.test)
                is_body = inner is node.body if isinstance(node, ast.IfExp) else inner in node.body
                if value is not UNKNOWN and inner is not node.test and truth(value) is not is_body:
                    return False
            if isinstance(node, _FUNCTIONS):
                break
            inner = node
        return True

    def function(self) -> _Function | None:
        """Return the innermost function around, None in the body of a file."""
        return next((place for place in self.around if isinstance(place, _FUNCTIONS)), None)

    def stores_of(self, name: str) -> list[ast.expr] | None:
        """Return all that a variable of the innermost function is assigned; None if that is not plain."""
        place = self.function() or self.around[-1]
        stores = _stores_in(place).get(name, [])
        plain = [one for one in stores if one is not None]
        is_known = plain and len(plain) == len(stores) and name not in _set_within(place)
        return plain if is_known else None

    def value(self, node: ast.expr, *, depth: int = _DEEPEST) -> Any:
        """Return what an expression is in all calls, `UNKNOWN` if that is not known.

        None of the user's code runs.
        """
        method = getattr(self, f"_of_{type(node).__name__.lower()}", None)
        return UNKNOWN if method is None or depth == 0 else method(node, depth - 1)

    def _of_constant(self, node: ast.Constant, _: int) -> Any:
        return node.value

    def _of_name(self, node: ast.Name, depth: int) -> Any:
        for place in self.around:
            if isinstance(place, ast.ClassDef) or not isinstance(place, (*_FUNCTIONS, ast.Module)):
                continue
            if isinstance(place, _FUNCTIONS) and node.id in arguments_of(place):
                return self._of_argument(node.id, place, depth)
            stores = _stores_in(place).get(node.id)
            if stores is not None:
                return self._of_stores(node.id, stores, place, depth)
        return self.names.around(node.id)

    def _of_argument(self, name: str, place: _Function, depth: int) -> Any:
        if name in _stores_in(place):
            return UNKNOWN
        value = self.names.own.get(name, UNKNOWN)
        if value is not UNKNOWN and not isinstance(value, _PLAIN):
            return value
        default = arguments_of(place)[name]
        if name == self.flag and default is not None:
            return self.value(default, depth=depth)
        return False if name == self.flag else UNKNOWN

    def _of_stores(
        self, name: str, stores: Sequence[ast.expr | None], place: ast.AST, depth: int
    ) -> Any:
        is_global = isinstance(place, ast.Module)
        value = self.names.around(name) if is_global else self.names.own.get(name, UNKNOWN)
        if value is not UNKNOWN and not isinstance(value, _PLAIN):
            return value
        if name in _set_within(place):
            return UNKNOWN
        values = [UNKNOWN if one is None else self.value(one, depth=depth) for one in stores]
        is_one = all(value is values[0] or value == values[0] for value in values)
        return values[0] if is_one else UNKNOWN

    def _of_attribute(self, node: ast.Attribute, depth: int) -> Any:
        if node.attr in self.stored or node.attr == "training":
            return UNKNOWN
        base = self.value(node.value, depth=depth)
        return UNKNOWN if base is UNKNOWN else _attribute_of(base, node.attr, UNKNOWN)

    def _of_subscript(self, node: ast.Subscript, depth: int) -> Any:
        base, key = self.value(node.value, depth=depth), self.value(node.slice, depth=depth)
        return base.get(key, UNKNOWN) if type(base) is dict and isinstance(key, str) else UNKNOWN

    def _of_unaryop(self, node: ast.UnaryOp, depth: int) -> Any:
        value = self.value(node.operand, depth=depth)
        return not value if isinstance(node.op, ast.Not) and value is not UNKNOWN else UNKNOWN

    def _of_boolop(self, node: ast.BoolOp, depth: int) -> Any:
        values = [self.value(part, depth=depth) for part in node.values]
        ends = isinstance(node.op, ast.Or)
        for value in values:
            if value is not UNKNOWN and truth(value) is ends:
                return value
        return UNKNOWN if UNKNOWN in values else values[-1]

    def _of_ifexp(self, node: ast.IfExp, depth: int) -> Any:
        test = self.value(node.test, depth=depth)
        if test is UNKNOWN:
            return UNKNOWN
        return self.value(node.body if truth(test) else node.orelse, depth=depth)

    def _of_compare(self, node: ast.Compare, depth: int) -> Any:
        compare: Any = _COMPARES.get(type(node.ops[0]))
        values = [self.value(part, depth=depth) for part in (node.left, *node.comparators)]
        if len(values) != 2 or compare is None or not all(isinstance(v, _PLAIN) for v in values):
            return UNKNOWN
        try:
            return compare(*values)
        except TypeError:  # a number and a text
            return UNKNOWN

    def _of_call(self, node: ast.Call, depth: int) -> Any:
        name = getattr(node.func, "id", "")
        values = [self.value(part, depth=depth) for part in node.args]
        if node.keywords or not values or values[0] is UNKNOWN:
            return UNKNOWN
        if name == "bool" and len(values) == 1:
            return truth(values[0])
        if name in ("hasattr", "getattr") and len(values) > 1 and isinstance(values[1], str):
            if values[1] in self.stored:
                return UNKNOWN
            missing: Any = object()
            found = _attribute_of(values[0], values[1], missing)
            if name == "hasattr":
                return found is not missing
            return found if found is not missing else values[2] if len(values) > 2 else UNKNOWN
        return UNKNOWN


def truth(value: Any) -> bool:
    """Return whether a value counts as true, without a call of its code."""
    return bool(value) if isinstance(value, _PLAIN) or type(value) in (list, tuple, dict) else True


def _attribute_of(base: Any, name: str, missing: Any) -> Any:
    # Torch looks up modules within a module, and no others, in a table of its own.
    parts = (
        vars(base).get(MODULE_PARTS) if isinstance(getattr(base, "__dict__", None), dict) else None
    )
    if isinstance(parts, dict) and name in parts:
        return parts[name]
    found = inspect.getattr_static(base, name, missing)
    is_computed = hasattr(type(found), "__get__") and not isinstance(found, FunctionType | type)
    return UNKNOWN if is_computed and found is not missing else found


@cache
def arguments_of(place: _Function) -> dict[str, ast.expr | None]:
    """Return the names of a function's arguments, each with its default."""
    given = place.args
    named = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(named) - len(given.defaults)), *given.defaults]
    found: dict[str, ast.expr | None] = {
        one.arg: default for one, default in zip(named, defaults, strict=True)
    }
    found.update(
        {one.arg: value for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)}
    )
    found.update({one.arg: None for one in (given.vararg, given.kwarg) if one is not None})
    return found


@cache
def _stores_in(place: ast.AST) -> dict[str, list[ast.expr | None]]:
    """Return the variables of a function or a file: what is assigned, None where that is not plain."""
    found: dict[str, list[ast.expr | None]] = {}
    todo: list[ast.AST] = list(ast.iter_child_nodes(place))
    plain: dict[int, ast.expr] = {}
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            plain[id(node.targets[0])] = node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            plain[id(node.target)] = node.value
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found.setdefault(node.id, []).append(plain.get(id(node)))
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            todo += ast.iter_child_nodes(node)
    return found


@cache
def _set_within(place: ast.AST) -> frozenset[str]:
    """Return the variables around them that functions within a function or a file set."""
    nodes = [node for node in ast.walk(place) if isinstance(node, ast.Global | ast.Nonlocal)]
    return frozenset(chain.from_iterable([node.names for node in nodes]))
