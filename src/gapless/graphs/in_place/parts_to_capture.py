"""Which parts of a module are captured in its place, where the module as a whole cannot be.

A line of its own code may draw random numbers on the host, read the device or print, as the loss of a diffusion
model does around its network. What it calls can be captured all the same.
"""

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


def parts_to_capture(module: nn.Module, refusals: Sequence[Refusal]) -> dict[str, nn.Module]:
    """Return the largest parts of a refused module that can be captured, by name; none is within another.

    They have weights and parts of their own, no hooks within, and not the line of a refusal. A graph of one
    layer alone is of no use.
    """
    refusals = [one for one in refusals if one.kind not in _OF_ALL]
    if not any(KINDS[one.kind] == "the code" for one in refusals):
        return {}
    return dict(_parts_of(module, "", {one.site for one in refusals}))


def _parts_of(
    module: nn.Module, prefix: str, sites: set[str | None]
) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        if next(child.parameters(), None) is None or next(child.children(), None) is None:
            continue
        is_apart = (
            isinstance(child, _ONLY_HOLD)
            or hooks_within(child)
            or not sites.isdisjoint(_lines_of(child))
        )
        if is_apart:
            yield from _parts_of(child, f"{prefix}{name}.", sites)
        else:
            yield f"{prefix}{name}", child


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
