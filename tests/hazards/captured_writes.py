"""What a step does on the host, which a replay would not do."""

from __future__ import annotations

import collections
import contextvars
import csv
import functools
import heapq
import io
import itertools
import json
import logging
import queue
import random
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from torch.optim import lr_scheduler

from hazards import captured_elsewhere
from hazards.captured_harness import CAPTURED, EITHER, captured_case, refused
from hazards.captured_models import Trainer, batch, batches, kept, losses_of, mlp, sgd, updated


NUM = 16
SEEN = 0


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
    "The step counts samples by the shape of the batch.",
    expect=refused("samples", at='stats["samples"] += len(pair[0])'),
)
def counter_in_a_dict(place):
    trainer, stats = Trainer(place), {"samples": 0}

    def step(pair):
        loss = trainer.train(pair)
        stats["samples"] += len(pair[0])
        return loss

    return losses_of(place, place.capture(step), NUM), stats, trainer.state()


@captured_case("The step counts in a global.", expect=refused("SEEN", at="SEEN += 1"))
def counter_in_a_global(place):
    global SEEN
    SEEN = 0
    trainer = Trainer(place)

    def step(pair):
        global SEEN
        SEEN += 1
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), SEEN, trainer.state()


@captured_case("The step counts by `nonlocal`.", expect=refused("seen", at="seen += 1  # here"))
def counter_by_nonlocal(place):
    trainer, seen = Trainer(place), 0

    def step(pair):
        nonlocal seen
        seen += 1  # here
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), seen, trainer.state()


@captured_case(
    "The step counts on its class, for all objects.",
    expect=refused("num_steps", at="type(self).num_steps += 1"),
)
def counter_on_the_class(place):
    class Counting(Trainer):
        num_steps = 0

        def step(self, pair):
            type(self).num_steps += 1
            return self.train(pair)

    trainer = Counting(place)
    losses = losses_of(place, place.capture(trainer.step), NUM)
    return losses, Counting.num_steps, trainer.state()


@captured_case("A function of another module counts there.", expect=refused("NUM_SEEN"))
def counter_in_another_module(place):
    captured_elsewhere.restore()
    trainer = Trainer(place)

    def step(pair):
        captured_elsewhere.count()
        return trainer.train(pair)

    losses = losses_of(place, place.capture(step), NUM)
    return losses, captured_elsewhere.NUM_SEEN, trainer.state()


@captured_case(
    "A decorator of the user counts calls on the function itself.",
    expect=refused("calls", at="counted.calls += 1"),
)
def counter_of_a_decorator(place):
    trainer = Trainer(place)

    def counts(function):
        @functools.wraps(function)
        def counted(pair):
            counted.calls += 1
            return function(pair)

        counted.calls = 0
        return counted

    @counts
    def step(pair):
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), step.calls, trainer.state()


@captured_case(
    "A forward hook counts calls of a layer.",
    expect=refused("calls", at='calls["first"] += 1'),
)
def counter_in_a_hook(place):
    trainer, calls = Trainer(place), {"first": 0}

    def count(module, args, out):
        del module, args, out
        calls["first"] += 1

    trainer.model[0].register_forward_hook(count)
    return losses_of(place, place.capture(trainer.train), NUM), calls, trainer.state()


@captured_case(
    "A hook on a gradient counts backward passes.",
    expect=refused("passes", at="passes.append(1)"),
)
def counter_in_a_gradient_hook(place):
    trainer, passes = Trainer(place), []

    def count(gradient):
        passes.append(1)
        return gradient

    trainer.model[0].weight.register_hook(count)
    return losses_of(place, place.capture(trainer.train), NUM), len(passes), trainer.state()


@captured_case(
    "The step counts in a `Counter`.",
    expect=refused("counts", at='counts.update(["steps"])'),
)
def counter_object(place):
    trainer, counts = Trainer(place), collections.Counter()

    def step(pair):
        counts.update(["steps"])
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), counts, trainer.state()


