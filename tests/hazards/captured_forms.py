"""Steps of all forms: what they take, what they are, what they share, and what they train."""

from __future__ import annotations

import copy
import functools
import threading
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hazards.captured_harness import CAPTURED, EITHER, GPU, HOLDS, captured_case
from hazards.captured_models import (
    Headed,
    batch,
    batches,
    host_batch,
    kept,
    mlp,
    run,
    sgd,
    state,
    training_step,
)


# -------------------------------------------------------------------------------- arguments


@captured_case("`step(x, y, mask=None)`, with and without a mask.", expect=CAPTURED)
def optional_mask(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(x, y, mask=None):
        optimizer.zero_grad()
        losses = F.cross_entropy(model(x), y, reduction="none")
        loss = losses.mean() if mask is None else (losses * mask).sum() / mask.sum()
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    results = []
    for number, (x, y) in enumerate(batches(place, 32)):
        mask = (x[:, 0] > 0).float() + 0.1
        results.append(kept(step(x, y, mask=mask) if number % 2 else step(x, y)))
    return results, state(model, optimizer)


@captured_case("The same arguments are given by position, by name, and mixed.", expect=CAPTURED)
def positions_and_names(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(x, y, *, scale=1.0):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * scale
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    results = []
    for number, (x, y) in enumerate(batches(place, 48)):
        ways = [
            lambda x=x, y=y: step(x, y),
            lambda x=x, y=y: step(x, y=y),
            lambda x=x, y=y: step(y=y, x=x, scale=1.0),
        ]
        results.append(kept(ways[number % 3]()))
    return results, state(model, optimizer)


@captured_case("`step(**batch)`, as batches of a tokenizer are given.", expect=CAPTURED)
def batch_as_keywords(place):
    embed, out = nn.Embedding(12, 8), nn.Linear(8, 4)
    model = nn.ModuleList([embed, out]).to(place.torch_device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def train(input_ids, labels, attention_mask=None, **others):
        optimizer.zero_grad()
        hidden = embed(input_ids) * attention_mask.unsqueeze(-1)
        loss = F.cross_entropy(out(hidden.sum(1)), labels) + others["weight"].mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "hidden": hidden.detach()}

    step = place.capture(train)
    results = []
    for number in range(18):
        draw = torch.Generator().manual_seed(number)
        one = {
            "labels": torch.randint(4, (3,), generator=draw),
            "input_ids": torch.randint(12, (3, 5), generator=draw),
            "attention_mask": torch.randint(2, (3, 5), generator=draw),
            "weight": torch.rand(2, generator=draw),
        }
        results.append(step(**{name: place.moved(value) for name, value in one.items()}))
    return results, state(model, optimizer)


@captured_case("`step(*tensors)`: now two, now three tensors.", expect=CAPTURED)
def tensors_as_arguments(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(*tensors):
        optimizer.zero_grad()
        loss = sum(model(x).square().mean() for x in tensors)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    results = []
    for number in range(30):
        rows = [batch(place, 3 * number + place_of)[0] for place_of in range(2 + number % 2)]
        results.append(kept(step(*rows)))
    return results, state(model, optimizer)


@captured_case("A word says what the step does: 'train' or 'evaluate'.", expect=CAPTURED)
def word_selects_the_branch(place):
    model = mlp(place, dropout=0.3)
    optimizer = sgd(model)

    def train(x, y, mode="train"):
        if mode == "train":
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss
        with torch.no_grad():
            return F.cross_entropy(model(x), y)

    step = place.capture(train)
    results = []
    for number, (x, y) in enumerate(batches(place, 36)):
        results.append(kept(step(x, y, mode="evaluate") if number % 3 == 2 else step(x, y)))
    return results, state(model, optimizer)


@captured_case("A number that differs in every call is an argument.", expect=EITHER)
def number_as_an_argument(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(one, number, smoothing):
        x, y = one
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, label_smoothing=smoothing) / (1 + number)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    results = [
        kept(step(one, number, 0.01 * number)) for number, one in enumerate(batches(place, 18))
    ]
    return results, state(model, optimizer)


@captured_case("A step without arguments draws its own batch on the device.", expect=CAPTURED)
def no_arguments(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train():
        x = torch.randn(6, 8, device=place.torch_device)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    return [kept(step()) for _ in range(16)], state(model, optimizer)


@captured_case("A step without arguments pulls its batch from an iterator.", expect=EITHER)
def batch_from_an_iterator(place):
    model = mlp(place)
    optimizer = sgd(model)
    loader = iter(batches(place, 16))

    def train():
        x, y = next(loader)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    return [kept(step()) for _ in range(16)], list(loader), state(model, optimizer)


@captured_case("The model and the optimizer are arguments of the step.", expect=EITHER)
def model_as_an_argument(place):
    models = [mlp(place), Headed().to(place.torch_device)]
    optimizers = [sgd(model) for model in models]

    def train(model, optimizer, one):
        return training_step(model, optimizer)(one)

    step = place.capture(train)
    results = []
    for number, one in enumerate(batches(place, 28)):
        results.append(kept(step(models[number % 2], optimizers[number % 2], one)))
    return results, [state(*both) for both in zip(models, optimizers, strict=True)]


@captured_case("Inputs come in float32, float64 and as integers.", expect=CAPTURED)
def dtypes_of_inputs(place):
    totals = torch.zeros(8, device=place.torch_device)

    def train(x):
        totals.add_(x.to(torch.float32).mean(0))
        return (x * 2).sum(), totals.sum()

    step = place.capture(train)
    dtypes = [torch.float32, torch.float64, torch.int64]
    results = [
        step((x * 10).to(dtypes[number % 3])) for number, (x, _) in enumerate(batches(place, 45))
    ]
    return results, totals


# ------------------------------------------------------------------------ kinds of callables


class Trainer:
    """A model with its optimizer, and steps as methods."""

    def __init__(self, place):
        self.model = mlp(place, dropout=0.2)
        self.optimizer = sgd(self.model, momentum=0.9)

    def step(self, one):
        return training_step(self.model, self.optimizer)(one)

    def train(self, one):
        x, y = one
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def __call__(self, one):
        return self.train(one)


@captured_case("A bound method is captured.", expect=CAPTURED)
def bound_method(place):
    trainer = Trainer(place)
    losses = run(place.capture(trainer.train), batches(place, 16))
    return losses, state(trainer.model, trainer.optimizer)


@captured_case("`self.step = capture(self.step)` in the constructor.", expect=CAPTURED)
def method_replaced_in_the_constructor(place):
    class Mine(Trainer):
        def __init__(self):
            super().__init__(place)
            self.step = place.capture(self.step)

    mine = Mine()
    return run(mine.step, batches(place, 16)), state(mine.model, mine.optimizer)


@captured_case("A decorated method of two objects, called in turns.", expect=CAPTURED)
def decorated_method_of_two_objects(place):
    class Mine(Trainer):
        @place.gapless_capture
        def train(self, one):
            x, y = one
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            return loss

    both = [Mine(place), Mine(place)]
    losses = [kept(both[number % 2].train(one)) for number, one in enumerate(batches(place, 32))]
    return losses, [state(mine.model, mine.optimizer) for mine in both]


@captured_case("A decorated method is overridden, and called by `super()`.", expect=CAPTURED)
def decorated_method_called_by_super(place):
    class Base(Trainer):
        @place.gapless_capture()
        def train(self, one):
            return Trainer.train(self, one)

    class Mine(Base):
        def train(self, one):
            return super().train(one) * 2

    mine = Mine(place)
    return run(mine.train, batches(place, 16)), state(mine.model, mine.optimizer)


@captured_case("A callable object is captured.", expect=CAPTURED)
def callable_object(place):
    trainer = Trainer(place)
    losses = run(place.capture(trainer), batches(place, 16))
    return losses, state(trainer.model, trainer.optimizer)


@captured_case(
    "A module that computes its loss in `forward` is captured for evaluation.", expect=CAPTURED
)
def module_as_the_step(place):
    model = mlp(place)
    step = place.capture(model.forward)
    with torch.no_grad():
        return [step(x).clone() for x, _ in batches(place, 16)]


@captured_case("A partial binds model and optimizer.", expect=CAPTURED)
def partial(place):
    def train(model, optimizer, one, *, scale):
        x, y = one
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * scale
        loss.backward()
        optimizer.step()
        return loss

    model = mlp(place)
    optimizer = sgd(model)
    step = place.capture(functools.partial(train, model, optimizer, scale=0.5))
    return run(step, batches(place, 16)), state(model, optimizer)


@captured_case("A lambda unpacks the batch for a step of two arguments.", expect=CAPTURED)
def lambda_unpacks(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(x, y):
        return training_step(model, optimizer)((x, y))

    step = place.capture(lambda one: train(*one))
    return run(step, batches(place, 16)), state(model, optimizer)


@captured_case("A static method and a class method are captured.", expect=CAPTURED)
def static_and_class_methods(place):
    class Mine:
        model = mlp(place)
        optimizer = sgd(model)

        @staticmethod
        @place.gapless_capture
        def train(one):
            return training_step(Mine.model, Mine.optimizer)(one)

        @classmethod
        def evaluate(cls, one):
            with torch.no_grad():
                return F.cross_entropy(cls.model(one[0]), one[1])

    evaluate = place.capture(Mine.evaluate)
    losses = []
    for one in batches(place, 18):
        losses += run(Mine.train, [one]) + run(evaluate, [one])
    return losses, state(Mine.model, Mine.optimizer)


@captured_case(
    "The step is decorated by the project too, with `functools.wraps`.", expect=CAPTURED
)
def decorated_by_the_project(place):
    def halved(function):
        @functools.wraps(function)
        def inner(*args, **kwargs):
            return function(*args, **kwargs) * 0.5

        return inner

    model = mlp(place)
    optimizer = sgd(model)

    @place.gapless_capture
    @halved
    def train(one):
        return training_step(model, optimizer)(one)

    return run(train, batches(place, 16)), state(model, optimizer)


@captured_case("A step is captured before the model that it names exists.", expect=CAPTURED)
def step_before_the_model(place):
    @place.gapless_capture
    def train(one):
        x, y = one
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    model = mlp(place)
    optimizer = sgd(model)
    return run(train, batches(place, 16)), state(model, optimizer)


@captured_case("A trainer with a captured method is copied in the middle.", expect=EITHER)
def trainer_is_copied(place):
    class Mine(Trainer):
        @place.gapless_capture
        def train(self, one):
            return Trainer.train(self, one)

    first = Mine(place)
    losses = run(first.train, batches(place, 14))
    second = copy.copy(first)
    second.model = copy.deepcopy(first.model)
    second.optimizer = sgd(second.model, lr=0.01)
    for one in batches(place, 14):
        losses += run(first.train, [one]) + run(second.train, [one])
    return losses, [state(mine.model, mine.optimizer) for mine in (first, second)]


@captured_case("A captured step calls a captured step.", expect=EITHER)
def captured_step_in_a_captured_step(place):
    model = mlp(place)
    optimizer = sgd(model)
    inner = place.capture(training_step(model, optimizer))
    outer = place.capture(lambda one: inner(one) * 2)
    return run(outer, batches(place, 16)), state(model, optimizer)


@captured_case("The same step is captured twice, and both are called in turns.", expect=EITHER)
def one_step_captured_twice(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    train = training_step(model, optimizer)
    steps = [place.capture(train), place.capture(train)]
    losses = [kept(steps[number % 2](one)) for number, one in enumerate(batches(place, 30))]
    return losses, state(model, optimizer)


# -------------------------------------------------------------------- steps that share models


@captured_case("Training and evaluation are captured, and share the model.", expect=CAPTURED)
def training_and_evaluation(place):
    model = mlp(place, dropout=0.4)
    optimizer = sgd(model)
    train = place.capture(training_step(model, optimizer))

    @place.gapless_capture
    @torch.no_grad()
    def evaluate(one):
        scores = model(one[0])
        return F.cross_entropy(scores, one[1]), (scores.argmax(1) == one[1]).sum()

    results = []
    for epoch in range(4):
        model.train()
        results.append(run(train, batches(place, 6 + epoch)))
        model.eval()
        results.append([evaluate(one) for one in batches(place, 5)])
    return results, state(model, optimizer)


@captured_case("A GAN: discriminator and generator have steps of their own.", expect=CAPTURED)
def gan(place):
    generator = mlp(place, num_in=4, num_out=8)
    judge = mlp(place, num_out=1)
    of_generator = torch.optim.Adam(
        generator.parameters(), lr=1e-3, betas=(0.5, 0.999), fused=True
    )
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.999), fused=True)

    @place.gapless_capture
    def judge_step(real):
        fake = generator(torch.randn(6, 4, device=place.torch_device)).detach()
        of_judge.zero_grad()
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake)).mean()
        loss.backward()
        of_judge.step()
        return loss

    @place.gapless_capture
    def generator_step(noise):
        of_generator.zero_grad()
        loss = F.softplus(-judge(generator(noise))).mean()
        loss.backward()
        of_generator.step()
        return loss

    losses = []
    for number, (x, _) in enumerate(batches(place, 18)):
        losses += run(judge_step, [x])
        losses += run(generator_step, [batch(place, 50 + number)[0][:, :4]])
    return losses, state(generator, of_generator), state(judge, of_judge)


@captured_case(
    "A GAN with a gradient penalty trains the critic five times a round.", expect=CAPTURED
)
def gradient_penalty(place):
    critic = mlp(place, num_out=1)
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-3)

    def train(real, fake):
        mix = torch.rand(real.size(0), 1, device=real.device)
        between = (mix * real + (1 - mix) * fake).requires_grad_(True)
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    losses = []
    for number in range(20):
        losses.append(kept(step(batch(place, number)[0], batch(place, 90 + number)[0])))
    return losses, state(critic, optimizer)


def _rollout(place, number):
    draw = torch.Generator().manual_seed(number)
    values = {
        "observation": torch.randn(24, 8, generator=draw),
        "action": torch.randint(4, (24,), generator=draw),
        "advantage": torch.randn(24, generator=draw),
        "old": torch.rand(24, generator=draw) - 2,
    }
    return {name: place.moved(value) for name, value in values.items()}


def _ppo_loss(policy, value, one):
    scores = policy(one["observation"]).log_softmax(-1)
    chosen = scores.gather(1, one["action"].unsqueeze(1)).squeeze(1)
    ratio = (chosen - one["old"]).exp()
    clipped = ratio.clamp(0.8, 1.2) * one["advantage"]
    critic = (value(one["observation"]).squeeze(1) - one["advantage"]).square().mean()
    return -torch.minimum(ratio * one["advantage"], clipped).mean() + 0.5 * critic


@captured_case(
    "PPO: some epochs over a buffer that is filled in place, by shuffled indices.", expect=CAPTURED
)
def ppo_with_a_buffer_in_place(place):
    policy, value = mlp(place), mlp(place, num_out=1)
    both = nn.ModuleList([policy, value])
    optimizer = torch.optim.Adam(both.parameters(), lr=1e-3, eps=1e-5, fused=True)
    buffer = {name: torch.empty_like(one) for name, one in _rollout(place, 0).items()}

    def train(rows):
        one = {name: column[rows] for name, column in buffer.items()}
        optimizer.zero_grad()
        loss = _ppo_loss(policy, value, one)
        loss.backward()
        nn.utils.clip_grad_norm_(both.parameters(), 0.5)
        optimizer.step()
        return loss

    step = place.capture(train)
    losses = []
    for number in range(4):
        for name, column in _rollout(place, number).items():
            buffer[name].copy_(column)
        for _ in range(2):
            rows = torch.randperm(24).to(place.torch_device)
            losses += run(step, rows.split(8))
    return losses, state(both, optimizer)


@captured_case("PPO: the buffer is a new dict of new tensors in each round.", expect=EITHER)
def ppo_with_new_buffers(place):
    policy, value = mlp(place), mlp(place, num_out=1)
    both = nn.ModuleList([policy, value])
    optimizer = torch.optim.Adam(both.parameters(), lr=1e-3, fused=True)

    class Agent:
        buffer = None

        def train(self, rows):
            one = {name: column[rows] for name, column in self.buffer.items()}
            optimizer.zero_grad()
            loss = _ppo_loss(policy, value, one)
            loss.backward()
            optimizer.step()
            return loss

    agent = Agent()
    step = place.capture(agent.train)
    losses = []
    for number in range(5):
        agent.buffer = _rollout(place, number)
        rows = torch.randperm(24).to(place.torch_device)
        losses += run(step, rows.split(8)) + run(step, rows.flip(0).split(8))
    return losses, state(both, optimizer)


@captured_case("Teacher and student: the teacher follows within the step.", expect=CAPTURED)
def teacher_and_student(place):
    student = mlp(place, dropout=0.2)
    teacher = copy.deepcopy(student).requires_grad_(False).eval()
    center = torch.zeros(4, device=place.torch_device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3, fused=True)

    def train(one):
        x, _ = one
        with torch.no_grad():
            target = ((teacher(x) - center) / 0.04).softmax(-1)
            center.mul_(0.9).add_(target.mean(0), alpha=0.1)
        optimizer.zero_grad()
        loss = -(target * student(x).log_softmax(-1)).sum(-1).mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_mul_(list(teacher.parameters()), 0.99)
            torch._foreach_add_(list(teacher.parameters()), list(student.parameters()), alpha=0.01)
        return loss

    losses = run(place.capture(train), batches(place, 16))
    return losses, center, state(teacher), state(student, optimizer)


@captured_case(
    "A queue of negatives is filled in place, at a pointer on the device.", expect=CAPTURED
)
def contrastive_queue_on_the_device(place):
    model = mlp(place)
    optimizer = sgd(model)
    queue = torch.zeros(18, 4, device=place.torch_device)
    pointer = torch.zeros((), dtype=torch.int64, device=place.torch_device)

    def train(one):
        x, _ = one
        first = model(x + 0.1 * torch.randn_like(x))
        second = model(x + 0.1 * torch.randn_like(x)).detach()
        scores = torch.cat([(first * second).sum(1, keepdim=True), first @ queue.T.clone()], 1)
        optimizer.zero_grad()
        loss = -scores.log_softmax(1)[:, 0].mean()
        loss.backward()
        optimizer.step()
        rows = (pointer + torch.arange(6, device=x.device)) % 18
        queue.index_copy_(0, rows, second)
        pointer.add_(6).remainder_(18)
        return loss

    losses = run(place.capture(train), batches(place, 18))
    return losses, queue, pointer, state(model, optimizer)


@captured_case("A queue of negatives has a Python pointer that the step moves.", expect=EITHER)
def contrastive_queue_with_a_python_pointer(place):
    class Queue:
        def __init__(self):
            self.rows = torch.zeros(24, 4, device=place.torch_device)
            self.pointer = 0

        def push(self, new):
            self.rows[self.pointer : self.pointer + len(new)] = new
            self.pointer = (self.pointer + len(new)) % len(self.rows)

    model, queue = mlp(place), Queue()
    optimizer = sgd(model)

    def train(one):
        x, _ = one
        features = model(x)
        loss = -(features @ queue.rows.T.clone()).log_softmax(1)[:, 0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue.push(features.detach())
        return loss

    losses = run(place.capture(train), batches(place, 18))
    return losses, queue.rows, queue.pointer, state(model, optimizer)


@captured_case(
    "Two views of each row by noise on the device: a contrastive loss.", expect=CAPTURED
)
def two_views(place):
    model = mlp(place)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def train(one):
        x, _ = one
        views = [F.dropout(x, 0.2) + 0.1 * torch.randn_like(x) for _ in range(2)]
        features = F.normalize(model(torch.cat(views)), dim=1)
        scores = features @ features.T / 0.5 - 1e9 * torch.eye(12, device=x.device)
        partner = torch.arange(12, device=x.device).roll(6)
        loss = F.cross_entropy(scores, partner)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    losses = run(place.capture(train), batches(place, 16))
    return losses, state(model, optimizer)


# ------------------------------------------------------------------ recurrent and generative


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.out = nn.Linear(8, 12)

    def forward(self, ids, hidden):
        states, hidden = self.lstm(self.embed(ids), hidden)
        return self.out(states), hidden


def _ids(place, number):
    draw = torch.Generator().manual_seed(number)
    return torch.randint(12, (3, 5), generator=draw).to(place.torch_device)


def _zeros(place):
    return tuple(torch.zeros(1, 3, 8, device=place.torch_device) for _ in range(2))


@captured_case("TBPTT: the hidden state is an attribute, detached by each step.", expect=CAPTURED)
def hidden_state_as_an_attribute(place):
    class Trainer:
        def __init__(self):
            self.model = Language().to(place.torch_device)
            self.optimizer = sgd(self.model)
            self.hidden = _zeros(place)

        def train(self, ids):
            self.optimizer.zero_grad()
            scores, hidden = self.model(ids, self.hidden)
            loss = F.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            self.optimizer.step()
            self.hidden = tuple(one.detach() for one in hidden)
            return loss

    trainer = Trainer()
    step = place.capture(trainer.train)
    losses = run(step, [_ids(place, number) for number in range(20)])
    return losses, trainer.hidden, state(trainer.model, trainer.optimizer)


@captured_case("TBPTT: the hidden state is reset by the loop between epochs.", expect=CAPTURED)
def hidden_state_is_reset(place):
    class Trainer:
        def __init__(self):
            self.model = nn.GRU(8, 8).to(place.torch_device)
            self.optimizer = sgd(self.model)
            self.hidden = torch.zeros(1, 6, 8, device=place.torch_device)

        def train(self, x):
            self.optimizer.zero_grad()
            states, hidden = self.model(x.unsqueeze(0), self.hidden)
            loss = states.square().mean()
            loss.backward()
            self.optimizer.step()
            self.hidden = hidden.detach()
            return loss

    trainer = Trainer()
    step = place.capture(trainer.train)
    losses, ends = [], []
    for _ in range(2):
        trainer.hidden = torch.zeros(1, 6, 8, device=place.torch_device)
        losses += run(step, [x for x, _ in batches(place, 20)])
        ends.append(trainer.hidden)
    return losses, ends, state(trainer.model, trainer.optimizer)


@captured_case("TBPTT: the hidden state is given to the step and returned by it.", expect=CAPTURED)
def hidden_state_as_an_argument(place):
    model = Language().to(place.torch_device)
    optimizer = sgd(model)

    def train(ids, hidden):
        optimizer.zero_grad()
        scores, hidden = model(ids, hidden)
        loss = F.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach(), tuple(one.detach() for one in hidden)

    step = place.capture(train)
    hidden, losses = _zeros(place), []
    for number in range(20):
        loss, hidden = step(_ids(place, number), hidden)
        losses.append(loss)
    return losses, hidden, state(model, optimizer)


@captured_case("Diffusion: timesteps and noise are drawn on the device.", expect=CAPTURED)
def diffusion(place):
    model = mlp(place, num_in=9, num_out=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    kept_part = torch.linspace(0.99, 0.01, 50).to(place.torch_device)

    def train(x):
        times = torch.randint(0, 50, (x.size(0),), device=x.device)
        noise = torch.randn_like(x)
        part = kept_part[times].unsqueeze(1)
        noisy = part.sqrt() * x + (1 - part).sqrt() * noise
        optimizer.zero_grad()
        loss = F.mse_loss(model(torch.cat([noisy, part], 1)), noise)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    losses = run(step, [x for x, _ in batches(place, 16)])
    return losses, torch.rand(3, device=place.torch_device), state(model, optimizer)


@captured_case(
    "A variational autoencoder samples with randn_like; the loop samples between.", expect=CAPTURED
)
def variational_autoencoder(place):
    encoder, decoder = mlp(place, num_out=8), mlp(place, num_in=4, num_out=8)
    both = nn.ModuleList([encoder, decoder])
    optimizer = torch.optim.Adam(both.parameters(), lr=1e-3, fused=True)

    def train(x):
        mean, log_var = encoder(x).chunk(2, dim=1)
        code = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        rest = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
        optimizer.zero_grad()
        loss = F.mse_loss(decoder(code), x) + 0.1 * rest
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "rest": rest.detach()}

    step = place.capture(train)
    results = []
    for number, (x, _) in enumerate(batches(place, 18)):
        results.append(step(x))
        if number % 5 == 4:
            with torch.no_grad():
                results.append(decoder(torch.randn(2, 4, device=place.torch_device)))
    return results, state(both, optimizer)


@captured_case("The loop seeds the device's generator again at each epoch.", expect=CAPTURED)
def generator_is_seeded_again(place):
    model = mlp(place, dropout=0.5)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer))
    losses = []
    for _ in range(3):
        torch.manual_seed(5)
        losses += run(step, batches(place, 8))
    return losses, state(model, optimizer)


