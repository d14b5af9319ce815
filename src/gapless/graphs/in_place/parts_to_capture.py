"""Which part of a module could be captured where the module as a whole cannot."""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import TYPE_CHECKING

from torch import nn

from gapless.graphs.modules.module_refusals import hooks_within
from gapless.graphs.reads.code_kinds import site_of
from gapless.graphs.refusal import KINDS


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gapless.graphs.refusal import Refusal


# Of all that a module is made of, or of what is around it.
_OF_ALL = ("weights", "framework", "update")
# They cannot be called.
_ONLY_HOLD = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def part_to_capture(module: nn.Module, refusals: Sequence[Refusal]) -> str:
    """Return what to capture instead of a module, "" if no part of it can be named.

    It is the largest child that has no hooks within and not the line of a refusal.
    """
    refusals = [one for one in refusals if one.kind not in _OF_ALL]
    if not any(KINDS[one.kind] == "the code" for one in refusals):
        return ""
    sites = {one.site for one in refusals}
    sizes = {
        name: sum(weight.numel() for weight in child.parameters())
        for name, child in module.named_children()
        if not (
            isinstance(child, _ONLY_HOLD)
            or hooks_within(child)
            or sites.intersection(_lines_of(child))
        )
    }
    name = max(sizes, key=sizes.__getitem__, default="")
    if not sizes.get(name):
        return ""
    shown = f"model[{name}]" if name.isdecimal() else f"model.{name}"
    return f"; its part `{name}` could be captured: gapless.capture({shown})"


def _lines_of(module: nn.Module) -> Iterator[str]:
    """Yield `file:line` of all lines of the user's own classes in a module."""
    for kind in {base for part in module.modules() for base in type(part).__mro__}:
        if kind.__module__.startswith("torch.") or kind is object:
            continue
        for function in vars(kind).values():
            if isinstance(function, FunctionType):
                yield from _sites_in(function.__code__)


def _sites_in(code: CodeType) -> Iterator[str]:
    for _, _, line in code.co_lines():
        yield site_of(code, line)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _sites_in(inner)