@captured_case(
    "The step takes its number from `itertools.count`.",
    expect=refused(at="number = next(numbers)"),
)
def next_of_a_count(place):
    trainer, numbers = Trainer(place), itertools.count()

    def step(pair):
        number = next(numbers)
        return updated(trainer.optimizer, trainer.loss(pair) * (2.0 if number > 9 else 1.0))

    return losses_of(place, place.capture(step), NUM), next(numbers), trainer.state()


@captured_case(
    "The step takes its weight from the iterator of a list.",
    expect=refused(at="weight = next(weights)"),
)
def next_of_an_iterator(place):
    trainer, weights = Trainer(place), iter([0.1 * number for number in range(NUM + 1)])

    def step(pair):
        weight = next(weights)
        return updated(trainer.optimizer, weight * trainer.loss(pair))

    return losses_of(place, place.capture(step), NUM), list(weights), trainer.state()


@captured_case(
    "The step takes its weight from a generator function with a state of its own.",
    expect=refused(at="weight = next(schedule)"),
)
def next_of_a_generator(place):
    trainer = Trainer(place)

    def cyclic():
        for number in itertools.count():
            yield (1.0, 1.0, 1.0, 1.0, 0.5)[number % 5]

    schedule = cyclic()

    def step(pair):
        weight = next(schedule)
        return updated(trainer.optimizer, weight * trainer.loss(pair))

    return losses_of(place, place.capture(step), NUM), next(schedule), trainer.state()


@captured_case("The step is `send` of a generator that holds the training.", expect=EITHER)
def step_is_a_coroutine(place):
    trainer = Trainer(place)

    def training():
        loss, number = None, 0
        while True:
            pair = yield loss, number
            loss, number = trainer.train(pair), number + 1

    running = training()
    next(running)
    step, results = place.capture(running.send), []
    for pair in batches(place, NUM):
        loss, number = step(pair)
        results.append((kept(loss), number))
    return results, trainer.state()


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


for num_steps in (2, 3, 4, 5, 50):
    decides_by_a_counter(num_steps)


@captured_case("The step updates every fourth time, by the number of the loop.", expect=EITHER)
def updates_by_the_loops_number(place):
    trainer, losses = Trainer(place), []

    def step(pair):
        loss = trainer.loss(pair) / 4
        loss.backward()
        if number % 4 == 3:
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
        return loss

    step = place.capture(step)
    for number, pair in enumerate(batches(place, 48)):  # noqa: B007  # the step reads it
        losses.append(kept(step(pair)))
    return losses, trainer.state()


# ------------------------------------------------------------------- containers that grow


@captured_case(
    "The step appends a plain number to a history.",
    expect=refused("history", at="self.history.append(len(self.history))"),
)
def appends_to_a_list(place):
    class Recording(Trainer):
        def __init__(self, place):
            super().__init__(place)
            self.history = []

        def step(self, pair):
            self.history.append(len(self.history))
            return self.train(pair)

    trainer = Recording(place)
    losses = losses_of(place, place.capture(trainer.step), NUM)
    return losses, trainer.history, trainer.state()


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


@captured_case("The step keeps the last three losses in a deque that is full.", expect=EITHER)
def full_deque_of_tensors(place):
    trainer, recent = Trainer(place), collections.deque(maxlen=3)

    def step(pair):
        loss = trainer.train(pair)
        recent.append(loss.detach())
        return loss + torch.stack(list(recent)).mean()

    return losses_of(place, place.capture(step), NUM), recent, trainer.state()


@captured_case(
    "A deque of numbers is full, so that its length stays.",
    expect=refused("recent", at="recent.append(recent[-1] + 1)"),
)
def full_deque_of_numbers(place):
    trainer, recent = Trainer(place), collections.deque([0, 0, 0], maxlen=3)

    def step(pair):
        recent.append(recent[-1] + 1)
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), recent, trainer.state()


@captured_case(
    "The step adds to a set what it has seen.",
    expect=refused("seen", at="seen.add(len(seen) % 12)"),
)
def adds_to_a_set(place):
    trainer, seen = Trainer(place), set()

    def step(pair):
        seen.add(len(seen) % 12)
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), seen, trainer.state()


