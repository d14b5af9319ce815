"""Variants of a user's script: what it would gain, measured by `gapless doctor --try`.

Each puts one change into a running script and takes it out again. The doctor measures steps a second
with it and without it in turns; it knows of no variant, the command line hands them in.

`variants` makes them. Nothing here loads torch before that: the command line asks for their names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.device.base import Device
    from gapless.trials.captured_parts import CapturedParts
    from gapless.trials.recorded_batches import RecordedBatches

    VariantOfScript: TypeAlias = RecordedBatches | CapturedParts

RECORDED_BATCHES = "recorded-batches"
CAPTURED = "captured"

# In the order in which they are measured.
NAMES = (RECORDED_BATCHES, CAPTURED)


def variants(
    names: Sequence[str] = NAMES, *, device: str | Device = "auto"
) -> list[VariantOfScript]:
    """Return new variants of a script, in the order in which they are measured.

    Args:
        names: of those that are wanted, from `NAMES`.
        device: where the script trains.
    """
    from gapless.device.find import find_device
    from gapless.trials.captured_parts import CapturedParts
    from gapless.trials.recorded_batches import RecordedBatches

    found = find_device(device)
    made: dict[str, Callable[[], VariantOfScript]] = {
        RECORDED_BATCHES: RecordedBatches,
        CAPTURED: lambda: CapturedParts(found),
    }
    return [made[name]() for name in NAMES if name in names]