@captured_case(
    "Noise comes from a generator object of the loop's own.", expect=EITHER, devices=(GPU,)
)
def generator_object(place):
    own = torch.Generator(device=place.torch_device).manual_seed(3)

    def train(x):
        return x + torch.randn(x.shape, generator=own, device=x.device)

    step = place.capture(train)
    results = []
    for number, (x, _) in enumerate(batches(place, 18)):
        results.append(step(x).clone())
        if number == 12:
            own.manual_seed(4)
    return results, own.get_state()


# ---------------------------------------------------------------- what autograd can do inside


@captured_case(
    "An inner loop by functional_call, with gradients through it: MAML.", expect=CAPTURED
)
def inner_loop(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(support, query):
        weights = dict(model.named_parameters())
        for _ in range(2):
            loss = F.cross_entropy(functional_call(model, weights, (support[0],)), support[1])
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            updated = zip(weights.items(), grads, strict=True)
            weights = {name: weight - 0.1 * grad for (name, weight), grad in updated}
        optimizer.zero_grad()
        loss = F.cross_entropy(functional_call(model, weights, (query[0],)), query[1])
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    losses = [kept(step(batch(place, n), batch(place, 60 + n))) for n in range(16)]
    return losses, state(model, optimizer)


@captured_case("Activations are checkpointed, without random numbers.", expect=CAPTURED)
def checkpointed(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(one):
        x, y = one
        optimizer.zero_grad()
        scores = checkpoint(model, x, use_reentrant=False, preserve_rng_state=False)
        loss = F.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        return loss

    losses = run(place.capture(train), batches(place, 16))
    return losses, state(model, optimizer)


@captured_case(
    "Activations with dropout are checkpointed, and drawn again in backward.", expect=EITHER
)
def checkpointed_dropout(place):
    model = mlp(place, dropout=0.5)
    optimizer = sgd(model)

    def train(one):
        x, y = one
        optimizer.zero_grad()
        loss = F.cross_entropy(checkpoint(model, x, use_reentrant=False), y)
        loss.backward()
        optimizer.step()
        return loss

    losses = run(place.capture(train), batches(place, 18))
    return losses, state(model, optimizer)


class Clipped(torch.autograd.Function):
    """The identity, with a gradient that is clipped."""

    @staticmethod
    def forward(ctx, x, limit):
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.clamp(-ctx.limit, ctx.limit) * (x.abs() < 3), None


@captured_case("A custom autograd function is in the step.", expect=CAPTURED)
def custom_function(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(one):
        x, y = one
        optimizer.zero_grad()
        loss = F.cross_entropy(Clipped.apply(model(x), 0.05), y)
        loss.backward()
        optimizer.step()
        return loss

    losses = run(place.capture(train), batches(place, 16))
    return losses, state(model, optimizer)


@captured_case(
    "A forward hook keeps features, which the loss reads: deep supervision.", expect=EITHER
)
def features_by_a_hook(place):
    model = mlp(place)
    optimizer = sgd(model)
    features = {}
    model[0].register_forward_hook(lambda module, args, out: features.update(first=out))

    def train(one):
        x, y = one
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) + 0.01 * features["first"].square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    losses, norms = [], []
    for one in batches(place, 18):
        losses += run(step, [one])
        norms.append(features["first"].detach().norm())
    return losses, norms, state(model, optimizer)


@captured_case("A hook on a weight changes its gradient; it is removed later.", expect=EITHER)
def hook_on_a_gradient(place):
    model = mlp(place)
    optimizer = sgd(model)
    handle = model[0].weight.register_hook(lambda grad: grad * 0.5)
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 14))
    handle.remove()
    losses += run(step, batches(place, 14))
    model[3].weight.register_hook(lambda grad: grad * 2)
    losses += run(step, batches(place, 14))
    return losses, state(model, optimizer)


