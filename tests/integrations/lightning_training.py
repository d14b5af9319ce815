"""Lightning: automatic optimization, logging, schedules, settings of the trainer."""

from __future__ import annotations

import torch
import torchmetrics
from lightning.pytorch.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateMonitor,
    StochasticWeightAveraging,
)
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from hazards.captured_harness import snapshot
from integrations.frameworks import LIGHTNING
from integrations.harness import EITHER, GPU, either, framework_case, replays
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


@pl("validate inside of epochs")
def validated_inside(place):
    return fit(place, Net(), val=loader(8, seed=2, shuffle=False), val_check_interval=3)


@pl("log on steps and epochs, in the progress bar, with own reductions")
def logs_in_many_ways(place):
    class Logs(Net):
        def training_step(self, batch, batch_idx):
            loss = self.loss_of(batch)
            self.log("both", loss, on_step=True, on_epoch=True, prog_bar=True)
            self.log("worst", loss, on_step=False, on_epoch=True, reduce_fx="max")
            self.log("sum", loss.detach() * 2, on_step=False, on_epoch=True, reduce_fx=torch.sum)
            self.log("constant", 0.25, batch_size=4)
            return loss

    return fit(place, Logs(), log_every_n_steps=1)


@pl("log the number of the batch", expect=either("batch_idx"))
def logs_the_number_of_the_batch(place):
    class Logs(Net):
        def training_step(self, batch, batch_idx):
            self.log("batch", float(batch_idx))
            return super().training_step(batch, batch_idx)

    return fit(place, Logs(), log_every_n_steps=1)


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


@pl("skip a batch at times, by returning None", expect=either("batch_idx"))
def skips_batches(place):
    class Skips(Net):
        def training_step(self, batch, batch_idx):
            if batch_idx % 5 == 2:
                return None
            return super().training_step(batch, batch_idx)

    return fit(place, Skips(), max_epochs=4)


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


@pl("a schedule that moves after each epoch")
def scheduled_by_epochs(place):
    module = _scheduled(
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), interval="epoch"
    )
    return fit(place, module, callbacks=[LearningRateMonitor()])


@pl("a schedule that moves where validation stands still")
def scheduled_by_plateau(place):
    module = _scheduled(
        lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
        monitor="val_loss",
    )
    return fit(place, module, val=loader(8, seed=2, shuffle=False), max_epochs=4)


@pl("clip gradients by norm")
def clipped_by_norm(place):
    return fit(place, Net(), gradient_clip_val=0.1)


@pl("clip gradients by value")
def clipped_by_value(place):
    return fit(place, Net(), gradient_clip_val=0.01, gradient_clip_algorithm="value")


@pl("accumulate three batches, of which an epoch has ten")
def accumulates(place):
    return fit(place, Net(), loader(40), accumulate_grad_batches=3, max_epochs=5)


@pl("accumulate more in later epochs")
def accumulates_more_later(place):
    schedule = GradientAccumulationScheduler(scheduling={0: 1, 3: 2})
    return fit(place, Net(), callbacks=[schedule], max_epochs=6)


@pl("train in bfloat16 by autocast")
def autocast_to_bfloat16(place):
    return fit(place, Net(), precision="bf16-mixed", max_epochs=4)


@pl("train in float16 with a scaler", devices=(GPU,))
def autocast_to_float16(place):
    return fit(place, Net(), precision="16-mixed", max_epochs=4)


@pl("train all in float64")
def in_float64(place):
    return fit(place, Net(), precision="64-true")


@pl("average the last weights (SWA)")
def averages_weights(place):
    swa = StochasticWeightAveraging(swa_lrs=0.02, swa_epoch_start=2)
    return fit(place, Net(), callbacks=[swa], max_epochs=5)


@pl("stop early by what validation logs")
def stops_early(place):
    stop = EarlyStopping(monitor="val_loss", patience=1, min_delta=0.05)
    return fit(place, Net(), val=loader(8, seed=2, shuffle=False), callbacks=[stop], max_epochs=12)


@pl("train on some batches of an epoch")
def some_batches(place):
    return fit(place, Net(), loader(60), limit_train_batches=7, max_epochs=4)


@pl("the last batch of an epoch is smaller")
def smaller_last_batch(place):
    return fit(place, Net(), loader(34), max_epochs=5)


@pl("stop after some steps")
def stops_after_steps(place):
    return fit(place, Net(), loader(40), max_steps=23, max_epochs=-1)


@pl("try it out with fast_dev_run", expect=EITHER)
def tries_it_out(place):
    return fit(place, Net(), val=loader(8, seed=2, shuffle=False), fast_dev_run=2)


@pl("ask for deterministic algorithms")
def deterministic(place):
    return fit(place, Net(), deterministic=True)


@pl("look for anomalies in each backward pass", expect=EITHER)
def detects_anomalies(place):
    return fit(place, Net(), detect_anomaly=True, max_epochs=2)


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


@pl("fused AdamW")
def fused_adamw(place):
    class AdamW(Net):
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01, fused=True)

    return fit(place, AdamW())


@pl("train two modules with the same trainer's settings, and one of them twice")
def trains_twice(place):
    module = Net()
    return [fit(place, module), fit(place, module), fit(place, Net())]


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


@pl("only validate, test and predict", expect=EITHER)
def never_trains(place):
    module, rows = Net(), loader(24, seed=4, shuffle=False)
    trainer = make_trainer(place)
    checked = trainer.validate(module, rows, verbose=False)
    return [checked, snapshot(place, trainer.predict(module, rows))]
