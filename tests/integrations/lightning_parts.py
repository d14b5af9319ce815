"""Tiny modules, data and trainers of Lightning, for the cases."""

from __future__ import annotations

import lightning as L
import torch
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from hazards.captured_harness import snapshot


class Rows(Logger):
    """A logger that keeps all rows with their steps."""

    def __init__(self):
        super().__init__()
        self.rows = []

    name, version = "rows", 0

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, params, *args, **kwargs):
        self.rows.append(("parameters", str(params)))


class _Counts(L.Callback):
    """Counts trained batches: Lightning calls no module for them, but `training_step`."""

    def __init__(self, place):
        self._place = place

    def on_train_batch_end(self, *args):
        self._place.counted("model")


class Net(L.LightningModule):
    """A small convolutional network that classifies; cases override parts of it."""

    rate, dropout, norm = 0.05, 0.2, False

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            self.conv = nn.Conv2d(1, 4, 3)
            self.normed = nn.BatchNorm2d(4) if self.norm else nn.Identity()
            self.drop = nn.Dropout(self.dropout)
            self.head = nn.Linear(4 * 16, 3)

    def forward(self, x):
        hidden = F.relu(self.normed(self.conv(x)))
        return self.head(self.drop(hidden.flatten(1)))

    def loss_of(self, batch):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def training_step(self, batch, batch_idx):
        loss = self.loss_of(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_acc", (logits.argmax(-1) == y).float().mean())

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.loss_of(batch))

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate, momentum=0.9)


def loader(num=32, *, batch_size=4, seed=1, shuffle=True, drop_last=False):
    """Return a loader of so many images with their classes."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 1, 6, 6, generator=draw)
    y = torch.randint(0, 3, (num,), generator=draw)
    data = TensorDataset(x, y)
    return DataLoader(data, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)


def make_trainer(place, *, captured=True, callbacks=(), **settings):
    """Return a trainer, with gapless' callback in the product."""
    found = [*callbacks, *(place.lightning_callbacks() if captured else [])]
    if place.is_plain and captured:
        found.append(_Counts(place))
    if place.is_gpu:
        where = {"accelerator": "gpu", "devices": 1}
    else:
        where = {
            "accelerator": "cpu",
            "strategy": SingleDeviceStrategy(device=place.torch_device),
        }
    defaults = {
        "max_epochs": 3,
        "logger": Rows(),
        "log_every_n_steps": 3,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": str(place.folder),
        "num_sanity_val_steps": 0,
    }
    return L.Trainer(callbacks=found, **where, **{**defaults, **settings})


def fit(place, module, train=None, val=None, *, ckpt_path=None, captured=True, **settings):
    """Train a module, and return all that a user could compare."""
    L.seed_everything(3, verbose=False)
    trainer = make_trainer(place, captured=captured, **settings)
    return train_with(place, trainer, module, train, val, ckpt_path, captured=captured)


def train_with(place, trainer, module, train=None, val=None, ckpt_path=None, *, captured=True):
    """Train a module with this trainer, and return all that a user could compare."""
    # Lightning asks before it loads a file that holds more than tensors; this one is the case's own.
    trainer.fit(module, train or loader(), val, ckpt_path=ckpt_path, weights_only=False)
    if captured:
        place.watch("model", module, by_calls=False)
    return told(place, trainer, module)


def told(place, trainer, module):
    """Return all that a user could compare of a trainer that has trained."""
    rows = trainer.logger.rows if isinstance(trainer.logger, Rows) else None
    return snapshot(
        place,
        {
            "rows": rows,
            "callback_metrics": dict(trainer.callback_metrics),
            "state": [trainer.global_step, trainer.current_epoch, trainer.should_stop],
            "weights": dict(module.state_dict()),
            "optimizers": [one.state_dict() for one in trainer.optimizers],
            "rates": [one.scheduler.get_last_lr() for one in trainer.lr_scheduler_configs],
        },
    )
