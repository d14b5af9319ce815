"""Memory of captured objects: what the loop keeps, changes, or never waits for."""

from __future__ import annotations

import copy
import gc

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_models import batch, batches, kept, mlp, poison, sgd, state
from hazards.in_place_harness import captured, either, in_place_case
from hazards.in_place_models import NUM, Normed, fit, floats, made, update


# ------------------------------------------------------------------------------------- kept


@in_place_case("Predictions of all steps are kept, detached but not copied.")
def predictions_are_kept(place):
    model = place.capture(mlp(place, dropout=0.1))
    optimizer, kept_ones, losses = sgd(model), [], []
    for x, y in batches(place, NUM):
        scores = model(x)
        losses.append(update(optimizer, F.cross_entropy(scores, y)))
        kept_ones.append((scores.detach(), scores.detach()[:, 0], scores.softmax(1).detach()))
    return losses, kept_ones, torch.cat([one for one, *_ in kept_ones]), state(model, optimizer)


@in_place_case("Losses of the loss module are kept with their graphs, and summed in the end.")
def losses_are_kept(place):
    model = place.capture(mlp(place))
    criterion = place.capture(nn.CrossEntropyLoss())
    optimizer, losses, total = sgd(model), [], 0.0
    for x, y in batches(place, NUM):
        loss = criterion(model(x), y)
        update(optimizer, loss)
        losses.append(loss)
        total = total + loss.detach()
    return torch.stack(losses).mean().item(), total, state(model, optimizer)


@in_place_case(
    "Outputs are changed in place by the loop, before and after backward.", expect=either()
)
def outputs_are_changed_in_place(place):
    model = place.capture(mlp(place))
    optimizer, found = sgd(model), []
    for number, (x, y) in enumerate(batches(place, 24)):
        scores = model(x)
        if number % 2:
            scores.masked_fill_(floats(place, number, 6, 4) > 1.5, -5.0)
        loss = F.cross_entropy(scores, y)
        found.append(update(optimizer, loss))
        with torch.no_grad():
            scores.zero_()
            x.fill_(7.0)
        found.append((scores.detach(), x))
    return found, state(model, optimizer)


@in_place_case(
    "The input is written again between forward and backward, which torch refuses.",
    expect=either(),
)
def input_is_changed_before_backward(place):
    model = place.capture(mlp(place))
    optimizer, found = sgd(model), []
    for number, (x, y) in enumerate(batches(place, 24)):
        loss = F.cross_entropy(model(x), y)
        if number % 8 == 7:
            x.zero_()
        try:
            found.append(update(optimizer, loss))
        except RuntimeError as error:
            found.append("modified by an inplace operation" in str(error))
    return found, state(model, optimizer)


@in_place_case("One buffer of the user holds the batch, which each step fills again.")
def batch_in_one_buffer(place):
    model = place.capture(mlp(place))
    optimizer, losses = sgd(model), []
    x_buffer = torch.empty(6, 8, device=place.torch_device)
    y_buffer = torch.empty(6, dtype=torch.long, device=place.torch_device)
    for x, y in batches(place, NUM):
        x_buffer.copy_(x)
        y_buffer.copy_(y)
        losses.append(update(optimizer, F.cross_entropy(model(x_buffer), y_buffer)))
    return losses, x_buffer, state(model, optimizer)


@in_place_case("Memory of batches, outputs and gradients is let go and used again by the loop.")
def memory_is_used_again(place):
    model = place.capture(mlp(place, dropout=0.1))
    optimizer = place.capture(sgd(model, momentum=0.9))
    losses, held = [], []
    for number in range(24):
        losses += fit(place, model, optimizer, 1, start=number)
        optimizer.zero_grad()
        held = poison(place, (6, 8), (6, 16), (6, 4), (16, 8), (4, 16), (16,), (4,))
    return losses, held, state(model, optimizer)


@in_place_case("Replay buffers: outputs and states of old steps come back as targets.")
def old_outputs_are_targets(place):
    model = place.capture(made(place, Normed, 0.1))
    optimizer, memory, losses = sgd(model), [], []
    for x, y in batches(place, 30):
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        if len(memory) > 4:
            loss = loss + F.mse_loss(scores, memory[-4])
        losses.append(update(optimizer, loss))
        memory.append(scores.detach())
    return losses, memory, state(model, optimizer)


