"""What the other ranks have where rank 0 has a run folder, a saver and an observer: nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from gapless.checkpoint.manifest import Content
from gapless.pipeline.host_copy import HostCopy


if TYPE_CHECKING:
    from gapless.device.base import Device


class SilentLog:
    """Is in place of an `ErrorLog`."""

    def warning(self, text: str, *, update: int) -> None:
        """Write nothing."""

    def error(self, error: BaseException, *, update: int) -> None:
        """Write nothing."""


class SilentMetrics:
    """Is in place of a `MetricsFile`."""

    def content(self) -> Content:
        """Return that of an empty file."""
        return Content.of(())

    def sync(self) -> None:
        """Do nothing."""


class SilentFolder:
    """Is in place of a `RunFolder`."""

    def __init__(self) -> None:
        self.metrics = SilentMetrics()

    def log(self, kind: str, **values: Any) -> None:
        """Write nothing."""

    def log_epoch(self, record: object) -> None:
        """Write nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""


class SilentSaver:
    """Is in place of a `Saver`: the weights are those of rank 0.

    Args:
        device: of the weights.
    """

    is_saving_state = False

    def __init__(self, device: Device) -> None:
        self._device = device

    def reserve(self, model: object) -> None:
        """Do nothing."""

    def copy_weights(self, model: object) -> HostCopy:
        """Return a copy of nothing.

        Sync: Does not block the host.
        """
        return HostCopy({}, device=self._device)

    def save_epoch(self, weights: HostCopy, epoch: int, *, step: int = 0) -> None:
        """Write nothing."""

    def save_state(self, state: dict[str, Any], **about: Any) -> None:
        """Write nothing."""

    def poll(self) -> None:
        """Do nothing."""

    def drain(self) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""


class SilentObserver:
    """Is in place of an `Observer`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _do_nothing

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""


def _do_nothing(*values: Any, **named: Any) -> None:
    del values, named