@captured_case(
    "A list is rotated: its length and its set of items stay.",
    expect=refused("order", at="order.append(order.pop(0))"),
)
def rotates_a_list(place):
    trainer, order = Trainer(place), [0.5, 1.0, 2.0, 4.0, 8.0]

    def step(pair):
        order.append(order.pop(0))
        return updated(trainer.optimizer, order[0] * trainer.loss(pair))

    return losses_of(place, place.capture(step), NUM), order, trainer.state()


@captured_case("The step pushes to a heap.", expect=refused(at="heapq.heappush(heap, -len(heap))"))
def pushes_to_a_heap(place):
    trainer, heap = Trainer(place), []

    def step(pair):
        heapq.heappush(heap, -len(heap))
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), heap, trainer.state()


@captured_case(
    "The step puts a message into a queue for another thread.",
    expect=refused(at='messages.put("step")'),
)
def puts_into_a_queue(place):
    trainer, messages = Trainer(place), queue.SimpleQueue()

    def step(pair):
        messages.put("step")
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), messages.qsize(), trainer.state()


@captured_case("The step sets an event that the loop clears.", expect=EITHER)
def sets_an_event(place):
    trainer, done, seen = Trainer(place), threading.Event(), []

    def step(pair):
        loss = trainer.train(pair)
        done.set()
        return loss

    step, losses = place.capture(step), []
    for pair in batches(place, NUM):
        done.clear()
        losses.append(kept(step(pair)))
        seen.append(done.is_set())
    return losses, seen, trainer.state()


@captured_case(
    "Attributes are written through the object's dict.",
    expect=refused("total", at='self.__dict__["total"] = self.total + 1'),
)
def writes_through_the_dict(place):
    class Sneaky(Trainer):
        total = 0

        def step(self, pair):
            self.__dict__["total"] = self.total + 1
            return self.train(pair)

    trainer = Sneaky(place)
    losses = losses_of(place, place.capture(trainer.step), NUM)
    return losses, trainer.total, trainer.state()


@captured_case(
    "A text grows by a letter each step.",
    expect=refused("progress", at='self.progress += "."'),
)
def text_grows(place):
    class Dotted(Trainer):
        progress = ""

        def step(self, pair):
            self.progress += "."
            return self.train(pair)

    trainer = Dotted(place)
    losses = losses_of(place, place.capture(trainer.step), NUM)
    return losses, trainer.progress, trainer.state()


@captured_case(
    "A context variable counts.",
    expect=refused(at="count.set(count.get() + 1)"),
)
def counts_in_a_context_variable(place):
    trainer, count = Trainer(place), contextvars.ContextVar("count", default=0)

    def step(pair):
        count.set(count.get() + 1)
        return trainer.train(pair)

    losses = losses_of(place, place.capture(step), NUM)
    return losses, count.get(), trainer.state()


@captured_case(
    "A metrics object sums losses on the device and counts samples on the host.",
    expect=refused("num_samples", at="self.num_samples += num"),
)
def metrics_object(place):
    class Mean:
        def __init__(self):
            self.total = torch.zeros((), device=place.torch_device)
            self.num_samples = 0

        def update(self, value, num):
            self.total += value.detach() * num
            self.num_samples += num

    trainer, mean = Trainer(place), Mean()

    def step(pair):
        loss = trainer.train(pair)
        mean.update(loss, len(pair[0]))
        return loss

    losses = losses_of(place, place.capture(step), NUM)
    return losses, mean.total / mean.num_samples, mean.num_samples, trainer.state()


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
    "cosine",
    "The step calls a cosine schedule.",
    lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 24),
)
schedules(
    "one_cycle",
    "The step calls OneCycleLR, which changes the momentum too.",
    lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=30),
)
schedules(
    "lambda",
    "The step calls LambdaLR, with a warm-up and then a constant rate.",
    lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4)),
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
schedules(
    "multi_step",
    "The step calls MultiStepLR, which changes the rate once, late.",
    lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [20]),
)


@captured_case(
    "The step warms the rate up by hand, with a counter.",
    expect=refused("num_steps", at="self.num_steps += 1"),
)
def rate_by_hand_with_a_counter(place):
    class Warming(Trainer):
        num_steps = 0

        def step(self, pair):
            self.num_steps += 1
            for group in self.optimizer.param_groups:
                group["lr"] = 0.1 * min(1.0, self.num_steps / 3)
            return self.train(pair)

    trainer = Warming(place)
    losses = losses_of(place, place.capture(trainer.step), NUM)
    return losses, trainer.num_steps, trainer.state()


