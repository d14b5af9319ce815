"""The variants that there are, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from gapless.device.find import find_device
from gapless.trials.captured_parts import CapturedParts
from gapless.trials.names import CAPTURED, NAMES, RECORDED_BATCHES
from gapless.trials.recorded_batches import RecordedBatches


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.device.base import Device

    VariantOfScript: TypeAlias = RecordedBatches | CapturedParts


def variants(
    names: Sequence[str] = NAMES, *, device: str | Device = "auto"
) -> list[VariantOfScript]:
    """Return new variants of a script, in the order in which they are measured.

    Args:
        names: of those that are wanted, from `NAMES`.
        device: where the script trains.
    """
    found = find_device(device)
    made: dict[str, Callable[[], VariantOfScript]] = {
        RECORDED_BATCHES: RecordedBatches,
        CAPTURED: lambda: CapturedParts(found),
    }
    return [made[name]() for name in NAMES if name in names]
