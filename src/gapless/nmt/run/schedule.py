"""Learning rate schedules: pure functions of the update's number."""

from __future__ import annotations

import math


def learning_rate(
    update: int, *, peak: float, warmup: int, schedule: str, total: int | None = None
) -> float:
    """Return the learning rate of an update.

    Rises linearly from 1e-7 to `peak` over `warmup` updates, then falls.

    Args:
        update: counted from 1.
        peak: the highest rate.
        warmup: updates until the peak.
        schedule: `inverse-sqrt` falls as 1/sqrt(update), as in Vaswani et al. 2017, section 5.3;
            `cosine` falls to 0 at `total` (Loshchilov and Hutter 2017, equation 5); `constant`
            stays.
        total: number of updates of the run, needed by `cosine`.
    """
    if update < warmup:
        return 1e-7 + (peak - 1e-7) * update / warmup
    if schedule == "inverse-sqrt":
        return peak * math.sqrt(max(warmup, 1) / update)
    if schedule == "cosine" and total is not None:
        done = min(1.0, (update - warmup) / max(1, total - warmup))
        return peak * 0.5 * (1.0 + math.cos(math.pi * done))
    return peak
