"""Count and forbid host waits in anybody's code."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gapless.device.find import find_device


if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from gapless.device.base import Device


@dataclass
class WaitCount:
    """Host waits of a body.

    Attributes:
        by_site: how often, by (call, file:line), in order of first occurrence.
    """

    by_site: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """Number of waits."""
        return self.by_site.total()

    def __str__(self) -> str:
        lines = [f"{site}: {what}, {count} times" for (what, site), count in self.by_site.items()]
        return "\n".join([f"{self.count} host waits", *lines])


@contextmanager
def count_waits(device: str | torch.device | Device = "auto") -> Iterator[WaitCount]:
    """Count every wait of the host for the device in a `with` body, with its line.

    Sees `item`, `tolist`, `cpu`, printing a tensor, blocking copies, `synchronize` of streams,
    events and devices, and copies that block although `non_blocking` was asked for. Waits that
    gapless declares are counted like all others. On a CPU nothing waits.

    Args:
        device: a device or its name.

    Raises:
        DeviceError: the device is absent, or this torch does not tell about synchronisations.

    Example:
        with gapless.testing.count_waits() as waits:
            for batch in batches:
                train_step(batch)
        assert waits.count <= 0.1 * len(batches), waits

    Sync: Does not block the host.
    """
    waits = WaitCount()

    def note(what: str, site: str) -> None:
        waits.by_site[what, site] += 1

    with find_device(device).watch_waits(note):
        yield waits


@contextmanager
def forbid_waits(device: str | torch.device | Device = "auto") -> Iterator[None]:
    """Fail if the host waits for the device in a `with` body.

    Args:
        device: a device or its name.

    Raises:
        AssertionError: at the end of the body, naming the line of every wait.
        DeviceError: as `count_waits`.

    Sync: Does not block the host.
    """
    with count_waits(device) as waits:
        yield
    if waits.count:
        raise AssertionError(f"the host must not wait here, but there were {waits}")