@captured_case("The step sets the rate from a progress that the loop sets.", expect=EITHER)
def rate_from_the_loops_progress(place):
    trainer, progress = Trainer(place), {"step": 0}

    def step(pair):
        for group in trainer.optimizer.param_groups:
            group["lr"] = 0.1 * (1 - progress["step"] / 30)
        return trainer.train(pair)

    def advance(number):
        progress["step"] = number

    losses = losses_of(place, place.capture(step), 24, before=advance)
    return losses, trainer.state()


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


@captured_case(
    "A `random.Random` of the user's own chooses a task.",
    expect=refused(at="task = draw.choice([1.0, 2.0, 3.0])"),
)
def own_random_of_python(place):
    trainer, draw = Trainer(place), random.Random(3)

    def step(pair):
        task = draw.choice([1.0, 2.0, 3.0])
        return updated(trainer.optimizer, task * trainer.loss(pair))

    return losses_of(place, place.capture(step), NUM), draw.random(), trainer.state()


@captured_case(
    "The order of layers is shuffled in each step.",
    expect=refused("random", at="random.shuffle(order)"),
)
def shuffles(place):
    trainer = Trainer(place)

    def step(pair):
        order, x = [torch.tanh, torch.relu, torch.sin], pair[0]
        random.shuffle(order)
        for layer in order:
            x = layer(x)
        return trainer.train((x, pair[1]))

    return losses_of(place, place.capture(step), NUM), trainer.state()


@captured_case(
    "Mixup draws its weight from numpy's global generator.",
    expect=refused("random", at="weight = float(np.random.beta(0.4, 0.4))"),
)
def mixup_with_numpy(place):
    trainer = Trainer(place)

    def step(pair):
        weight = float(np.random.beta(0.4, 0.4))  # noqa: NPY002
        x = weight * pair[0] + (1 - weight) * pair[0].flip(0)
        return trainer.train((x, pair[1]))

    return losses_of(place, place.capture(step), NUM), trainer.state()


@captured_case(
    "Noise levels are drawn by a numpy generator of the user's own.",
    expect=refused(at="sigma = float(draw.uniform(0.1, 1.0))"),
)
def own_generator_of_numpy(place):
    trainer, draw = Trainer(place), np.random.default_rng(5)

    def step(pair):
        sigma = float(draw.uniform(0.1, 1.0))
        return trainer.train((pair[0] * sigma, pair[1]))

    return losses_of(place, place.capture(step), NUM), float(draw.random()), trainer.state()


@captured_case(
    "Layerdrop asks torch's generator of the host.",
    expect=refused(at="if torch.rand(()) < 0.5:  # on the host"),
)
def torchs_host_generator_decides(place):
    trainer = Trainer(place)

    def step(pair):
        x = pair[0]
        if torch.rand(()) < 0.5:  # on the host
            x = torch.tanh(x)
        return trainer.train((x, pair[1]))

    return losses_of(place, place.capture(step), NUM), trainer.state()


@captured_case(
    "A generator of the host, which the user made, gives noise that is moved to the device.",
    expect=refused(at="noise = torch.randn(6, 8, generator=draw)"),
)
def noise_of_the_host(place):
    trainer, draw = Trainer(place), torch.Generator().manual_seed(5)

    def step(pair):
        noise = torch.randn(6, 8, generator=draw)
        return trainer.train((pair[0] + place.moved(noise), pair[1]))

    losses = losses_of(place, place.capture(step), NUM)
    return losses, draw.get_state(), trainer.state()


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
    "The step writes dots to stderr.",
    expect=refused(at='sys.stderr.write(".")'),
)
def writes_to_stderr(place):
    trainer = Trainer(place)

    def step(pair):
        sys.stderr.write(".")
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), trainer.state()


