"""How precisely float32 products are computed: torch has an old API for it, and a new one.

Where both were used to set it, reading by the old one raises. So it is read by the new one, which knows
what was set by either.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import (
    get_float32_precision as _get,
    set_float32_precision as _set,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_OPERATIONS = ("matmul", "conv", "rnn")
_BACKENDS = ("cuda", "mkldnn")


def readers_of_float32_precision(device_type: str) -> list[tuple[str, Callable[[], Any]]]:
    """Return the names of these settings, and functions that read them.

    Args:
        device_type: for example "cuda".
    """
    if _get is None:
        return [
            ("torch.get_float32_matmul_precision()", torch.get_float32_matmul_precision),
            ("torch.backends.cudnn.allow_tf32", partial(_allows_tf32, torch.backends.cudnn)),
            (
                "torch.backends.cuda.matmul.allow_tf32",
                partial(_allows_tf32, torch.backends.cuda.matmul),
            ),
        ]
    return [
        (f"the float32 precision of {backend}'s {operation}", partial(_get, backend, operation))
        for backend in (["cuda"] if device_type == "cuda" else _BACKENDS)
        for operation in _OPERATIONS
    ]


def _allows_tf32(backend: Any) -> bool:
    return bool(backend.allow_tf32)


@contextmanager
def float32_precision_restored() -> Iterator[None]:
    """Restore the precision of products of matrices, as it was before the body."""
    new = {} if _get is None else {backend: _get(backend, "matmul") for backend in _BACKENDS}
    try:
        old = torch.get_float32_matmul_precision()
    except RuntimeError:  # set by both APIs, to different values
        old = None
    try:
        yield
    finally:
        if old is not None:
            torch.set_float32_matmul_precision(old)
        for backend, precision in new.items():
            if _get(backend, "matmul") != precision:
                _set(backend, "matmul", precision)
