"""Count, forbid and allow host waits, in any code.

A host wait is a call that blocks the host until the device has done something: `item`, printing a
tensor, a blocking copy, `synchronize`. The three context managers here may be nested in any order:

    count_waits     counts every wait of its body
    forbid_waits    raises at the end of its body if there was a wait
    allow_waits     declares the waits of its body, with a reason, so that they are not forbidden
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gapless.device.cuda_waits import lift_sync_errors
from gapless.device.find import find_device
from gapless.errors import ForbiddenWaitError


if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from gapless.device.base import Device


# The reason of the innermost `allow_waits`, None outside of one and directly inside `forbid_waits`.
_declared_reason: ContextVar[str | None] = ContextVar("declared_reason", default=None)


@dataclass
class WaitCount:
    """Host waits of a body.

    Attributes:
        by_site: how often, by (call, file:line), in order of first occurrence.
        by_reason: how often inside `allow_waits`, by reason; the same waits are in `by_site`.
    """

    by_site: Counter[tuple[str, str]] = field(default_factory=Counter)
    by_reason: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """Number of waits, whether declared or not."""
        return self.by_site.total()

    @property
    def num_undeclared(self) -> int:
        """Number of waits outside `allow_waits`."""
        return self.count - self.by_reason.total()

    def __str__(self) -> str:
        noun = "host wait" if self.count == 1 else "host waits"
        lines = [f"{self.count} {noun}"]
        lines += [
            f"{site}: {what}, {_times(count)}" for (what, site), count in self.by_site.items()
        ]
        lines += [f"declared as {why!r}: {_times(count)}" for why, count in self.by_reason.items()]
        return "\n".join(lines)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def declared_reason() -> str | None:
    """Return the reason under which waits are declared at this point; None if they are not."""
    return _declared_reason.get()


@contextmanager
def count_waits(device: str | torch.device | Device = "auto") -> Iterator[WaitCount]:
    """Count the host waits of a `with` body, with the lines that make them.

    Counted are reads of values (`item`, `tolist`, `cpu`, printing a tensor), blocking copies,
    `synchronize` of streams, events and devices, and copies that block although `non_blocking` was
    asked for; on a GPU from any thread. Waits that gapless makes count like all others. Waits
    inside CUDA libraries and loops that poll are not seen. The host never waits for a CPU.

    In the body an exception that frees tensors of a GPU while it propagates becomes a SystemError, because
    torch's callbacks fail then. `torch.utils.checkpoint` raises such exceptions. Torch's CUDA sanitizer
    sees nothing if it is switched on after a count.

    Args:
        device: a device or its name.

    Yields:
        The count, which grows while the body runs.

    Raises:
        DeviceError: the device is absent, or this torch does not report synchronisations.

    Example:
        with gapless.count_waits() as waits:
            for batch in batches:
                train_step(batch)
        assert waits.count <= 0.1 * len(batches), waits

    Sync: Does not block the host.
    """
    waits = WaitCount()

    def note(what: str, site: str) -> None:
        waits.by_site[what, site] += 1
        reason = declared_reason()
        if reason is not None:
            waits.by_reason[reason] += 1

    with find_device(device).watch_waits(note):
        yield waits


@contextmanager
def forbid_waits(device: str | torch.device | Device = "auto") -> Iterator[None]:
    """Raise at the end of a `with` body in which the host waited for the device.

    Every wait that `count_waits` counts is forbidden, those that gapless itself makes included,
    except inside `allow_waits`. Where `forbid_waits` and `allow_waits` are nested, the inner one
    decides. The body runs to its end: the error names all waits, not just the first. If the body
    raises, that exception is the one that is seen.

    Args:
        device: a device or its name.

    Raises:
        ForbiddenWaitError: the host waited; the message names every line. This is also an
            AssertionError, so that a test framework reports it as a failure.
        DeviceError: as `count_waits`.

    Example:
        with gapless.forbid_waits():
            loss = train_step(batch)
            with gapless.allow_waits("progress, every 50 steps"):
                print(loss.item())

    Sync: Does not block the host.
    """
    waits = WaitCount()

    def note(what: str, site: str) -> None:
        if declared_reason() is None:
            waits.by_site[what, site] += 1

    with find_device(device).watch_waits(note), declared_as(None):
        yield
    if waits.count:
        raise ForbiddenWaitError(
            f"the host must not wait for the device here, but there were {waits}\n"
            "avoid the wait, or declare it with gapless.allow_waits(reason)"
        )


@contextmanager
def allow_waits(reason: str) -> Iterator[None]:
    """Declare that the host may wait for a device in a `with` body.

    The waits are still counted by `count_waits`, under the reason too. They are not forbidden: not
    by a `gapless.forbid_waits` around the body, and not by torch's sync debug mode
    (`torch.cuda.set_sync_debug_mode`), which is off in the body. The declaration holds for the
    thread (or the asyncio task) that makes it, on every device. No wait is possible inside a capture.

    Args:
        reason: why the host has to wait here, such as "metrics, every 50 steps".

    Raises:
        ValueError: the reason is empty.

    Sync: Does not block the host.
    """
    if not reason:
        raise ValueError("allow_waits needs a reason, but the text is empty")
    with declared_as(reason), lift_sync_errors():
        yield


@contextmanager
def declared_as(reason: str | None) -> Iterator[None]:
    """Declare the waits of a `with` body under a reason; None makes them undeclared again."""
    token = _declared_reason.set(reason)
    try:
        yield
    finally:
        _declared_reason.reset(token)
