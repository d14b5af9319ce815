"""Reports for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.records.epoch import EpochRecord


def epoch_table(record: EpochRecord) -> str:
    """Return the accounting of one epoch: waits by reason, then where its time went."""
    batches = max(1, record.num_batches)
    rows = [("host waits", "count", "total ms", "ms a batch")]
    rows += [
        (f"  {reason}", f"{wait['count']:.0f}", f"{wait['ms']:.1f}", f"{wait['ms'] / batches:.3f}")
        for reason, wait in record.waits.items()
    ]
    if not record.waits:
        rows.append(("  none", "0", "0.0", "0.000"))
    times = [("data wait", record.data_wait_ms), ("launch", record.launch_ms)]
    times.append(("device busy", record.busy_ms))
    rows += [(name, "", f"{ms:.1f}", f"{ms / batches:.3f}") for name, ms in times]
    lines = [f"epoch {record.epoch}: {epoch_line(record)}", *columns(rows)]
    return "\n".join(lines)


def epoch_line(record: EpochRecord) -> str:
    """Return the headline of one epoch."""
    parts = [
        f"loss {record.loss:.4f}",
        *(f"{name} {value:.4g}" for name, value in record.validation.items()),
        f"{record.num_batches} batches",
        f"{record.tokens_per_second:,.0f} target tokens/s",
        f"gap {share(record.gap_share)}",
        f"peak memory {megabytes(record.peak_memory_bytes)}",
    ]
    return ", ".join(parts)


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows as lines: first column to the left, the others to the right."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def share(value: float | None) -> str:
    """Return a share as a percentage; `n/a` where it does not exist, as the gap of a CPU."""
    return "n/a" if value is None else f"{value:.1%}"


def megabytes(num_bytes: int) -> str:
    """Return a size in MiB."""
    return f"{num_bytes / 2**20:,.0f} MiB"


def duration(seconds: float) -> str:
    """Return a time as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
