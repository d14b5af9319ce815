"""Which modules a gradient goes through, as far as the code says it: those between its outputs and its inputs.

`torch.autograd.grad(critic(x).sum(), x, create_graph=True)` differentiates gradients of `critic`, and of no other
module of the loop.
"""

from __future__ import annotations

import ast
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.reads.static_values import UNKNOWN


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gapless.graphs.reads.static_values import StaticValues


_DEEPEST = 12

# Expressions that are made of others, and call nothing but torch's operators.
_MADE_OF_OTHERS = (
    ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Starred, ast.Compare,
    ast.Constant, ast.operator, ast.unaryop, ast.cmpop, ast.expr_context,
)  # fmt: skip


class ModulesBetween:
    """Finds them in one function.

    Args:
        values: what is known where the gradient is asked for.
        inputs: to which it goes, and no further.
        arguments: what the function is called with, where that is known.
    """

    def __init__(
        self,
        values: StaticValues,
        inputs: ast.expr,
        arguments: Mapping[str, Sequence[Any]],
    ) -> None:
        self._values = values
        self._inputs = {node.id for node in ast.walk(inputs) if isinstance(node, ast.Name)}
        self._arguments = arguments

    def behind(self, node: ast.AST, *, depth: int = _DEEPEST) -> list[torch.nn.Module] | None:
        """Return the modules that an output goes back to; None if that is not known."""
        if depth == 0:
            return None
        if isinstance(node, ast.Name):
            return self._behind_name(node, depth - 1)
        if isinstance(node, ast.Call):
            return self._behind_call(node, depth - 1)
        if isinstance(node, ast.Attribute):
            return self.behind(node.value, depth=depth - 1) if _is_of_tensors(node.attr) else None
        if isinstance(node, _MADE_OF_OTHERS):
            return self._behind_all(ast.iter_child_nodes(node), depth - 1)
        return None

    def _behind_all(self, nodes: Iterable[ast.AST], depth: int) -> list[torch.nn.Module] | None:
        found: list[torch.nn.Module] = []
        for node in nodes:
            modules = self.behind(node, depth=depth)
            if modules is None:
                return None
            found += modules
        return found

    def _behind_name(self, node: ast.Name, depth: int) -> list[torch.nn.Module] | None:
        if node.id in self._inputs:
            return []
        stores = self._values.stores_of(node.id)
        if stores is None:
            return None
        return self._behind_all(stores, depth)

    def _behind_call(self, node: ast.Call, depth: int) -> list[torch.nn.Module] | None:
        given = [*node.args, *[keyword.value for keyword in node.keywords]]
        called = self._called(node.func)
        if called and all(isinstance(one, torch.nn.Module) for one in called):
            rest = self._behind_all(given, depth)
            return None if rest is None else [*called, *rest]
        if called and all(map(_is_operator, called)):
            return self._behind_all(given, depth)
        is_method = isinstance(node.func, ast.Attribute) and _is_of_tensors(node.func.attr)
        if is_method and not called and isinstance(node.func, ast.Attribute):
            return self._behind_all([node.func.value, *given], depth)
        return None

    def _called(self, node: ast.expr) -> Sequence[Any]:
        """Return what may be called; nothing if that is not known."""
        if isinstance(node, ast.Name) and node.id in self._arguments:
            return self._arguments[node.id]
        value = self._values.value(node)
        return [] if value is UNKNOWN else [value]


def _is_of_tensors(name: str) -> bool:
    return hasattr(torch.Tensor, name)


def _is_operator(value: Any) -> bool:
    module = str(getattr(value, "__module__", None) or "")
    is_torchs = module == "torch" or module.startswith(("torch.functional", "torch.nn.functional"))
    return is_torchs or type(value) is BuiltinFunctionType