@captured_case(
    "The step writes a line into a file that the loop opened.",
    expect=refused(at='log.write("step\\n")'),
)
def writes_into_an_open_file(place):
    trainer = Trainer(place)
    with tempfile.TemporaryFile("w+") as log:

        def step(pair):
            log.write("step\n")
            return trainer.train(pair)

        losses = losses_of(place, place.capture(step), NUM)
        log.seek(0)
        return losses, log.read(), trainer.state()


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


@captured_case(
    "A CSV writer gets a row each step.",
    expect=refused(at='rows.writerow(["step", len(pair[0])])'),
)
def writes_rows(place):
    trainer, text = Trainer(place), io.StringIO()
    rows = csv.writer(text)

    def step(pair):
        rows.writerow(["step", len(pair[0])])
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), text.getvalue(), trainer.state()


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


@captured_case(
    "The step logs by `logging`.",
    expect=refused(at='logger.info("batch of %d", len(pair[0]))'),
)
def logs(place):
    trainer, handler = Trainer(place), ListHandler()
    logger = logger_with(handler, logging.INFO)

    def step(pair):
        logger.info("batch of %d", len(pair[0]))
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), handler.messages, trainer.state()


@captured_case("The step calls a logger whose level lets nothing through.", expect=EITHER)
def logs_nothing(place):
    trainer, handler = Trainer(place), ListHandler()
    logger = logger_with(handler, logging.WARNING)

    def step(pair):
        logger.debug("batch of %d", len(pair[0]))
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), handler.messages, trainer.state()


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


class Bar:
    """A progress bar, as far as it matters here."""

    def __init__(self):
        self.num_done = 0

    def update(self, num=1):
        self.num_done += num
        if self.num_done % 4 == 0:
            print(f"\r{self.num_done} done", end="")


@captured_case(
    "The step moves a progress bar, which prints every fourth time.",
    expect=refused("num_done", at="self.num_done += num"),
)
def moves_a_bar(place):
    trainer, bar = Trainer(place), Bar()

    def step(pair):
        loss = trainer.train(pair)
        bar.update()
        return loss

    return losses_of(place, place.capture(step), NUM), bar.num_done, trainer.state()


@captured_case(
    "The step warns the user's way.",
    expect=refused("warn", at='warnings.warn("labels look odd", stacklevel=1)'),
)
def warns(place):
    trainer = Trainer(place)

    def step(pair):
        warnings.warn("labels look odd", stacklevel=1)
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), trainer.state()


@captured_case(
    "The step keeps time stamps, which are counted here.",
    expect=refused("stamps", at="stamps.append(time.perf_counter())"),
)
def keeps_time_stamps(place):
    trainer, stamps = Trainer(place), []

    def step(pair):
        stamps.append(time.perf_counter())
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), len(stamps), trainer.state()


@captured_case(
    "The step asks the time and tells whether it went on since the last call.", expect=EITHER
)
def asks_the_time(place):
    class Clocked(Trainer):
        last_time = 0

        def step(self, pair):
            now = time.perf_counter_ns()
            self.went_on, self.last_time = now > self.last_time, now
            return self.train(pair)

    trainer, seen = Clocked(place), []
    step, losses = place.capture(trainer.step), []
    for pair in batches(place, NUM):
        before = time.perf_counter_ns()
        losses.append(kept(step(pair)))
        seen.append(trainer.last_time >= before)
    return losses, seen, trainer.state()


# -------------------------------------------------------------- arrays and tensors of the host


@captured_case(
    "A tensor on the host counts.",
    expect=refused("num_seen", at="num_seen.add_(1)"),
)
def host_tensor_counts(place):
    trainer, num_seen = Trainer(place), torch.zeros((), dtype=torch.int64, device="cpu")

    def step(pair):
        num_seen.add_(1)
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), num_seen, trainer.state()


@captured_case(
    "A histogram of numpy is changed in place, and keeps its shape.",
    expect=refused("histogram", at="histogram[histogram.sum() % 4] += 1"),
)
def numpy_array_counts(place):
    trainer, histogram = Trainer(place), np.zeros(4, dtype=np.int64)

    def step(pair):
        histogram[histogram.sum() % 4] += 1
        return trainer.train(pair)

    return losses_of(place, place.capture(step), NUM), histogram, trainer.state()


