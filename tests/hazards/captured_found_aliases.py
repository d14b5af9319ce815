"""One thing under several names: results, kept tensors, views and states that share memory or objects."""

from __future__ import annotations

import torch
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


# -------------------------------------------------------------------------------- kept tensors


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
