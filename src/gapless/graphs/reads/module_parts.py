"""The parts of a module, found without a call of anything of theirs.

Torch's `named_modules` asks each part for its hash, and a part's own `__hash__` would be watched as code of
the step: a metric of torchmetrics reads its state there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import nn


def named_parts(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield a module and its parts with their names, in torch's order, each once."""
    seen: set[int] = set()
    waiting = [("", module)]
    while waiting:
        name, part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield name, part
        prefix = f"{name}." if name else ""
        waiting.extend([(prefix + key, one) for key, one in reversed(children_of(part))])


def children_of(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the parts that a module itself names."""
    return [(name, part) for name, part in module._modules.items() if part is not None]


def weights_within(module: nn.Module) -> Iterator[torch.nn.Parameter]:
    """Yield the parameters of a module and its parts, a shared one as often as it stands there."""
    for _, part in named_parts(module):
        for weight in part._parameters.values():
            if weight is not None:
                yield weight
