"""Lightning: hooks, callbacks, checkpoints, manual optimization."""

from __future__ import annotations

import copy
import random

import numpy as np
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional as F

from hazards.captured_harness import snapshot
from integrations.frameworks import LIGHTNING
from integrations.harness import EITHER, as_written, framework_case
from integrations.lightning_parts import Net, fit, loader


def pl(sentence, **options):
    return framework_case(LIGHTNING, sentence, **options)


# ------------------------------------------------------------------------ manual optimization


class Manual(Net):
    """The update by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = self.loss_of(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.log("loss", loss)


@pl("two networks play against each other, by hand", expect=as_written("manual"))
def two_optimizers(place):
    class Game(Manual):
        def __init__(self):
            super().__init__()
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(6)
                self.maker = torch.nn.Linear(4, 36)

        def training_step(self, batch, batch_idx):
            first, second = self.optimizers()
            noise = torch.randn(4, 4, device=self.device)
            made = self.maker(noise).reshape(4, 1, 6, 6)
            loss = F.cross_entropy(self(made), batch[1])
            first.zero_grad()
            self.manual_backward(loss)
            first.step()
            judged = self.loss_of(batch) + self(made.detach()).square().mean()
            second.zero_grad()
            self.manual_backward(judged)
            second.step()
            self.log_dict({"maker": loss, "judge": judged})

        def configure_optimizers(self):
            judge = [*self.conv.parameters(), *self.head.parameters()]
            return [
                torch.optim.SGD(self.maker.parameters(), lr=0.05),
                torch.optim.SGD(judge, lr=0.05),
            ]

    return fit(place, Game())


# ------------------------------------------------------------------------- hooks of the module


@pl("override optimizer_step, and update at every second batch only", expect=EITHER)
def updates_at_times(place):
    class AtTimes(Net):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            if batch_idx % 2 == 0:
                optimizer.step(closure=optimizer_closure)
            else:
                optimizer_closure()

    return fit(place, AtTimes(), max_epochs=4)


@pl("draw random numbers of numpy and Python in the step", expect=EITHER)
def draws_on_the_host(place):
    class Mixes(Net):
        def training_step(self, batch, batch_idx):
            x, y = batch
            share = float(np.random.beta(0.4, 0.4))  # noqa: NPY002
            if random.random() < 0.5:
                x = share * x + (1 - share) * x.flip(0)
            loss = F.cross_entropy(self(x), y)
            self.log("loss", loss)
            return loss

    return fit(place, Mixes())


@pl("freeze a layer after the first epoch")
def freezes_a_layer(place):
    class Freezes(Net):
        def on_train_epoch_start(self):
            if self.current_epoch == 1:
                self.conv.requires_grad_(False)

    return fit(place, Freezes(), max_epochs=4)


# ---------------------------------------------------------------------------------- callbacks


@pl("a callback keeps an average of the weights, and validates with it", expect=EITHER)
def callback_averages(place):
    class Averages(Callback):
        kept = None

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if self.kept is None:
                self.kept = copy.deepcopy(dict(pl_module.state_dict()))
            for name, value in pl_module.state_dict().items():
                self.kept[name].lerp_(value, 0.1)

        def on_validation_epoch_start(self, trainer, pl_module):
            self.own = copy.deepcopy(dict(pl_module.state_dict()))
            pl_module.load_state_dict(self.kept)

        def on_validation_epoch_end(self, trainer, pl_module):
            pl_module.load_state_dict(self.own)

    callback = Averages()
    rows = loader(8, seed=2, shuffle=False)
    return [fit(place, Net(), val=rows, callbacks=[callback]), snapshot(place, callback.kept)]


# -------------------------------------------------------------------------------- checkpoints


def _saving(place):
    return ModelCheckpoint(
        dirpath=str(place.folder), filename="at-{step}", every_n_train_steps=10, save_top_k=-1
    )


@pl("a checkpoint of a captured training is resumed by a plain one")
def plain_resumes_from_captured(place):
    settings = {"enable_checkpointing": True, "max_epochs": 3}
    first = fit(place, Net(), callbacks=[_saving(place)], **settings)
    path = str(place.folder / "at-step=20.ckpt")
    plain = fit(
        place, Net(), callbacks=[_saving(place)], ckpt_path=path, captured=False, **settings
    )
    return [first, plain]
