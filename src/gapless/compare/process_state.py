"""What a run sets for the whole process: numerics and random numbers."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

from gapless.device.numerics import seed_everything, set_numerics


if TYPE_CHECKING:
    from gapless.compare.settings import RunSettings


def set_run_numerics(settings: RunSettings, *, compares: bool) -> None:
    """Set precision and determinism of the process.

    Args:
        settings: of the run.
        compares: whether losses and tensors are compared; if so, and bit by bit, algorithms have to
            be deterministic.

    Raises:
        DeviceError: the precision is unknown, or the device does not offer it.
    """
    deterministic = compares and settings.tolerance is None
    set_numerics(settings.device, settings.precision, deterministic=deterministic)


def seed_generators(seed: int) -> None:
    """Seed every generator that a workload may draw from: torch's, Python's and numpy's."""
    seed_everything(seed)
    random.seed(seed)
    # Users' code may draw from numpy's global generator. If nothing has loaded numpy there is none,
    # and numpy may not be installed.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # It takes 32 bits.
        numpy.random.seed(seed % 2**32)
