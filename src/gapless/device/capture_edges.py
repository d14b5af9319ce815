"""What has to hold at the edges of a capture, whatever the device."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from gapless.device.torch_private import current_graph_task


if TYPE_CHECKING:
    from collections.abc import Iterator


def check_may_cut() -> None:
    """Refuse a cut inside a backward pass: CUDA ends a capture on the thread that began it only.

    Raises:
        RuntimeError: a backward pass is running.
    """
    if current_graph_task() != -1:
        raise RuntimeError(
            "what a backward pass calls cannot be taken out of a capture; call it after backward()"
        )


@contextmanager
def capture_edges(*, keeps_casts: bool = False) -> Iterator[None]:
    """Keep what a capture must not see, or leave behind, out of the body and what follows.

    Args:
        keeps_casts: leave autocast's casts alone: only the body uses its weights.

    * No garbage is collected inside: to free a graph, an event or page-locked memory is an error
      for CUDA while a capture is under way.
    * Autocast keeps casts of weights. One that was made before would be read by every replay, and
      one that was made inside holds no values until the first replay.
    """
    was_collecting = gc.isenabled()
    gc.disable()
    if not keeps_casts:
        torch.clear_autocast_cache()
    try:
        yield
    finally:
        if not keeps_casts:
            torch.clear_autocast_cache()
        if was_collecting:
            gc.enable()