@captured_case(
    "A host buffer of the module counts batches.",
    expect=refused("num_batches", at="self.num_batches += 1"),
)
def host_buffer_counts(place):
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = mlp(place)
            self.register_buffer("num_batches", torch.zeros(1, dtype=torch.int64, device="cpu"))

        def forward(self, x):
            self.num_batches += 1
            return self.model(x)

    trainer = Trainer(place)
    trainer.model = Counting()
    trainer.optimizer = sgd(trainer.model)
    return losses_of(place, place.capture(trainer.train), NUM), trainer.state()


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


@captured_case("Kept tensors of earlier steps are looked at later.", expect=EITHER)
def kept_tensors_stay_as_they_were(place):
    class Running(Trainer):
        def step(self, pair):
            loss = self.train(pair)
            self.mean = 0.9 * self.mean + 0.1 * loss.detach()
            return loss

    trainer = Running(place)
    trainer.mean = torch.zeros((), device=place.torch_device)
    step, losses, means = place.capture(trainer.step), [], []
    for pair in batches(place, NUM):
        losses.append(step(pair).detach())
        means.append(trainer.mean)
    return losses, means, trainer.state()


@captured_case("A hidden state in a dict is replaced in each step.", expect=CAPTURED)
def state_in_a_dict(place):
    trainer, memory = Trainer(place), {"h": torch.zeros(6, 8, device=place.torch_device)}

    def step(pair):
        x = torch.tanh(pair[0] + memory["h"])
        memory["h"] = x.detach() * 0.5
        return trainer.train((x, pair[1]))

    return losses_of(place, place.capture(step), NUM), memory, trainer.state()


@captured_case(
    "Hidden states of two layers stand in a list, and are replaced item by item.", expect=CAPTURED
)
def states_in_a_list(place):
    trainer = Trainer(place)
    states = [torch.zeros(6, 8, device=place.torch_device) for _ in range(2)]

    def step(pair):
        x = pair[0]
        for number in range(2):
            x = torch.tanh(x + states[number])
            states[number] = x.detach()
        return trainer.train((x, pair[1]))

    return losses_of(place, place.capture(step), NUM), states, trainer.state()


@captured_case("A list of hidden states is replaced by a new list.", expect=EITHER)
def list_of_states_is_replaced(place):
    class Recurrent(Trainer):
        def step(self, pair):
            first, second = self.states
            x = torch.tanh(pair[0] + first)
            self.states = [second.detach(), (x * second + 1).detach()]
            return self.train((x, pair[1]))

    trainer = Recurrent(place)
    trainer.states = [torch.ones(6, 8, device=place.torch_device) for _ in range(2)]
    losses = losses_of(place, place.capture(trainer.step), NUM)
    return losses, trainer.states, trainer.state()


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


@captured_case("Two kept tensors change places in each step.", expect=EITHER)
def kept_tensors_change_places(place):
    class Swapping(Trainer):
        def step(self, pair):
            self.now, self.next = self.next, self.now
            self.now.mul_(0.5).add_(1)
            return self.train((pair[0] * self.now, pair[1]))

    trainer = Swapping(place)
    trainer.now, trainer.next = (
        torch.full((8,), v, device=place.torch_device) for v in (1.0, 3.0)
    )
    losses = losses_of(place, place.capture(trainer.step), NUM)
    return losses, trainer.now, trainer.next, trainer.state()


@captured_case("The hidden state is forgotten by the loop every sixth batch.", expect=EITHER)
def state_is_reset_by_the_loop(place):
    class Recurrent(Trainer):
        state_of_text = None

        def step(self, pair):
            x = pair[0] if self.state_of_text is None else pair[0] + self.state_of_text
            x = torch.tanh(x)
            self.state_of_text = x.detach()
            return self.train((x, pair[1]))

    trainer = Recurrent(place)

    def forget(number):
        if number % 6 == 0:
            trainer.state_of_text = None

    losses = losses_of(place, place.capture(trainer.step), 36, before=forget)
    return losses, trainer.state_of_text, trainer.state()


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


