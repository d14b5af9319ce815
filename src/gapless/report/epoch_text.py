"""Epochs of a training run as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.report.text import columns, megabytes, share


if TYPE_CHECKING:
    from gapless.records.training import TrainingEpoch


def epoch_table(epoch: TrainingEpoch) -> str:
    """Return the accounting of one epoch: waits by reason, then where its time went."""
    work = epoch.work
    batches = max(1, work.num_batches)
    rows = [("host waits", "count", "total ms", "ms a batch")]
    rows += [
        (f"  {reason}", str(wait.count), f"{wait.ms:.1f}", f"{wait.ms / batches:.3f}")
        for reason, wait in work.waits.by_reason.items()
    ]
    if not work.waits.by_reason:
        rows.append(("  none", "0", "0.0", "0.000"))
    times = [("data wait", work.data_wait_ms), ("launch", work.launch_ms)]
    times.append(("device busy", work.busy_ms))
    rows += [(name, "", f"{ms:.1f}", f"{ms / batches:.3f}") for name, ms in times]
    lines = [f"epoch {epoch.number}: {epoch_line(epoch)}", *columns(rows)]
    return "\n".join(lines)


def epoch_line(epoch: TrainingEpoch) -> str:
    """Return the headline of one epoch."""
    work = epoch.work
    parts = [
        f"loss {work.mean_loss:.4f}",
        *(f"{name} {value:.4g}" for name, value in epoch.validation.items()),
        f"{work.num_batches} batches",
        f"{epoch.tokens_per_second:,.0f} target tokens/s",
        f"gap {share(work.gap_share)}",
        f"peak memory {megabytes(epoch.peak_memory_bytes)}",
    ]
    return ", ".join(parts)
