"""Loops that never wait: what gapless learns of a graph arrives while the loop is far ahead."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_harness import CAPTURED, EITHER, captured_case
from hazards.captured_models import (
    Headed,
    batch,
    batches,
    host_batch,
    mlp,
    poison,
    sgd,
    state,
    training_step,
)


@captured_case(
    "The batch is overwritten in place right after each call.", expect=EITHER, waits=False
)
def batch_is_overwritten_at_once(place):
    model = mlp(place, dropout=0.2)
    optimizer = sgd(model)
    step = place.capture(training_step(model, optimizer))
    (x, y), losses = next(batches(place, 1)), []
    for number in range(44):
        x.mul_(0.9).add_(0.01 * number)
        losses.append(step((x, y)).detach())
        x.neg_()
        y.add_(1).remainder_(4)
    return losses, state(model, optimizer)


@captured_case("Results are changed in place right after each call.", expect=EITHER, waits=False)
def results_are_changed_at_once(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)

    def train(one):
        x, y = one
        optimizer.zero_grad()
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        return loss.detach(), scores.detach()

    step, kept_losses, total = place.capture(train), [], None
    for one in batches(place, 44):
        loss, scores = step(one)
        total = scores if total is None else total.add_(scores)
        kept_losses.append(loss.mul_(2))
        scores.zero_()
    return kept_losses, total, state(model, optimizer)


@captured_case("A number of the loss changes every ten calls.", expect=EITHER, waits=False)
def number_changes_every_ten(place):
    model = mlp(place)
    optimizer = sgd(model)
    settings = {"smoothing": 0.0}

    def train(one):
        x, y = one
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, label_smoothing=settings["smoothing"])
        loss.backward()
        optimizer.step()
        return loss

    step, losses = place.capture(train), []
    for number, one in enumerate(batches(place, 60)):
        settings["smoothing"] = 0.1 * (number // 10 % 3)
        losses.append(step(one).detach())
    return losses, state(model, optimizer)


@captured_case("Four shapes come in turns.", expect=EITHER, waits=False)
def shapes_come_in_turns(place):
    model = mlp(place, dropout=0.3)
    optimizer = sgd(model)
    step, losses = place.capture(training_step(model, optimizer)), []
    for number in range(64):
        one = batch(place, number, rows=3 + number % 4)
        losses.append(step(one).detach())
    return losses, state(model, optimizer), torch.rand(2, device=place.torch_device)


@captured_case(
    "The weights are changed by hand every seventh call, in place.", expect=EITHER, waits=False
)
def weights_are_changed_by_hand(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    step, losses = place.capture(training_step(model, optimizer)), []
    for number, one in enumerate(batches(place, 49)):
        losses.append(step(one).detach())
        if number % 7 == 3:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-0.1, 0.1)
    return losses, state(model, optimizer)


@captured_case("`.data` is replaced every eleventh call.", expect=EITHER, waits=False)
def data_is_replaced(place):
    model = mlp(place)
    optimizer = sgd(model)
    step, losses, held = place.capture(training_step(model, optimizer)), [], []
    for number, one in enumerate(batches(place, 55)):
        losses.append(step(one).detach())
        if number % 11 == 4:
            for parameter in model.parameters():
                parameter.data = parameter.data * 0.5
                held.append(torch.full_like(parameter, 1e9).detach())
    return losses, held, state(model, optimizer)


@captured_case(
    "The hidden state goes from call to call as an attribute.", expect=EITHER, waits=False
)
def hidden_state_without_a_wait(place):
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
    step, losses = place.capture(trainer.train), []
    hidden_before = []
    for x, _ in batches(place, 44):
        hidden_before.append(trainer.hidden)
        losses.append(step(x).detach())
    return losses, hidden_before, state(trainer.model, trainer.optimizer)


@captured_case(
    "The step, the model and the optimizer are let go while work is queued.",
    expect=EITHER,
    waits=False,
)
def all_is_let_go_at_once(place):
    results, held = [], []
    for _ in range(3):
        model = mlp(place, dropout=0.2)
        optimizer = sgd(model, momentum=0.9)
        step = place.capture(training_step(model, optimizer))
        results += [step(one).detach() for one in batches(place, 24)]
        del model, optimizer, step
        held.append(poison(place, (16, 8), (16,), (4, 16), (4,), (6, 8), ()))
    return results, held


@captured_case("The step raises in some calls.", expect=EITHER, waits=False)
def step_raises_in_some_calls(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(one):
        x, y = one
        if x.size(0) == 5:
            raise RuntimeError("five rows")
        return training_step(model, optimizer)((x, y))

    step, results = place.capture(train), []
    for number in range(48):
        one = batch(place, number, rows=5 if number % 9 == 7 else 6)
        try:
            results.append(step(one).detach())
        except RuntimeError as error:
            results.append(error)
    return results, state(model, optimizer)


@captured_case("Two steps that share a model are called in turns.", expect=EITHER, waits=False)
def two_steps_in_turns(place):
    model = Headed().to(place.torch_device)
    of_body = sgd(model.body, momentum=0.9)
    of_head = torch.optim.AdamW(model.head.parameters(), lr=1e-2)
    steps = [
        place.capture(training_step(model, of_body)),
        place.capture(training_step(model, of_head)),
    ]
    losses = [steps[n % 2](one).detach() for n, one in enumerate(batches(place, 80))]
    return losses, state(model, of_body, of_head)


@captured_case("The loop draws on the device between calls.", expect=EITHER, waits=False)
def loop_draws_between_calls(place):
    model = mlp(place, dropout=0.5)
    optimizer = sgd(model)
    step, losses, draws = place.capture(training_step(model, optimizer)), [], []
    for number, (x, y) in enumerate(batches(place, 44)):
        noise = torch.randn_like(x)
        draws.append(noise)
        losses.append(step((x + 0.1 * noise, y)).detach())
        if number == 30:
            torch.manual_seed(4)
    return losses, draws, state(model, optimizer)


@captured_case("The loss is read every fifth call: plain training.", expect=CAPTURED, waits=False)
def loss_is_read_every_fifth_call(place):
    model = mlp(place, dropout=0.2)
    optimizer = sgd(model, momentum=0.9)
    step, losses = place.capture(training_step(model, optimizer)), []
    for number, one in enumerate(batches(place, 50)):
        loss = step(one)
        if number % 5 == 0:
            losses.append(loss.item())
    return losses, state(model, optimizer)


@captured_case(
    "The loss is read every fourth call, and shapes alternate.", expect=CAPTURED, waits=False
)
def loss_is_read_and_shapes_alternate(place):
    model = mlp(place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step, losses = place.capture(training_step(model, optimizer)), []
    for number in range(64):
        one = batch(place, number, rows=4 + number % 2)
        loss = step(one)
        if number % 4 == 3:
            losses.append(loss.item())
    return losses, state(model, optimizer)


@captured_case(
    "Batches are prefetched; a DeferredLoss is read every tenth call.",
    expect=CAPTURED,
    waits=False,
)
def deferred_losses_are_read(place):
    model = mlp(place, dropout=0.1)
    optimizer = sgd(model)
    step, losses, means = place.capture(training_step(model, optimizer)), place.losses(), []
    for number, one in enumerate(place.prefetch([host_batch(n) for n in range(60)])):
        losses.add(step(one))
        if number % 10 == 9:
            means.append(losses.mean())
    return means, losses.history, state(model, optimizer)