@captured_case("A forward hook keeps activations in a dict by name.", expect=CAPTURED)
def hook_keeps_activations(place):
    trainer, activations, seen, losses = Trainer(place), {}, [], []

    def keep(module, args, out):
        del module, args
        activations["first"] = out.detach()

    trainer.model[0].register_forward_hook(keep)
    step = place.capture(trainer.train)
    for pair in batches(place, NUM):
        losses.append(kept(step(pair)))
        seen.append(kept(activations["first"]))
    return losses, seen, trainer.state()


@captured_case("An average of weights in a dict is replaced, tensor by tensor.", expect=CAPTURED)
def average_of_weights_is_replaced(place):
    trainer = Trainer(place)
    shadow = {name: kept(weight) for name, weight in trainer.model.named_parameters()}

    def step(pair):
        loss = trainer.train(pair)
        for name, weight in trainer.model.named_parameters():
            shadow[name] = 0.9 * shadow[name] + 0.1 * weight.detach()
        return loss

    return losses_of(place, place.capture(step), NUM), shadow, trainer.state()


@captured_case(
    "The decay of an average of weights depends on a counter.",
    expect=refused("num_updates", at="self.num_updates += 1"),
)
def average_with_a_counter(place):
    class Averaging(Trainer):
        num_updates = 0

        def step(self, pair):
            loss = self.train(pair)
            self.num_updates += 1
            decay = min(0.99, (1 + self.num_updates) / (10 + self.num_updates))
            with torch.no_grad():
                for kept_weight, weight in zip(self.shadow, self.model.parameters(), strict=True):
                    kept_weight.lerp_(weight, 1 - decay)
            return loss

    trainer = Averaging(place)
    trainer.shadow = [kept(weight) for weight in trainer.model.parameters()]
    losses = losses_of(place, place.capture(trainer.step), NUM)
    return losses, trainer.shadow, trainer.num_updates, trainer.state()


@captured_case(
    "The step swaps weights and their average by `.data`, for a loss, and back.", expect=EITHER
)
def data_is_swapped_within_the_step(place):
    trainer = Trainer(place)
    shadow = [kept(weight) for weight in trainer.model.parameters()]

    def swap():
        for number, weight in enumerate(trainer.model.parameters()):
            weight.data, shadow[number] = shadow[number], weight.data

    def step(pair):
        loss = trainer.train(pair)
        swap()
        with torch.no_grad():
            averaged = trainer.loss(pair)
        swap()
        with torch.no_grad():
            for average, weight in zip(shadow, trainer.model.parameters(), strict=True):
                average.lerp_(weight, 0.1)
        return loss + averaged

    return losses_of(place, place.capture(step), NUM), shadow, trainer.state()


@captured_case("Weights and their average change places for good in each step.", expect=EITHER)
def data_is_swapped_for_good(place):
    trainer = Trainer(place)
    other = [torch.zeros_like(weight) for weight in trainer.model.parameters()]

    def step(pair):
        loss = trainer.train(pair)
        for number, weight in enumerate(trainer.model.parameters()):
            weight.data, other[number] = other[number], weight.data
        return loss

    return losses_of(place, place.capture(step), NUM), other, trainer.state()


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
    "A cached function computes once for each number of a counter.",
    expect=refused("number", at="self.number += 1"),
)
def cache_with_a_counter(place):
    @functools.cache
    def weight_of(number):
        return 1.0 / number

    class Counting(Trainer):
        number = 0

        def step(self, pair):
            self.number += 1
            return updated(self.optimizer, weight_of(self.number) * self.loss(pair))

    trainer = Counting(place)
    losses = losses_of(place, place.capture(trainer.step), NUM)
    return losses, weight_of.cache_info().currsize, trainer.state()


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


@captured_case(
    "The step writes in its tenth call alone, by the number of the loop.", expect=EITHER
)
def writes_in_one_call(place):
    trainer, history, losses = Trainer(place), [], []

    def step(pair):
        if number == 9:
            history.append("tenth")
        return trainer.train(pair)

    step = place.capture(step)
    for number, pair in enumerate(batches(place, 20)):  # noqa: B007  # the step reads it
        losses.append(kept(step(pair)))
    return losses, history, trainer.state()


