"""Lightning: automatic optimization, logging, schedules, settings of the trainer."""

from __future__ import annotations

import torch
import torchmetrics
from lightning.pytorch.callbacks import (
    LearningRateMonitor,
)
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from hazards.captured_harness import snapshot
from integrations.frameworks import LIGHTNING
from integrations.harness import GPU, either, framework_case, replays
from integrations.lightning_parts import Net, fit, loader, make_trainer, train_with


def pl(sentence, **options):
    return framework_case(LIGHTNING, sentence, **options)


@pl("a network with dropout, the loss is logged")
def network(place):
    return fit(place, Net())


@pl("a network with batch norm and validation after each epoch")
def validated(place):
    module = type("Normed", (Net,), {"norm": True})()
    return fit(place, module, val=loader(10, seed=2, shuffle=False))


@pl("log a dictionary, and return a dictionary")
def logs_a_dictionary(place):
    class Logs(Net):
        def training_step(self, batch, batch_idx):
            x, y = batch
            logits = self(x)
            loss = F.cross_entropy(logits, y)
            right = (logits.argmax(-1) == y).float().mean()
            self.log_dict({"loss": loss, "acc": right}, on_step=True, on_epoch=True)
            return {"loss": loss, "logits": logits.detach()}

    return fit(place, Logs())


@pl("count with torchmetrics", expect=either("metric"))
def torchmetrics_are_logged(place):
    class Logs(Net):
        def __init__(self):
            super().__init__()
            self.accuracy = torchmetrics.classification.MulticlassAccuracy(3)
            self.mean = torchmetrics.MeanMetric()

        def training_step(self, batch, batch_idx):
            x, y = batch
            logits = self(x)
            loss = F.cross_entropy(logits, y)
            self.accuracy(logits.detach(), y)
            self.mean.update(loss.detach())
            self.log("acc", self.accuracy, on_step=True, on_epoch=True)
            self.log("mean", self.mean, on_step=False, on_epoch=True)
            return loss

    return fit(place, Logs())


def _scheduled(schedule, **config):
    class Scheduled(Net):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": schedule(optimizer), **config},
            }

    return Scheduled()


@pl("a schedule that moves at each step, and a monitor of the rate")
def scheduled_by_steps(place):
    module = _scheduled(
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
        interval="step",
    )
    monitor = LearningRateMonitor(logging_interval="step")
    return fit(place, module, callbacks=[monitor], log_every_n_steps=1)


@pl("a schedule that moves where validation stands still")
def scheduled_by_plateau(place):
    module = _scheduled(
        lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
        monitor="val_loss",
    )
    return fit(place, module, val=loader(8, seed=2, shuffle=False), max_epochs=4)


@pl("accumulate three batches, of which an epoch has ten")
def accumulates(place):
    return fit(place, Net(), loader(40), accumulate_grad_batches=3, max_epochs=5)


@pl("train in bfloat16 by autocast")
def autocast_to_bfloat16(place):
    return fit(place, Net(), precision="bf16-mixed", max_epochs=4)


@pl("train in float16 with a scaler", devices=(GPU,))
def autocast_to_float16(place):
    return fit(place, Net(), precision="16-mixed", max_epochs=4)


@pl("sequences of some lengths, through an LSTM")
def variable_lengths(place):
    class Words(Net):
        def __init__(self):
            super().__init__()
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(5)
                self.embed = torch.nn.Embedding(20, 8)
                self.lstm = torch.nn.LSTM(8, 8, batch_first=True)
                self.out = torch.nn.Linear(8, 3)

        def forward(self, ids):
            return self.out(self.lstm(self.embed(ids))[0].mean(1))

    draw = torch.Generator().manual_seed(1)
    data = [
        (torch.randint(0, 20, (5 + number % 3,), generator=draw), number % 3)
        for number in range(64)
    ]

    def collate(rows):
        ids = pad_sequence([row[0] for row in rows], batch_first=True)
        return ids, torch.tensor([row[1] for row in rows])

    class Unused(Words):
        def configure_optimizers(self):
            used = [*self.embed.parameters(), *self.lstm.parameters(), *self.out.parameters()]
            return torch.optim.SGD(used, lr=0.1)

    batches = DataLoader(data, batch_size=2, shuffle=True, collate_fn=collate)
    return fit(place, Unused(), batches, max_epochs=2)


@pl("unfused Adam", expect=replays("model"))
def unfused_adam(place):
    class Adam(Net):
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    return fit(place, Adam())


@pl("a trainer whose fit is called again with more epochs")
def fits_again(place):
    module = Net()
    trainer = make_trainer(place, max_epochs=2)
    first = train_with(place, trainer, module)
    trainer.fit_loop.max_epochs = 4
    return [first, train_with(place, trainer, module)]


@pl("test and predict after training")
def tests_and_predicts(place):
    module = Net()
    trainer = make_trainer(place)
    found = train_with(place, trainer, module)
    rows = loader(10, seed=4, shuffle=False)
    tested = trainer.test(module, rows, verbose=False)
    return [found, tested, snapshot(place, trainer.predict(module, rows))]
