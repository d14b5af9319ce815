"""The mode that a copy has to be made in, so that it is a tensor of inference mode if the original is one."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch


if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


def inference_mode(*, is_on: bool) -> AbstractContextManager[None]:
    """Make tensors of inference mode in the body, or others, whatever the mode around it.

    Where the mode changes, the body has no gradients: `torch.inference_mode(False)` alone would enable them.
    """
    if torch.is_inference_mode_enabled() is is_on:
        return nullcontext()
    return _changed(is_on)


@contextmanager
def _changed(is_on: bool) -> Iterator[None]:
    with torch.inference_mode(is_on), torch.no_grad():
        yield
