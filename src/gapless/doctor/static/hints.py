"""What people mean by a name: the only thing known of a parameter."""

from __future__ import annotations

from functools import lru_cache

from gapless.doctor.static.torch_names import DEVICE_WORD, MAKES_MODULE, MODULE_NAME, TENSOR_NAME
from gapless.doctor.static.values import DEVICE_NAME, HINT, MODULE, UNKNOWN, Value


@lru_cache(maxsize=4096)
def meant_by(name: str) -> Value:
    """Return what people call so, by the last part of a dotted name."""
    name = name.rpartition(".")[2]
    if TENSOR_NAME.search(name):
        return HINT
    if DEVICE_WORD.search(name):
        return DEVICE_NAME
    return MODULE if MODULE_NAME.search(name) else UNKNOWN


@lru_cache(maxsize=4096)
def made_by(name: str) -> Value:
    """Return what a call of such a name most likely makes."""
    return MODULE if MAKES_MODULE.search(name.rpartition(".")[2]) else UNKNOWN
