"""Epochs of a training run as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.report.text import columns, share, short_number


if TYPE_CHECKING:
    from gapless.records.epoch_record import EpochRecord
    from gapless.records.training import TrainingEpoch


def waits_table(work: EpochRecord) -> str:
    """Return the account of an epoch, or of several: waits by reason, then where time went."""
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
    return "\n".join(columns(rows))


def epoch_line(epoch: TrainingEpoch, *, num_epochs: int) -> str:
    """Return an epoch in one line of less than 80 columns.

    Args:
        epoch: that ended.
        num_epochs: of the run.
    """
    work, validation = epoch.work, epoch.validation
    parts = [f"epoch {epoch.number}/{num_epochs}", f"loss {work.mean_loss:.4f}"]
    if "val_loss" in validation:
        parts.append(f"val loss {validation['val_loss']:.4f}")
    if "val_bleu" in validation:
        parts.append(f"BLEU {validation['val_bleu']:.2f}")
    parts.append(f"{short_number(epoch.tokens_per_second)} tok/s")
    if work.gap_share is not None:
        parts.append(f"gap {share(work.gap_share)}")
    return "  ".join(parts)
