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
from gapless.graphs.reads.module_parts import children_of, named_parts, weights_within
from gapless.graphs.refusal import KINDS


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gapless.graphs.refusal import Refusal


# What a line of the module's own code does, and its parts need not do.
_OF_A_LINE = {
    "capture_failed",
    "host_read",
    "host_write",
    "keeps_unknown",
    "replaced_tensor",
    "unreadable",
}
# They cannot be called.
_ONLY_HOLD = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def parts_to_capture(module: nn.Module, refusals: Sequence[Refusal]) -> dict[str, nn.Module]:
    """Return the largest parts of a refused module that can be captured, by name; none is within another.

    They have weights and parts of their own, no hooks within, and not the line of a refusal. A graph of one
    layer alone is of no use. Where not every refusal is of a line or a hook there are none.
    """
    final = [one for one in refusals if KINDS[one.kind] == "the code"]
    if not final or not all(map(_is_of_a_line, final)):
        return {}
    found = list(_parts_of(module, "", {one.site for one in final}))
    names = {id(part): name for name, part in reversed(found)}
    return {name: part for name, part in found if names[id(part)] == name}


def _is_of_a_line(refusal: Refusal) -> bool:
    return refusal.kind == "hook" or (refusal.kind in _OF_A_LINE and refusal.site is not None)


def _parts_of(
    module: nn.Module, prefix: str, sites: set[str | None]
) -> Iterator[tuple[str, nn.Module]]:
    for name, part in children_of(module):
        if next(weights_within(part), None) is None or not children_of(part):
            continue
        is_apart = (
            isinstance(part, _ONLY_HOLD)
            or hooks_within(part)
            or not sites.isdisjoint(_lines_of(part))
        )
        if is_apart:
            yield from _parts_of(part, f"{prefix}{name}.", sites)
        else:
            yield f"{prefix}{name}", part


def _lines_of(module: nn.Module) -> Iterator[str]:
    """Yield `file:line` of all lines of the user's own classes in a module."""
    for kind in {base for _, part in named_parts(module) for base in type(part).__mro__}:
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
