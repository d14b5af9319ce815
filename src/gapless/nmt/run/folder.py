"""The folder of a run: what a run writes, and how it is read again."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torch.utils.tensorboard import SummaryWriter

from gapless.checkpoint.files import naming, replace_file
from gapless.errors import RunFolderError
from gapless.nmt.data.vocab import load_vocab
from gapless.nmt.run.checkpoints import drop_later_epochs
from gapless.nmt.run.config import make_config
from gapless.nmt.run.config_file import to_yaml
from gapless.nmt.run.task import Vocabs


if TYPE_CHECKING:
    from types import TracebackType

    from gapless.nmt.run.config import TrainConfig
    from gapless.pipeline.readback import DeferredLoss
    from gapless.records.training import TrainingEpoch


CONFIG = "config.yaml"
SUMMARY = "summary.json"


class RunFolder:
    """The files of one run.

    Args:
        path: the folder, which exists.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metrics = (path / "metrics.jsonl").open("a", encoding="utf-8")
        self._thread_hook = threading.excepthook
        threading.excepthook = self._on_thread_error
        self._board = SummaryWriter(str(path / "tensorboard"))

    def log(self, kind: str, *, step: int, **values: float | None) -> None:
        """Append figures to `metrics.jsonl` and to the TensorBoard events."""
        finite = {
            name: value if value is None or math.isfinite(value) else None
            for name, value in values.items()
        }
        with naming(self.path):
            self._metrics.write(json.dumps({"kind": kind, "step": step, **finite}) + "\n")
            for name, value in finite.items():
                if value is not None:
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def log_epoch(self, record: TrainingEpoch) -> None:
        """Append the figures of an epoch, and hand everything logged to the system."""
        self.log(
            "epoch",
            step=record.number,
            loss=record.work.mean_loss,
            tokens_per_second=record.tokens_per_second,
            gap_share=record.work.gap_share,
            **record.validation,
        )
        self.flush()

    def flush(self) -> None:
        """Hand everything logged to the operating system, so that it survives this process."""
        with naming(self.path):
            self._metrics.flush()

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write `summary.json`."""
        text = json.dumps(summary, indent=2, ensure_ascii=False)
        replace_file(self.path / SUMMARY, f"{text}\n".encode())

    def close(self) -> None:
        """Close the files."""
        try:
            with naming(self.path):
                self._metrics.close()
                self._board.close()
        finally:
            threading.excepthook = self._thread_hook

    def _on_thread_error(self, error: threading.ExceptHookArgs) -> None:
        # A failed write raises in TensorBoard's thread, and once more in our next call.
        is_board = type(error.thread).__module__.startswith("tensorboard.")
        if not (is_board and isinstance(error.exc_value, OSError)):
            self._thread_hook(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class LossLog:
    """Logs the losses that have arrived on the host, each once, in order.

    Args:
        folder: of the run.
        losses: of all batches of this process.
        first_batch: number of the next batch, counted over the whole run.
    """

    def __init__(self, folder: RunFolder, losses: DeferredLoss, *, first_batch: int) -> None:
        self._folder = folder
        self._losses = losses
        self._next = losses.num_added
        self._offset = first_batch - losses.num_added

    def write_new(self) -> None:
        """Log the losses that arrived since the last call.

        Sync: Does not block the host.
        """
        new = self._losses.read_since(self._next)
        if not new:
            return
        for number, (loss, tokens) in enumerate(new, start=self._next + self._offset):
            self._folder.log("train", step=number, loss=loss, tokens=tokens)
        self._next += len(new)
        self._folder.flush()


def forget_later(path: Path, *, batches: int, epochs: int) -> None:
    """Remove what a run logged, and the weights it saved, after the state that it resumes from.

    A run that was killed had done more than its state says. It will do the same again.

    Args:
        path: the run folder.
        batches: batches done in the state.
        epochs: epochs done in the state.
    """
    drop_later_epochs(path, epochs=epochs)
    metrics = path / "metrics.jsonl"
    if not metrics.is_file():
        return
    # A killed process may have written half of its last line.
    lines = metrics.read_text(encoding="utf-8").split("\n")[:-1]
    rows = [(json.loads(line), line) for line in lines if line.endswith("}")]
    kept = [
        line
        for row, line in rows
        if (row["kind"] == "train" and row["step"] < batches)
        or (row["kind"] == "epoch" and row["step"] <= epochs)
    ]
    replace_file(metrics, "".join(f"{line}\n" for line in kept).encode())


def create_run(config: TrainConfig, vocabs: Vocabs) -> Path:
    """Make the folder of a new run, with its settings and vocabularies.

    Raises:
        RunFolderError: the folder that was asked for is not empty.
        OSError: the disk is full or the folder cannot be made.
    """
    path = Path(config.run_dir) if config.run_dir else _next_free(Path("runs"))
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunFolderError(
            f"run folder {path} is not empty; choose another `run_dir`, "
            f"or resume it with `resume={path}`"
        )
    path.mkdir(parents=True, exist_ok=True)
    if vocabs.is_shared:
        vocabs.src.save(path / "vocab")
    else:
        vocabs.src.save(path / "vocab.src")
        vocabs.tgt.save(path / "vocab.tgt")
    write_config(path, config)
    return path


def write_config(path: Path, config: TrainConfig) -> None:
    """Write the settings of a run to its folder.

    Raises:
        OSError: the disk is full.
    """
    replace_file(path / CONFIG, to_yaml(config).encode())


def _next_free(parent: Path) -> Path:
    number = 1
    while (parent / f"train{number if number > 1 else ''}").exists():
        number += 1
    return parent / f"train{number if number > 1 else ''}"


def read_config(path: Path) -> TrainConfig:
    """Return the settings of a run.

    Raises:
        RunFolderError: the folder is not a run.
    """
    if not (path / CONFIG).is_file():
        found = "does not exist" if not path.exists() else f"holds no {CONFIG}"
        raise RunFolderError(f"{path} is not a run folder: it {found}; gapless train makes one")
    return make_config({}, file=path / CONFIG)


def read_vocabs(path: Path, config: TrainConfig) -> Vocabs:
    """Return the vocabularies of a run.

    Raises:
        RunFolderError: they are missing.
    """
    if config.shared_vocab:
        both = load_vocab(path / "vocab")
        return Vocabs(src=both, tgt=both)
    return Vocabs(src=load_vocab(path / "vocab.src"), tgt=load_vocab(path / "vocab.tgt"))