@captured_case("A hook after accumulation updates each weight in backward.", expect=EITHER)
def update_in_backward(place):
    model = mlp(place)

    def update(parameter):
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.1)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)

    def train(one):
        loss = F.cross_entropy(model(one[0]), one[1])
        loss.backward()
        return loss

    losses = run(place.capture(train), batches(place, 18))
    return losses, state(model)


@captured_case("The model is compiled; the step is captured.", expect=CAPTURED, devices=(GPU,))
def compiled_model(place):
    torch.compiler.reset()
    model = mlp(place)
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    step = place.capture(training_step(compiled, optimizer))
    losses = run(step, batches(place, 16))
    torch.compiler.reset()
    return losses, state(model, optimizer)


@captured_case(
    "A compiled model sees another size, and compiles again.", expect=CAPTURED, devices=(GPU,)
)
def compiled_model_of_two_sizes(place):
    torch.compiler.reset()
    model = mlp(place)
    compiled = torch.compile(model)
    optimizer = sgd(model)
    step = place.capture(training_step(compiled, optimizer))
    losses = run(step, batches(place, 14)) + run(step, batches(place, 14, rows=5))
    torch.compiler.reset()
    return losses, state(model, optimizer)


@captured_case(
    "A compiled model with running averages runs before its step is captured.",
    expect=CAPTURED,
    devices=(GPU,),
)
def compiled_model_that_ran_before(place):
    torch.compiler.reset()
    model = mlp(place).insert(1, nn.BatchNorm1d(16).to(place.torch_device))
    optimizer = sgd(model)
    train = training_step(torch.compile(model), optimizer)
    losses = run(train, batches(place, 3))
    losses += run(place.capture(train), batches(place, 16))
    torch.compiler.reset()
    return losses, state(model, optimizer)