@captured_case("The step puts the model into training, as it always is.", expect=CAPTURED)
def train_is_called_in_the_step(place):
    trainer, modes = Trainer(place, dropout=0.3), []

    def step(pair):
        trainer.model.train()
        return trainer.train(pair)

    step, losses = place.capture(step), []
    for pair in batches(place, NUM):
        losses.append(kept(step(pair)))
        modes.append(trainer.model.training)
    return losses, modes, trainer.state()


@captured_case(
    "The step puts the model into training, after validation in evaluation mode.", expect=EITHER
)
def train_is_called_after_eval(place):
    trainer, modes, seen = Trainer(place, dropout=0.3), [], []

    def step(pair):
        trainer.model.train()
        return trainer.train(pair)

    step, losses = place.capture(step), []
    for number, pair in enumerate(batches(place, 32)):
        losses.append(kept(step(pair)))
        modes.append(trainer.model.training)
        if number % 4 == 3:
            trainer.model.eval()
            with torch.no_grad():
                seen.append(trainer.loss(batch(place, 70)))
    return losses, modes, seen, trainer.state()


@captured_case("The step says that it runs, in an attribute that it puts back.", expect=EITHER)
def attribute_is_put_back(place):
    class Marked(Trainer):
        is_running = False

        def step(self, pair):
            self.is_running = True
            try:
                return self.train(pair)
            finally:
                self.is_running = False

    trainer = Marked(place)
    losses = losses_of(place, place.capture(trainer.step), NUM)
    return losses, trainer.is_running, trainer.state()


@captured_case("The step sets a phase that the loop sets otherwise in between.", expect=EITHER)
def phase_is_set_by_both(place):
    class Phased(Trainer):
        phase = "none"

        def step(self, pair):
            self.phase = "train"
            return self.train(pair)

    trainer, phases = Phased(place), []
    step, losses = place.capture(trainer.step), []
    for number, pair in enumerate(batches(place, 24)):
        losses.append(kept(step(pair)))
        phases.append(trainer.phase)
        if number % 3 == 2:
            trainer.phase = "validate"
    return losses, phases, trainer.state()


@captured_case(
    "The best loss so far is kept as a Python number.",
    expect=refused(at="self.best = min(self.best, loss.item())"),
)
def best_loss_as_a_number(place):
    class Best(Trainer):
        best = 100.0

        def step(self, pair):
            loss = self.train(pair)
            self.best = min(self.best, loss.item())
            return loss

    trainer = Best(place)
    losses = losses_of(place, place.capture(trainer.step), NUM)
    return losses, trainer.best, trainer.state()


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


@captured_case(
    "`on_host` counts, and the step updates every fourth time by its flag.", expect=CAPTURED
)
def on_host_decides(place):
    class Accumulating(Callable):
        def on_host(self, pair):
            del pair
            self.num_seen += 1
            self.is_update = self.num_seen % 4 == 0

        def __call__(self, pair):
            loss = self.loss(pair) / 4
            loss.backward()
            if self.is_update:
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=False)
            return loss

    trainer = Accumulating(place)
    losses = losses_of(place, place.capture(trainer), 60)
    return losses, trainer.num_seen, trainer.state()


@captured_case("`on_host` draws which of two branches the step takes.", expect=CAPTURED)
def on_host_draws(place):
    class Drawing(Callable):
        def on_host(self, pair):
            del pair
            self.is_deep = random.random() < 0.5

        def __call__(self, pair):
            x = torch.tanh(pair[0]) if self.is_deep else pair[0]
            return self.train((x, pair[1]))

    trainer = Drawing(place)
    return losses_of(place, place.capture(trainer), 40), trainer.state()


@captured_case("`on_host` calls a scheduler.", expect=CAPTURED)
def on_host_schedules(place):
    class Scheduled(Callable):
        def on_host(self, pair):
            del pair
            self.scheduler.step()

    trainer = Scheduled(place)
    trainer.optimizer.step()
    trainer.scheduler = lr_scheduler.StepLR(trainer.optimizer, 15, gamma=0.5)
    losses = losses_of(place, place.capture(trainer), 45)
    return losses, trainer.scheduler.get_last_lr(), trainer.state()
