"""The variants that there are, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from gapless.device.find import find_device
from gapless.errors import UserError
from gapless.trials.captured_parts import CapturedParts
from gapless.trials.late_reads import LateReads
from gapless.trials.recorded_batches import RecordedBatches


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.device.base import Device

    VariantOfScript: TypeAlias = LateReads | RecordedBatches | CapturedParts


def variants(names: Sequence[str] = (), *, device: str | Device = "auto") -> list[VariantOfScript]:
    """Return new variants of a script, in the order in which they are measured.

    Args:
        names: of those that are wanted: "late-reads", "recorded-batches", "captured"; none: all.
        device: where the script trains.

    Raises:
        UserError: there is no variant of that name.
    """
    found = find_device(device)
    known: dict[str, VariantOfScript] = {
        "late-reads": LateReads(found),
        "recorded-batches": RecordedBatches(),
        "captured": CapturedParts(found),
    }
    for name in names:
        if name not in known:
            raise UserError(f"there is no variant {name!r}; there are {', '.join(known)}")
    return [known[name] for name in names or known]
