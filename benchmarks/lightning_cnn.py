"""A small convolutional network under Lightning's Trainer, for `benchmarks.integrations`."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F


if TYPE_CHECKING:
    from benchmarks.integrations import Run


NUM_IMAGES, NUM_CLASSES = 32, 10

_CHANNELS = (3, 16, 32, 64)
_NUM_BATCHES = 64


def run_lightning(run: Run) -> None:
    """Train without a progress bar."""
    _train(run, has_bar=False)


def run_lightning_with_bar(run: Run) -> None:
    """Train with the progress bar that Lightning has if nobody says otherwise."""
    _train(run, has_bar=True)


def make_layers() -> torch.nn.Sequential:
    """Return three convolutions with batch norms, for images of [batch, 3, 32, 32]."""
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(_CHANNELS):
        conv = torch.nn.Conv2d(before, after, 3, stride=2, padding=1)
        layers += [conv, torch.nn.BatchNorm2d(after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(1024, NUM_CLASSES))


def make_loader() -> torch.utils.data.DataLoader[Any]:
    """Return a loader of batches that are there already, on the host."""
    draw = torch.Generator().manual_seed(1)
    batches = [
        (
            torch.randn(NUM_IMAGES, 3, 32, 32, generator=draw),
            torch.randint(NUM_CLASSES, (NUM_IMAGES,), generator=draw),
        )
        for _ in range(_NUM_BATCHES)
    ]
    return torch.utils.data.DataLoader(batches, batch_size=None)


def _train(run: Run, *, has_bar: bool) -> None:
    import lightning as L
    from lightning.pytorch.callbacks import TQDMProgressBar
    from lightning.pytorch.loggers.logger import DummyLogger

    class Net(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_layers()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x, y = batch
            logits = self.net(x)
            loss = F.cross_entropy(logits, y)
            self.log("loss", loss, prog_bar=True)
            self.log("right", (logits.argmax(1) == y).float().mean())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)

    class Rows(DummyLogger):
        def __init__(self) -> None:
            super().__init__()
            self.rows: list[Any] = []

        def log_metrics(self, metrics: Any, step: Any = None) -> None:
            self.rows.append([step, dict(metrics)])

    class Clock(L.Callback):
        def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
            run.step_ended(trainer.global_step)

    callbacks: list[Any] = [Clock()]
    if has_bar:
        callbacks.append(TQDMProgressBar())
    if run.is_captured:
        from gapless.integrations.lightning import GaplessCallback

        callbacks.append(GaplessCallback(device=run.args.device, quiet=True))
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    module, rows = Net(), Rows()
    trainer = L.Trainer(
        accelerator="gpu" if run.args.device == "cuda" else "cpu",
        devices=1,
        max_steps=run.num_steps,
        max_epochs=-1,
        logger=rows,
        callbacks=callbacks,
        enable_progress_bar=has_bar,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(module, make_loader())
    run.finish(module, None, rows.rows)