@captured_case(
    "Rows are summed into bins: index_add and a gather.", expect=CAPTURED, devices=(GPU,)
)
def sums_into_bins(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(one):
        x, y = one
        optimizer.zero_grad()
        scores = model(x)
        bins = scores.new_zeros(4, 4).index_add(0, y, scores)
        loss = bins[y].square().mean()
        loss.backward()
        optimizer.step()
        return loss

    losses = run(place.capture(train), batches(place, 16))
    return losses, state(model, optimizer)


@captured_case(
    "scatter_add does not repeat its own bits: the report names it.",
    expect=HOLDS,
    holds_plainly=False,
    devices=(GPU,),
)
def scatter_add_is_named(place):
    torch.use_deterministic_algorithms(False)
    weight = torch.ones(3, device=place.torch_device)

    def train(values):
        rows = torch.arange(values.numel(), device=values.device) % 3
        sums = torch.zeros(3, device=values.device).scatter_add(0, rows, values * weight[rows])
        weight.add_(sums, alpha=1e-9)
        return sums

    step = place.capture(train)
    for number in range(16):
        draw = torch.Generator().manual_seed(number)
        values = torch.randn(300_000, generator=draw).to(place.torch_device)
        expected = values.double().reshape(-1, 3).sum(0)
        assert torch.allclose(step(values).double(), expected, rtol=1e-3, atol=0.5)
    assert step.report.num_replays > 0
    assert "scatter_add" in str(step.report)


# --------------------------------------------------------------------------- what it returns


class Result(NamedTuple):
    loss: torch.Tensor
    scores: torch.Tensor


@dataclass
class Output:
    loss: torch.Tensor
    num_rows: int
    extra: dict | None = None


def _returning(place, make, *, expect_num=16):
    model = mlp(place)
    optimizer = sgd(model)

    def train(one):
        x, y = one
        optimizer.zero_grad()
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        return make(loss.detach(), scores.detach())

    step = place.capture(train)
    return [step(one) for one in batches(place, expect_num)], state(model, optimizer)


@captured_case("The step returns nothing.", expect=CAPTURED)
def returns_nothing(place):
    return _returning(place, lambda loss, scores: None)


@captured_case("The step returns tensors of its batch beside its loss.", expect=CAPTURED)
def tensors_of_the_batch_returned(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(one):
        x, y = one
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss, y, {"x": x, "again": y}

    step = place.capture(train)
    results = []
    for one in batches(place, 16):
        loss, y, rest = step(one)
        is_own = (y is one[1], rest["x"] is one[0], rest["again"] is y)
        results.append((kept(loss), kept(y), is_own))
    return results, state(model, optimizer)


@captured_case(
    "Torch's compiler notes on a batch and a result which sizes change.", expect=CAPTURED
)
def notes_of_the_compiler(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(one):
        x, y = one
        optimizer.zero_grad()
        torch._dynamo.maybe_mark_dynamic(x, 0)
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        torch._dynamo.maybe_mark_dynamic(scores, 0)
        return loss, scores

    step = place.capture(train)
    losses = [kept(step(one)[0]) for one in batches(place, 16)]
    return losses, state(model, optimizer)


@captured_case("The step returns a named tuple.", expect=CAPTURED)
def returns_a_named_tuple(place):
    return _returning(place, Result)


@captured_case(
    "The step returns nested dicts with None, text and the number of rows.", expect=CAPTURED
)
def returns_a_nested_dict(place):
    return _returning(
        place,
        lambda loss, scores: {
            "loss": loss,
            "logs": {"n": len(scores), "name": "ce", "none": None},
            "parts": [scores[0], (scores.mean(), 0.5)],
        },
    )


@captured_case("The step returns a dataclass, as many libraries do.", expect=EITHER)
def returns_a_dataclass(place):
    return _returning(
        place, lambda loss, scores: Output(loss, len(scores), {"best": scores.max()})
    )


@captured_case("The step returns one tensor twice, and a view of it.", expect=EITHER)
def returns_one_tensor_twice(place):
    results, after = _returning(place, lambda loss, scores: (scores, scores, scores[0], loss))
    for same, again, row, _ in results:
        same.add_(1)
        again.mul_(2)
        row.zero_()
    return results, after


@captured_case("The step returns a new list each call, which the loop extends.", expect=EITHER)
def returns_a_list(place):
    results, after = _returning(place, lambda loss, scores: [loss, scores])
    for number, one in enumerate(results):
        one.append(number)
    return results, after


# --------------------------------------------------------------------- the loop around it


@captured_case(
    "The evaluation step is called under `no_grad` of the loop, the training without.",
    expect=CAPTURED,
)
def called_under_no_grad(place):
    model = mlp(place)
    step = place.capture(lambda one: F.cross_entropy(model(one[0]), one[1]))
    results = []
    with torch.no_grad():
        for one in batches(place, 16):
            results.append(kept(step(one)))
    return results


@captured_case("One step is called now with gradients, now under `no_grad`.", expect=EITHER)
def called_in_both_grad_modes(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(one):
        loss = F.cross_entropy(model(one[0]), one[1])
        if torch.is_grad_enabled():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss

    step = place.capture(train)
    losses = []
    for number, one in enumerate(batches(place, 32)):
        with torch.set_grad_enabled(number % 2 == 0):
            losses += run(step, [one])
    return losses, state(model, optimizer)


@captured_case("Inference mode inside a step that predicts.", expect=CAPTURED)
def inference_mode_inside(place):
    model = mlp(place)

    @place.gapless_capture
    @torch.inference_mode()
    def predict(x):
        return model(x).softmax(-1)

    results = [predict(x) for x, _ in batches(place, 16)]
    return [one.cpu().tolist() for one in results]


@captured_case(
    "The loop runs under inference mode, and the weights change between epochs.", expect=CAPTURED
)
def inference_mode_around(place):
    model = mlp(place)
    predict = place.capture(lambda x: model(x).argmax(1))
    results = []
    for _ in range(2):
        with torch.inference_mode():
            results += [predict(x).cpu().tolist() for x, _ in batches(place, 12)]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(-0.7)
    return results


@captured_case("The whole loop runs on a stream of its own.", expect=CAPTURED)
def loop_on_a_stream(place):
    model = mlp(place)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer))
    stream = place.stream()
    place.order(stream, place.current())
    with place.on(stream):
        losses = run(step, batches(place, 16))
    place.order(place.current(), stream)
    place.settle()
    return losses, state(model, optimizer)


@captured_case("The step runs one part on a second stream, and joins it.", expect=EITHER)
def step_with_a_second_stream(place):
    model, teacher = mlp(place), mlp(place).requires_grad_(False)
    optimizer = sgd(model)
    side = place.stream()

    def train(one):
        x, _ = one
        main = place.current()
        place.order(side, main)
        with place.on(side):
            target = teacher(x)
        optimizer.zero_grad()
        scores = model(x)
        place.order(main, side)
        place.record_stream(target, main)
        loss = F.mse_loss(scores, target)
        loss.backward()
        optimizer.step()
        return loss

    losses = run(place.capture(train), batches(place, 18))
    place.settle()
    return losses, state(model, optimizer)


@captured_case(
    "Two threads train two models, each with a captured step.",
    expect=EITHER,
    devices=(GPU,),
    waits=False,
)
def two_threads(place):
    results = {}

    # The generator of the host belongs to all threads.
    models = {"first": mlp(place), "second": mlp(place)}

    def work(name):
        model = models[name]
        optimizer = sgd(model, lr=0.1 if name == "first" else 0.05)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            losses = run(place.capture(training_step(model, optimizer)), batches(place, 40))
        stream.synchronize()
        results[name] = losses, state(model, optimizer)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results["first"], results["second"]


@captured_case("A captured step is made in one thread and called in another.", expect=EITHER)
def called_in_another_thread(place):
    model = mlp(place)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 8))

    def work():
        losses.extend(run(step, batches(place, 10)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    losses += run(step, batches(place, 8))
    return losses, state(model, optimizer)


@captured_case("Batches are prefetched, and losses are read late.", expect=CAPTURED)
def prefetched_with_losses_read_late(place):
    model = mlp(place, dropout=0.1)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer))
    losses = place.losses()
    for _ in range(2):
        for one in place.prefetch([host_batch(number) for number in range(10)]):
            losses.add(step(one))
    return losses.mean(), losses.history, state(model, optimizer)


@captured_case("Losses are added to a DeferredLoss within the step.", expect=EITHER)
def losses_added_within(place):
    model = mlp(place)
    optimizer = sgd(model)
    losses = place.losses()

    def train(one):
        x, y = one
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.add(loss, weight=len(x))

    step = place.capture(train)
    for one in batches(place, 16):
        step(one)
    return losses.mean(), losses.history, state(model, optimizer)


@captured_case("Gradient-free statistics: a step that only adds to running sums.", expect=CAPTURED)
def running_sums(place):
    sums = {name: torch.zeros(8, device=place.torch_device) for name in ("first", "second")}

    def train(x):
        sums["first"] += x.sum(0)
        sums["second"] += x.square().sum(0)

    step = place.capture(train)
    for x, _ in batches(place, 16):
        step(x)
    return sums


@captured_case(
    "Losses of all sizes of batch: the last one of each epoch is short.", expect=CAPTURED
)
def short_last_batch(place):
    model = mlp(place)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer))
    losses = []
    for epoch in range(4):
        losses += run(step, batches(place, 7)) + run(step, batches(place, 1, rows=2 + epoch % 2))
    return losses, state(model, optimizer)
