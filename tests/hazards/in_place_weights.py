"""Weights of captured models: shared, replaced, frozen, loaded, moved, and used by others."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_models import Headed, batches, mlp, poison, sgd, state
from hazards.in_place_harness import either, in_place_case
from hazards.in_place_models import (
    Normed,
    Tied,
    fit,
    made,
    tokens,
    update,
)


# ---------------------------------------------------------------------------------- shared


def _language_model(place, model, forward, *, every=1, num=24):
    optimizer, losses = sgd(model), []
    for number in range(num):
        ids = tokens(place, number, 4, 6)
        scores = forward(ids[:, :-1])
        loss = F.cross_entropy(scores.reshape(-1, 11), ids[:, 1:].flatten()) / every
        loss.backward()
        losses.append(loss.item())
        if number % every == every - 1:
            optimizer.step()
            optimizer.zero_grad()
    return losses, state(model, optimizer)


@in_place_case(
    "The body is captured with the embedding; the head outside has the same weight.",
    expect=either("tied|shared|outside"),
)
def tied_across_the_border(place):
    class Body(nn.Module):
        def __init__(self, whole):
            super().__init__()
            self.embed, self.body = whole.embed, whole.body

        def forward(self, ids):
            return torch.tanh(self.body(self.embed(ids)))

    model = made(place, Tied)
    body = place.capture(Body(model))
    return _language_model(place, model, lambda ids: model.head(body(ids)), every=2)


@in_place_case(
    "One layer is shared by two captured models, which train in turns.",
    expect=either("tied|shared|outside"),
)
def layer_shared_by_two_models(place):
    first, second = made(place, Headed), made(place, Headed)
    second.body = first.body
    place.capture(first, name="first")
    place.capture(second, name="second")
    optimizers, losses = [sgd(first, momentum=0.9), sgd(second)], []
    for number, (x, y) in enumerate(batches(place, 36)):
        if number % 3 == 2:
            loss = F.cross_entropy(first(x), y) + F.cross_entropy(second(x), y)
        else:
            loss = F.cross_entropy([first, second][number % 3](x), y)
        losses.append(update(optimizers[number % 2], loss))
    return losses, state(first, optimizers[0]), state(second, optimizers[1])


# ---------------------------------------------------------------------------------- replaced


@in_place_case("The head is replaced for another task, with another optimizer.")
def head_is_replaced(place):
    model = place.capture(made(place, Headed))
    optimizer = sgd(model)
    losses = fit(place, model, optimizer, 16)
    model.head = made(place, nn.Linear, 16, 3)
    optimizer = sgd(model, lr=0.05)
    held = poison(place, (4, 16), (4,))
    losses += fit(place, model, optimizer, 16, num_out=3)
    return losses, held, state(model, optimizer)


@in_place_case("`.data` of all weights is replaced by a copy, and the old memory is used again.")
def data_is_replaced(place):
    model = place.capture(mlp(place))
    optimizer = place.capture(sgd(model, momentum=0.9))
    losses = fit(place, model, optimizer, 14)
    for one in model.parameters():
        one.data = one.data * 0.5
    held = poison(place, *[tuple(one.shape) for one in model.parameters()])
    losses += fit(place, model, optimizer, 14)
    return losses, held, state(model, optimizer)


# ------------------------------------------------------------------------- moved, made of others


@in_place_case("The model moves to the host for a checkpoint, and back to the device.")
def moves_to_the_host_and_back(place):
    model = place.capture(made(place, Normed))
    losses = fit(place, model, sgd(model), 14)
    model.to("cpu")
    saved = {name: one.clone() for name, one in model.state_dict().items()}
    model.to(place.torch_device)
    held = poison(place, (16, 8), (16,), (4, 16), (4,))
    optimizer = sgd(model)
    losses += fit(place, model, optimizer, 14)
    return losses, saved, held, state(model, optimizer)