@in_place_case("The last output outlives model, optimizer and their graphs.")
def output_outlives_the_model(place):
    def train():
        model = made(place, Normed)
        place.capture(model)
        optimizer = sgd(model)
        losses = fit(place, model, optimizer, 16)
        x, y = batch(place, 16)
        scores = model(x)
        losses.append(update(optimizer, F.cross_entropy(scores, y)))
        grads = [one.grad for one in model.parameters()]
        place.release(model)
        return losses, scores.detach(), grads

    losses, scores, grads = train()
    gc.collect()
    held = poison(place, (6, 8), (6, 16), (6, 4), (16, 8), (4, 16), (16,), (4,))
    return losses, scores, grads, held


# ------------------------------------------------------------------------------- many, late


@in_place_case("Forty lengths come, some often and most of them once.", expect=either())
def forty_lengths(place):
    model = place.capture(made(place, nn.Sequential, nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)))
    optimizer, losses = sgd(model), []
    for number in range(80):
        x = floats(place, number, 2 + (number * number) % 40, 8)
        losses.append(update(optimizer, F.mse_loss(model(x), x)))
    return losses, state(model, optimizer)


def _late(place, *, num=48):
    """Train without a wait; return copies of losses and outputs, to be read in the end."""
    model = place.capture(made(place, Normed, 0.1))
    optimizer = place.capture(sgd(model, momentum=0.9))
    losses, scores = [], []
    for x, y in batches(place, num):
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        scores.append(out.detach())
    return losses, scores, state(model, optimizer)


@in_place_case("Nothing is read before the end of the loop.", expect=either())
def nothing_is_read(place):
    return _late(place)


@in_place_case("A loss is read in every tenth step only, as people log.", expect=either())
def read_every_tenth_step(place):
    model = place.capture(mlp(place, dropout=0.1))
    criterion = place.capture(nn.CrossEntropyLoss())
    optimizer, read = place.capture(sgd(model)), []
    for number, (x, y) in enumerate(batches(place, 60)):
        loss = criterion(model(x), y)
        loss.backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
        if number % 10 == 9:
            read.append((loss.item(), kept(model[0].weight)))
    return read, state(model, optimizer)


@in_place_case("Batches are prefetched, losses deferred, and the model is captured.")
def prefetched_and_deferred(place):
    model = place.capture(mlp(place))
    optimizer = place.capture(sgd(model))
    losses, host = place.losses(), [(floats(place, n, 6, 8).cpu(), n % 4) for n in range(12)]
    for _ in range(2):
        for x, label in place.prefetch(host):
            optimizer.zero_grad()
            y = torch.full((6,), label, device=x.device)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.add(loss)
            place.settle()
    return losses.mean(), losses.history, state(model, optimizer)


@in_place_case(
    "The loop runs on a stream of its own, and evaluates on the default one.",
    expect=captured("model"),
)
def on_a_stream_of_its_own(place):
    model = place.capture(mlp(place))
    optimizer, stream = sgd(model), place.stream()
    losses, scores, main = [], [], place.current()
    for number in range(24):
        with place.on(stream):
            place.order(place.current(), main)
            losses += fit(place, model, optimizer, 1, start=number)
        if number % 6 == 5:
            place.order(main, stream)
            with torch.no_grad():
                scores.append(kept(model(batch(place, 70)[0])))
    place.order(main, stream)
    return losses, scores, state(model, optimizer)


@in_place_case(
    "Snapshots of the model are kept by deepcopy in every epoch, and averaged in the end."
)
def snapshots_are_kept(place):
    model = place.capture(made(place, Normed))
    optimizer, snapshots, losses = place.capture(sgd(model)), [], []
    for epoch in range(4):
        losses += fit(place, model, optimizer, 6, start=6 * epoch)
        snapshots.append(copy.deepcopy(model).eval())
    with torch.no_grad():
        scores = torch.stack([one(batch(place, 80)[0]) for one in snapshots]).mean(0)
    return losses, scores, [state(one) for one in snapshots], state(model, optimizer)
