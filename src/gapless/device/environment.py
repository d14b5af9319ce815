"""Settings of torch that decide which kernels a step launches."""

from __future__ import annotations

from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gapless.device.float32_precision import readers_of_float32_precision
from gapless.device.torch_modes import kinds_of_modes
from gapless.device.torch_private import (
    choose_attention,
    has_transforms,
    is_multithreading_enabled,
    keeps_parametrizations,
    level_of_forward_mode,
    order_of_attention,
    preferred_library_readers,
    saved_tensors_hooks,
    setting_readers,
)


if TYPE_CHECKING:
    from collections.abc import Callable


class Setting(NamedTuple):
    """A setting of torch.

    Attributes:
        name: of it.
        read: returns its value, a plain one.
        read_in_c: returns something that is equal as long as the value is, without a call in Python.
    """

    name: str
    read: Callable[[], Any]
    read_in_c: Callable[[], Any]


def environment_readers(device_type: str) -> list[tuple[str, Callable[[], Any]]]:
    """Return the names of settings that a graph bakes in, and functions that read them.

    Each function takes well below a microsecond and returns a plain value.

    Args:
        device_type: for example "cuda".
    """
    return [("modes of torch", kinds_of_modes)] + [
        (setting.name, setting.read) for setting in settings_of_torch(device_type)
    ]


def settings_of_torch(device_type: str) -> list[Setting]:
    """Return the settings that a graph bakes in, but for the modes of torch.

    Args:
        device_type: for example "cuda".
    """
    known: list[tuple[str, Callable[[], Any]]] = [
        ("transforms of torch.func", has_transforms),
        ("torch.autograd.forward_ad.dual_level", level_of_forward_mode),
        ("torch.is_grad_enabled()", torch.is_grad_enabled),
        ("torch.is_inference_mode_enabled()", torch.is_inference_mode_enabled),
        ("autocast's cache", torch.is_autocast_cache_enabled),
        ("torch.get_default_dtype()", torch.get_default_dtype),
        (
            "torch.are_deterministic_algorithms_enabled()",
            torch.are_deterministic_algorithms_enabled,
        ),
        ("torch.autograd.set_multithreading_enabled", is_multithreading_enabled),
        ("torch.is_anomaly_enabled()", torch.is_anomaly_enabled),
        ("torch.autograd.graph.saved_tensors_hooks", saved_tensors_hooks or _nothing),
        ("torch.nn.utils.parametrize.cached", keeps_parametrizations),
        ("torch.backends.mha.get_fastpath_enabled()", torch.backends.mha.get_fastpath_enabled),
    ]
    known += readers_of_float32_precision(device_type)
    for autocast_type in dict.fromkeys((device_type, "cpu")):
        known += [
            (f"autocast of {autocast_type}", partial(torch.is_autocast_enabled, autocast_type)),
            (
                f"autocast's dtype of {autocast_type}",
                partial(torch.get_autocast_dtype, autocast_type),
            ),
        ]
    known += setting_readers.items()
    found = [Setting(name, reader, reader) for name, reader in known]
    for name, reader in preferred_library_readers.items():
        found.append(Setting(name, partial(_number_of, reader), reader))
    if order_of_attention is not None:
        _let_torch_order_attention(device_type)
        name = "the order of attention's kernels"
        found.append(Setting(name, _order_of_attention, order_of_attention))
    return [setting for setting in found if _can_read(setting.read)]


def _number_of(reader: Callable[[], Any]) -> int:
    """Return the number of an enumeration of torch, which makes a new object for each answer."""
    return int(reader())


@cache
def _let_torch_order_attention(device_type: str) -> None:
    """Let torch put attention's kernels in its order for the GPU.

    It does so when it is first asked for a kernel. If that happened later, in a validation say, a
    setting would seem to have changed.
    """
    is_there = device_type == "cuda" and torch.cuda.is_available()
    if is_there and choose_attention is not None:
        # Of float16, which most kernels take; the user may have allowed none that does.
        part = torch.empty((1, 1, 1, 8), device=device_type, dtype=torch.float16)
        with suppress(RuntimeError, Warning):
            choose_attention(part, part, part)


def _order_of_attention() -> tuple[int, ...]:
    assert order_of_attention is not None
    return tuple(order_of_attention())


def _nothing() -> None:
    return None


def _can_read(reader: Callable[[], Any]) -> bool:
    try:
        reader()
    except (RuntimeError, TypeError):
        return False
    return reader is not _nothing
