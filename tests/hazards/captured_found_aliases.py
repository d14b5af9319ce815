"""One thing under several names: results, kept tensors, views and states that share memory or objects."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_harness import CAPTURED, EITHER, captured_case
from hazards.captured_models import (
    Trainer,
    batches,
    kept,
    losses_of,
    mlp,
    run,
    sgd,
    state,
    training_step,
    updated,
)


NUM = 24


# --------------------------------------------------------------------- what a step gives back


@captured_case(
    "The rate is returned for the log, while a schedule moves it after each step.",
    expect=EITHER,
)
def rate_is_returned(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)

    def train(pair):
        x, y = pair
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        return {"loss": loss.detach(), "lr": optimizer.param_groups[0]["lr"]}

    step = place.capture(train)
    results = []
    for pair in batches(place, NUM):
        results.append(step(pair))
        schedule.step()
    return results, state(model, optimizer)


@captured_case(
    "The last rate of the schedule is returned, for an Adam as people make it.", expect=EITHER
)
def last_rate_is_returned(place):
    model = mlp(place)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def train(pair):
        x, y = pair
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        return loss.detach(), schedule.get_last_lr()[0]

    step = place.capture(train)
    results = []
    for pair in batches(place, NUM):
        results.append(step(pair))
        schedule.step()
    return results, state(model, optimizer)


@captured_case("A returned tensor has an attribute that the loop reads.", expect=EITHER)
def returned_tensor_has_an_attribute(place):
    trainer = Trainer(place)

    def train(pair):
        x, y = pair
        out = trainer.model(x)
        loss = updated(trainer.optimizer, F.cross_entropy(out, y)).detach()
        loss.accuracy = (out.argmax(1) == y).float().mean()
        return loss

    step = place.capture(train)
    results = [step(pair) for pair in batches(place, NUM)]
    return results, [result.accuracy for result in results], trainer.state()


@captured_case("The same list stands twice in what is returned.", expect=EITHER)
def one_list_twice(place):
    trainer = Trainer(place)

    def train(pair):
        parts = [trainer.train(pair).detach()]
        return {"parts": parts, "again": parts}

    step = place.capture(train)
    results = [step(pair) for pair in batches(place, NUM)]
    for result in results:
        result["parts"].append(len(result["again"]))
    return results, trainer.state()


# -------------------------------------------------------------------------------- kept tensors


@captured_case("A kept tensor and a view of it are attributes.", expect=EITHER)
def kept_with_a_view(place):
    trainer = Trainer(place)
    trainer.all = torch.zeros(2, 8, device=place.torch_device)
    trainer.first = trainer.all[0]

    def train(pair):
        x, y = pair
        loss = trainer.train((x + trainer.first, y))
        trainer.all = torch.stack([x.mean(0), x.std(0)])
        trainer.first = trainer.all[0]
        return loss

    step = place.capture(train)
    losses = []
    for pair in batches(place, NUM):
        losses.append(kept(step(pair)))
        trainer.all.mul_(0.5)
    return losses, trainer.first, trainer.state()


@captured_case("The batch itself is kept, and the loop refills its memory.", expect=EITHER)
def kept_batch_is_refilled(place):
    trainer = Trainer(place)
    buffer = torch.zeros(6, 8, device=place.torch_device)
    trainer.last = None

    def train(x, y):
        out = trainer.model(x)
        loss = F.cross_entropy(out, y)
        if trainer.last is not None:
            loss = loss + F.mse_loss(trainer.model(trainer.last), out.detach())
        trainer.last = x
        return updated(trainer.optimizer, loss)

    step = place.capture(train)
    losses = []
    for x, y in batches(place, NUM):
        buffer.copy_(x)
        losses.append(kept(step(buffer, y)))
    return losses, trainer.state()


@captured_case(
    "Gradients are views of one flat buffer, which is zeroed and clipped as one.",
    expect=CAPTURED,
)
def flat_gradients(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    sizes = [p.numel() for p in model.parameters()]
    flat = torch.zeros(sum(sizes), device=place.torch_device)
    for p, part in zip(model.parameters(), flat.split(sizes), strict=True):
        p.grad = part.view_as(p)

    def train(pair):
        x, y = pair
        flat.zero_()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        flat.mul_((1.0 / (flat.norm() + 1e-6)).clamp(max=1.0))
        optimizer.step()
        return loss

    step = place.capture(train)
    losses, norms = [], []
    for pair in batches(place, NUM):
        losses += run(step, [pair])
        norms.append(flat.norm())
    return losses, norms, flat, state(model, optimizer)


@captured_case("An optimizer of the project replaces its averages in each step.", expect=CAPTURED)
def optimizer_replaces_its_state(place):
    class Own(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    own = self.state[p]
                    last = own.get("average", torch.zeros_like(p))
                    own["average"] = 0.9 * last + 0.1 * p.grad
                    p.sub_(0.1 * own["average"])

    model = mlp(place)
    optimizer = Own(model.parameters(), {})
    step = place.capture(training_step(model, optimizer))
    return losses_of(place, step, NUM), state(model, optimizer)


# --------------------------------------------------------------- state of torch, and of modules


class Scaled(nn.Module):
    """A layer with a number, which is scripted."""

    def __init__(self):
        super().__init__()
        self.alpha = 1.0
        self.weight = nn.Parameter(torch.linspace(-1, 1, 32).view(8, 4))

    def forward(self, x):
        return x @ self.weight * self.alpha


@captured_case("A scripted model has a number that the loop changes.", expect=EITHER)
def scripted_model(place):
    model = torch.jit.script(Scaled().to(place.torch_device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def before(number):
        if number == 12:
            model.alpha = 0.2

    # No guard looks into compiled code: an audit tells.
    step = place.capture(training_step(model, optimizer), audit_every=1)
    return losses_of(place, step, NUM, before=before), list(model.parameters())
