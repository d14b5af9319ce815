"""A training run as text: the epoch that runs, in one line, and epochs that have ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.report.figures import share, short_number, time_left
from gapless.report.terminal_text import table_lines


if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.records.epoch_record import EpochRecord, Progress
    from gapless.records.training import RunProgress, TrainingEpoch


# --- the epoch that runs ---


# The figures in the order of the line.
_ORDER = ("batch", "loss", "mean", "lr", "speed", "waits", "gap", "score", "left")

# In the order in which they are left out where there is no room, the last one first.
_NEEDED = ("loss", "left", "mean", "score", "lr", "speed")
_WELCOME = ("epoch", "batch", "gap", "waits")

# What is needed comes before the bar, and a bar of so many columns before what is welcome.
_BAR = 10


@dataclass(frozen=True, kw_only=True)
class EpochTitle:
    """Which epoch runs.

    Attributes:
        number: of the epoch, counted from 1.
        num_epochs: of the run.
        num_batches: of the epoch.
        num_done: of these, before what the progress is of.
        first_read: batch of the epoch after which its first losses are read.
        earlier_loss: the newest that was read before the epoch; None if none was.
    """

    number: int
    num_epochs: int
    num_batches: int
    num_done: int
    first_read: int
    earlier_loss: float | None

    def __str__(self) -> str:
        """Return it as it stands on the line."""
        return f"epoch {self.number}/{self.num_epochs}"


def progress_bar(
    title: EpochTitle,
    progress: Progress,
    run: RunProgress,
    *,
    seconds: float,
    validation: Mapping[str, float],
    columns: int,
) -> str:
    """Return the line with as many figures as fit, and `{bar}` where tqdm is to draw what is left.

    Args:
        title: of the epoch.
        progress: of the epoch.
        run: how far the run is.
        seconds: from the beginning of the epoch to the newest read of its losses.
        validation: figures of the newest validation, if there was one.
        columns: of the line.
    """
    figures = _figures(title, progress, run, seconds=seconds, validation=validation)
    epoch = f"{title.number}/{title.num_epochs}"
    free = columns - len(epoch)
    shown: set[str] = set()
    for names, bar in ((_NEEDED, 0), (_WELCOME, _BAR)):
        for name in names:
            # The word stands before the number of the epoch, and is no figure.
            width = len("epoch ") if name == "epoch" else len(figures.get(name, "")) + 2
            if (name == "epoch" or name in figures) and free - width >= bar:
                shown.add(name)
                free -= width
    if "epoch" in shown:
        epoch = str(title)
    drawn = f"{epoch} {{bar}}" if free >= len(" =") else epoch
    return "  ".join([drawn, *(figures[name] for name in _ORDER if name in shown)])


def progress_line(
    title: EpochTitle,
    progress: Progress,
    run: RunProgress,
    *,
    seconds: float,
    validation: Mapping[str, float],
) -> str:
    """Return all figures in one line, however long, without a bar; arguments as of `progress_bar`."""
    figures = _figures(title, progress, run, seconds=seconds, validation=validation)
    return "  ".join([str(title), *(figures[name] for name in _ORDER if name in figures)])


def score_text(validation: Mapping[str, float]) -> str:
    """Return the figure of a validation that says most: BLEU, or else its loss."""
    if "val_bleu" in validation:
        return f"BLEU {validation['val_bleu']:.1f}"
    return f"val {validation['val_loss']:.2f}" if "val_loss" in validation else ""


def _figures(
    title: EpochTitle,
    progress: Progress,
    run: RunProgress,
    *,
    seconds: float,
    validation: Mapping[str, float],
) -> dict[str, str]:
    figures = {"batch": f"batch {title.num_done + progress.batch}/{title.num_batches}"}
    if progress.loss is not None and progress.mean_loss is not None:
        figures["loss"] = f"loss {progress.loss:.2f}"
        figures["mean"] = f"mean {progress.mean_loss:.2f}"
    elif title.earlier_loss is not None:
        figures["loss"] = f"loss {title.earlier_loss:.2f}"
    else:
        figures["loss"] = f"loss after batch {title.first_read}"
    figures["lr"] = f"lr {_rate(run.learning_rate)}"
    if progress.weight and seconds:
        figures["speed"] = f"{short_number(progress.weight / seconds)} tok/s"
    figures["waits"] = f"{progress.waits.count / max(1, progress.batch):.2f} waits/batch"
    if progress.gap_share is not None:
        figures["gap"] = f"gap {share(progress.gap_share)}"
    if score_text(validation):
        figures["score"] = score_text(validation)
    if run.seconds_left is not None:
        figures["left"] = f"ETA {time_left(run.seconds_left)}"
    return figures


def _rate(rate: float) -> str:
    """Return a learning rate with two digits, such as 7.3e-5."""
    digits, _, exponent = f"{rate:.1e}".partition("e")
    return f"{digits}e{int(exponent)}" if rate else "0"


# --- epochs that have ended ---


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
    return "\n".join(table_lines(rows))


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
