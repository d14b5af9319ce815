"""What a step does on the host, which a replay would not do."""

from __future__ import annotations

import functools
import json
import logging
import random
import tempfile
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.optim import lr_scheduler

from hazards.captured_harness import CAPTURED, EITHER, captured_case, refused
from hazards.captured_models import Trainer, batches, kept, losses_of, sgd, updated


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


@captured_case("The step counts by `nonlocal`.", expect=refused("seen", at="seen += 1  # here"))
def counter_by_nonlocal(place):
    trainer, seen = Trainer(place), 0

    def step(pair):
        nonlocal seen
        seen += 1  # here
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), seen, trainer.state()


def decides_by_a_counter(k):
    """Register a case whose step updates each k-th time, by a counter of its own."""

    def loop(place):
        class Accumulating(Trainer):
            it = 0

            def step(self, pair):
                loss = self.loss(pair) / k
                loss.backward()
                self.it += 1
                if self.it % k == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                return loss

        trainer = Accumulating(place)
        losses = losses_of(place, place.capture(trainer.step), max(20, k + 10))
        return losses, trainer.it, trainer.state()

    loop.__name__ = f"updates_every_{k}_steps"
    sentence = f"The step counts, and updates the weights every {k} steps."
    captured_case(sentence, expect=refused("it", at="self.it += 1"))(loop)


for num_steps in (2, 50):
    decides_by_a_counter(num_steps)


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


def schedules(name, sentence, make, num=24):
    """Register a case whose step calls a scheduler of torch."""

    def loop(place):
        trainer, rates = Trainer(place), []
        scheduler = make(trainer.optimizer)

        def step(pair):
            loss = trainer.train(pair)
            scheduler.step()
            return loss

        step, losses = place.capture(step), []
        for pair in batches(place, num):
            losses.append(kept(step(pair)))
            rates.append(scheduler.get_last_lr())
        return losses, rates, trainer.state()

    loop.__name__ = f"scheduler_{name}"
    captured_case(sentence, expect=refused(at="scheduler.step()"))(loop)


schedules(
    "step",
    "The step calls StepLR, which changes the rate every seventh time.",
    lambda optimizer: lr_scheduler.StepLR(optimizer, 7),
)
schedules(
    "sequential",
    "The step calls a sequence of schedules, whose rate is constant for long.",
    lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.ConstantLR(optimizer, 1.0, 1),
            lr_scheduler.ExponentialLR(optimizer, 0.5),
        ],
        [12],
    ),
)


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


@captured_case(
    "Python's `random` decides rarely: two warm-ups see the same branch.",
    expect=refused("random", at="is_rare = random.random() < 0.1"),
)
def random_of_python_decides_rarely(place):
    trainer = Trainer(place)

    def step(pair):
        is_rare = random.random() < 0.1
        return updated(trainer.optimizer, trainer.loss(pair) * (10.0 if is_rare else 1.0))

    return losses_of(place, place.capture(step), 30), trainer.state()


@captured_case("Python's generator is drawn from, and put back, within the step.", expect=EITHER)
def random_state_is_put_back(place):
    trainer = Trainer(place)

    def step(pair):
        state = random.getstate()
        random.seed(4)
        weight = random.random() + 0.5
        random.setstate(state)
        return updated(trainer.optimizer, weight * trainer.loss(pair))

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


class ListHandler(logging.Handler):
    """A handler that keeps messages, as experiment trackers do."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def logger_with(handler, level):
    """Return a logger that gives messages of this level to the handler alone."""
    logger = logging.getLogger("hazards.training")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)
    return logger


@captured_case("A logger lets messages of the step through from the middle on.", expect=EITHER)
def logs_late(place):
    trainer, handler = Trainer(place), ListHandler()
    logger = logger_with(handler, logging.WARNING)

    def step(pair):
        logger.info("batch of %d", len(pair[0]))
        return trainer.train(pair)

    def more(number):
        if number == 18:
            logger.setLevel(logging.INFO)

    losses = losses_of(place, place.capture(step), 30, before=more)
    return losses, handler.messages, trainer.state()


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


@captured_case("Truncated backpropagation: an LSTM's state is kept as a tuple.", expect=CAPTURED)
def state_of_an_lstm(place):
    class Recurrent(Trainer):
        def step(self, pair):
            out, (h, c) = self.model[0](pair[0].view(2, 3, 8), self.kept_state)
            self.kept_state = (h.detach(), c.detach())
            return updated(self.optimizer, self.model[1](out.reshape(6, 4)).square().mean())

    trainer = Recurrent(place)
    trainer.model = torch.nn.ModuleList([torch.nn.LSTM(8, 4), torch.nn.Linear(4, 4)])
    trainer.model.to(place.torch_device)
    trainer.optimizer = sgd(trainer.model)
    zeros = torch.zeros(1, 3, 4, device=place.torch_device)
    trainer.kept_state = (zeros, zeros.clone())
    losses = losses_of(place, place.capture(trainer.step), NUM)
    return losses, trainer.kept_state, trainer.state()


@captured_case(
    "The last outputs are kept in an attribute, and the loop reads them.", expect=EITHER
)
def last_outputs_are_kept(place):
    class Keeping(Trainer):
        def step(self, pair):
            self.outputs = self.model(pair[0])
            return updated(self.optimizer, F.cross_entropy(self.outputs, pair[1]))

    trainer = Keeping(place)
    step, losses, outputs = place.capture(trainer.step), [], []
    for pair in batches(place, NUM):
        losses.append(kept(step(pair)))
        outputs.append(kept(trainer.outputs))
    return losses, outputs, trainer.state()


@captured_case("A mask is cached by size with `lru_cache`.", expect=CAPTURED)
def mask_from_a_cache(place):
    trainer = Trainer(place)

    @functools.lru_cache(maxsize=4)
    def mask(size):
        return torch.ones(size, device=place.torch_device).cumsum(0).div(size)

    def step(pair):
        return trainer.train((pair[0] * mask(pair[0].shape[1]), pair[1]))

    return losses_of(place, place.capture(step), NUM), trainer.state()


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
