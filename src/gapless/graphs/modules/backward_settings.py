"""Settings of torch in a backward pass, which may be others than in the forward pass before it.

Autocast mostly ends before the backward pass, whose operations must not be cast then.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.environment import environment_readers


if TYPE_CHECKING:
    from collections.abc import Iterator


class Settings:
    """Reads the settings that decide which kernels a backward pass launches.

    Args:
        device_type: such as "cuda".
    """

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._readers = [reader for _, reader in environment_readers(device_type)]

    def now(self) -> tuple[Any, ...]:
        """Return the settings, those of autocast first."""
        kind = self._device_type
        return (
            torch.is_autocast_enabled(kind),
            torch.get_autocast_dtype(kind),
            torch.is_autocast_cache_enabled(),
            *[reader() for reader in self._readers],
        )

    @contextmanager
    def autocast_as(self, settings: tuple[Any, ...] | None) -> Iterator[None]:
        """Let autocast be in the body as these settings say."""
        if settings is None:
            yield
            return
        enabled, dtype, keeps_casts, *_ = settings
        with torch.autocast(
            self._device_type, dtype=dtype, enabled=enabled, cache_enabled=keeps_casts
        ):
            yield
