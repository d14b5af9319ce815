"""Compile a model's layers one by one.

The whole model takes minutes to compile for each shape. One layer takes seconds, and all layers of
a kind share the code, for all shapes of batches. Torch keeps the code on disk between runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch


if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gapless.nmt.model.transformer import Transformer


# Kinds of layers times kinds of attention patterns, and room for shapes that torch specialises on.
_MAX_VARIANTS = 64


def compile_layers(model: Transformer) -> None:
    """Make each layer compile when it first runs; the weights keep their names.

    Compiled code draws other random numbers for dropout, and rounds differently in the last
    places.

    Sync: Does not block the host. The first run of a layer does, for seconds.
    """
    torch._dynamo.config.recompile_limit = _MAX_VARIANTS
    for layer in (*model.encoder, *model.decoder):
        layer.compile(dynamic=None)


def eager_layers() -> AbstractContextManager[object]:
    """Return a context in which compiled layers run eagerly.

    For evaluation, which the compiler would have to compile anew: all validations and translations
    of a run take less time than that.

    Sync: Does not block the host.
    """
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance
