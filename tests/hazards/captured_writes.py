"""What a step does on the host, which a replay would not do."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import torch
from torch.optim import lr_scheduler

from hazards.captured_harness import CAPTURED, captured_case, refused
from hazards.captured_models import Trainer, batches, kept, losses_of, updated


NUM = 16


# --------------------------------------------------------------------------------- counters


@captured_case(
    "The step counts its calls in an attribute.",
    expect=refused("seen", at="self.seen += 1"),
)
def counter_in_an_attribute(place):
    class Counting(Trainer):
        seen = 0

        def step(self, pair):
            self.seen += 1
            return self.train(pair)

    trainer = Counting(place)
    losses = losses_of(place, place.capture(trainer.step), NUM)
    return losses, trainer.seen, trainer.state()


@captured_case(
    "The step counts, and updates the weights every 2 steps.",
    expect=refused("it", at="self.it += 1"),
)
def updates_every_2_steps(place):
    class Accumulating(Trainer):
        it = 0

        def step(self, pair):
            loss = self.loss(pair) / 2
            loss.backward()
            self.it += 1
            if self.it % 2 == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            return loss

    trainer = Accumulating(place)
    losses = losses_of(place, place.capture(trainer.step), 20)
    return losses, trainer.it, trainer.state()


# ------------------------------------------------------------------- containers that grow


@captured_case(
    "The step appends each loss, as a tensor, to a list.",
    expect=refused("history", at="history.append(loss.detach())"),
)
def appends_tensors_to_a_list(place):
    trainer, history = Trainer(place), []

    def step(pair):
        loss = trainer.train(pair)
        history.append(loss.detach())
        return loss

    return losses_of(place, place.capture(step), NUM), history, trainer.state()


@captured_case(
    "A metrics object holds nothing but tensors that it adds to in place.", expect=CAPTURED
)
def metrics_in_place(place):
    trainer = Trainer(place)
    total, num = (torch.zeros((), device=place.torch_device) for _ in range(2))

    def step(pair):
        loss = trainer.train(pair)
        total.add_(loss.detach())
        num.add_(len(pair[0]))
        return loss

    return losses_of(place, place.capture(step), NUM), total, num, trainer.state()


# ----------------------------------------------------------------------------- schedulers


@captured_case(
    "The step calls StepLR, which changes the rate every seventh time.",
    expect=refused(at="scheduler.step()"),
)
def scheduler_step(place):
    trainer, rates = Trainer(place), []
    scheduler = lr_scheduler.StepLR(trainer.optimizer, 7)

    def step(pair):
        loss = trainer.train(pair)
        scheduler.step()
        return loss

    step, losses = place.capture(step), []
    for pair in batches(place, 24):
        losses.append(kept(step(pair)))
        rates.append(scheduler.get_last_lr())
    return losses, rates, trainer.state()


# ------------------------------------------------------------------------- random numbers


@captured_case(
    "Stochastic depth: Python's `random` decides whether a layer runs.",
    expect=refused("random", at="if random.random() < 0.5:"),
)
def random_of_python_decides(place):
    trainer = Trainer(place)

    def step(pair):
        x = pair[0]
        if random.random() < 0.5:
            x = torch.tanh(x)
        return trainer.train((x, pair[1]))

    return losses_of(place, place.capture(step), NUM), trainer.state()


# -------------------------------------------------------------------- what the world sees


@captured_case("The step prints a line.", expect=refused("print", at='print("step")'))
def prints(place):
    trainer = Trainer(place)

    def step(pair):
        print("step")
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), trainer.state()


@captured_case(
    "The step opens a file and appends a line of JSON.",
    expect=refused("open", at='with path.open("a") as log:'),
)
def appends_to_a_file(place):
    trainer = Trainer(place)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.jsonl")

        def step(pair):
            with path.open("a") as log:
                log.write(json.dumps({"rows": len(pair[0])}) + "\n")
            return trainer.train(pair)

        losses = losses_of(place, place.capture(step), NUM)
        return losses, path.read_text(), trainer.state()


# ------------------------------------------------------------- tensors kept from step to step


@captured_case("A running mean of the loss is replaced in each step.", expect=CAPTURED)
def running_mean_is_replaced(place):
    class Running(Trainer):
        mean = torch.zeros(())

        def step(self, pair):
            loss = self.train(pair)
            self.mean = 0.9 * self.mean + 0.1 * loss.detach()
            return loss

    trainer = Running(place)
    trainer.mean = torch.zeros((), device=place.torch_device)
    step, losses, means = place.capture(trainer.step), [], []
    for pair in batches(place, NUM):
        losses.append(kept(step(pair)))
        means.append(trainer.mean.clone())
    return losses, means, trainer.state()


@captured_case(
    "The step counts, prints and draws: all of it is told at once.",
    expect=refused("num_seen", "print", "random", at="self.num_seen += 1"),
)
def all_lines_are_told(place):
    class Chatty(Trainer):
        num_seen = 0

        def step(self, pair):
            self.num_seen += 1
            print("step")
            weight = random.random()
            return updated(self.optimizer, weight * self.loss(pair))

    trainer = Chatty(place)
    losses = losses_of(place, place.capture(trainer.step), NUM)
    return losses, trainer.num_seen, trainer.state()


# ------------------------------------------------------------------- writes that come late


@captured_case(
    "The step begins to keep a log in the middle of training.",
    expect=refused("history", at='history.append("a step")'),
)
def begins_to_write_in_the_middle(place):
    trainer, config, history = Trainer(place), {"log": False}, []

    def step(pair):
        if config["log"]:
            history.append("a step")
        return trainer.train(pair)

    def begin(number):
        config["log"] = number >= 18

    losses = losses_of(place, place.capture(step), 34, before=begin)
    return losses, history, trainer.state()


# ------------------------------------------------------------------------ what on_host does


class Callable(Trainer):
    """A step whose part on the host stands where it is called for every batch."""

    def __init__(self, place, **settings):
        super().__init__(place, **settings)
        self.num_seen, self.texts = 0, []

    def __call__(self, pair):
        return self.train(pair)


@captured_case("`on_host` counts, appends and prints.", expect=CAPTURED)
def on_host_counts(place):
    class Counting(Callable):
        def on_host(self, pair):
            self.num_seen += len(pair[0])
            self.texts.append(f"batch {len(self.texts)}")
            print(self.num_seen)

    trainer = Counting(place)
    losses = losses_of(place, place.capture(trainer), NUM)
    return losses, trainer.num_seen, trainer.texts, trainer.state()
