"""Compile a model's layers one by one.

The whole model takes minutes to compile for each shape. One layer takes seconds, and all layers of
a kind share the code, for all shapes of batches. Torch keeps the code on disk between runs.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch

from gapless.device.torch_private import CompileCallbacks, allow_recompiles


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from gapless.nmt.model.transformer import Transformer


# Kinds of layers times kinds of attention patterns, and room for shapes that torch specialises on.
_MAX_VARIANTS = 64

# Kernels that need nothing of each other are one: most of a layer's cast one weight, or sum the gradient of one bias,
# and take longer to launch than to run. Torch 2.11 cannot do it for all sums over a length that varies.
_OF_FIXED_SHAPES: dict[str, str | int | bool] = {"combo_kernels": True}


def compile_layers(model: Transformer, *, lengths_vary: bool = True) -> None:
    """Make each layer compile when it first runs; the weights keep their names.

    Compiled code draws other random numbers for dropout, and rounds differently in the last
    places.

    Args:
        model: whose layers.
        lengths_vary: whether the code is for rows of any length; if not, all batches have one shape.

    Sync: Does not block the host. The first run of a layer does, for seconds.
    """
    allow_recompiles(_MAX_VARIANTS)
    model.lengths_vary = lengths_vary
    options = None if lengths_vary else _OF_FIXED_SHAPES
    for layer in (*model.encoder, *model.decoder):
        layer.compile(dynamic=None, options=options)


@contextmanager
def declared_compiles(declare: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Enter a context whenever torch compiles in the body, which may take minutes.

    Args:
        declare: returns a new context.

    Sync: Does not block the host, but as the context does.
    """
    declared: list[ExitStack] = []

    def begin(*about: object) -> None:
        del about
        declared.append(ExitStack())
        declared[-1].enter_context(declare())

    def end(*about: object) -> None:
        del about
        if declared:
            declared.pop().close()

    try:
        with CompileCallbacks(begin, end):
            yield
    finally:
        while declared:
            declared.pop().close()


def eager_layers() -> AbstractContextManager[object]:
    """Return a context in which compiled layers run eagerly.

    For evaluation, which the compiler would have to compile anew: all validations and translations
    of a run take less time than that.

    Sync: Does not block the host.
    """
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance
