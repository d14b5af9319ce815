"""Weights of captured models: shared, replaced, frozen, loaded, moved, and used by others."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

from hazards.captured_models import Headed, batch, batches, kept, mlp, poison, sgd, state
from hazards.in_place_harness import either, in_place_case
from hazards.in_place_models import (
    NUM,
    Normed,
    Tied,
    fit,
    made,
    through_a_file,
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


@in_place_case("Head and embedding share a weight, both within the captured model.")
def tied_inside(place):
    model = place.capture(made(place, Tied))
    return _language_model(place, model, model)


@in_place_case("Head and embedding share a weight, and gradients of three batches are added up.")
def tied_inside_while_accumulating(place):
    model = place.capture(made(place, Tied))
    return _language_model(place, model, model, every=3)


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
    "Embedding and head are captured apart, and share their weight.",
    expect=either("tied|shared|outside"),
)
def tied_across_two_captured_parts(place):
    model = made(place, Tied)
    place.capture(model.embed, name="embed")
    place.capture(model.head, name="head")
    return _language_model(place, model, model, every=2)


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


@in_place_case(
    "A weight of the model stands in the loss as well, in a product with the output.",
    expect=either("outside|shared|tied"),
)
def weight_is_used_by_the_loss(place):
    model = place.capture(made(place, Headed))
    optimizer, losses = sgd(model), []
    for number, (x, y) in enumerate(batches(place, 24)):
        weight = model.head.weight
        near = (weight @ weight.t() - torch.eye(4, device=x.device)).square().sum()
        loss = F.cross_entropy(model(x), y) + 0.01 * near + 0.01 * weight.norm()
        loss.backward()
        losses.append(loss.item())
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    return losses, state(model, optimizer)


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


@in_place_case("A layer is appended to a Sequential, and another taken away.")
def layers_come_and_go(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    losses = fit(place, model, optimizer, 14)
    model.append(made(place, nn.Linear, 4, 4))
    optimizer.add_param_group({"params": model[4].parameters()})
    losses += fit(place, model, optimizer, 14)
    del model[1]
    losses += fit(place, model, optimizer, 14)
    return losses, state(model, optimizer)


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


@in_place_case("Averages are swapped in for evaluation by `.data`, and out again.")
def averages_are_swapped_in(place):
    model = place.capture(made(place, Normed, 0.1))
    optimizer = place.capture(sgd(model))
    averages, losses, scores = [one.detach().clone() for one in model.parameters()], [], []

    def swap():
        for number, one in enumerate(model.parameters()):
            averages[number], one.data = one.data, averages[number]

    for epoch in range(5):
        losses += fit(place, model, optimizer, 6, start=6 * epoch)
        with torch.no_grad():
            for average, one in zip(averages, model.parameters(), strict=True):
                average.lerp_(one, 0.3)
        swap()
        model.eval()
        with torch.no_grad():
            scores += [model(x) for x, _ in batches(place, 2)]
        model.train()
        swap()
    return losses, scores, averages, state(model, optimizer)


@in_place_case("A checkpoint is loaded with assign=True, and a new optimizer made.")
def checkpoint_is_assigned(place):
    model = place.capture(made(place, Normed))
    losses = fit(place, model, sgd(model), 14)
    saved = {name: one.clone() for name, one in model.state_dict().items()}
    losses += fit(place, model, sgd(model), 4)
    model.load_state_dict(saved, assign=True)
    optimizer = sgd(model, momentum=0.9)
    held = poison(place, (16, 8), (16,), (4, 16), (4,))
    losses += fit(place, model, optimizer, 16)
    return losses, held, state(model, optimizer)


@in_place_case("The best weights are loaded back in place after each bad epoch.")
def best_weights_are_loaded(place):
    model = place.capture(made(place, Normed))
    optimizer = place.capture(sgd(model, lr=0.5))
    best, lowest, losses = through_a_file(model.state_dict()), 1e9, []
    for epoch in range(5):
        losses.append(sum(fit(place, model, optimizer, 6, start=6 * epoch)))
        if losses[-1] < lowest:
            lowest, best = losses[-1], copy.deepcopy(model.state_dict())
        else:
            model.load_state_dict(best)
    return losses, best, state(model, optimizer)


@in_place_case("Weights are drawn anew in place: reset_parameters.")
def weights_are_reset(place):
    model = place.capture(mlp(place))
    optimizer = place.capture(sgd(model, momentum=0.9))
    losses = fit(place, model, optimizer, 12)
    model[3].reset_parameters()
    nn.init.orthogonal_(model[0].weight)
    losses += fit(place, model, optimizer, 12)
    return losses, state(model, optimizer)


# ------------------------------------------------------------------------------------ frozen


@in_place_case("The body is frozen in the middle, and thawed again.")
def body_is_frozen_for_a_while(place):
    model = place.capture(made(place, Headed))
    optimizer = place.capture(sgd(model, momentum=0.9))
    losses = fit(place, model, optimizer, 12)
    model.body.requires_grad_(False)
    losses += fit(place, model, optimizer, 12)
    frozen = [one.grad is None for one in model.parameters()]
    model.body.requires_grad_(True)
    losses += fit(place, model, optimizer, 12)
    return losses, frozen, state(model, optimizer)


@in_place_case("All weights are frozen for a while, and only the input gets gradients: an attack.")
def attacked(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    losses, steps = fit(place, model, optimizer, 12), []
    model.requires_grad_(False)
    for number in range(2):
        x, y = batch(place, 40 + number)
        start = x.clone()
        for _ in range(8):
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(model(x), y), x)
            x = torch.clamp(x + 0.05 * slope.sign(), start - 0.2, start + 0.2)
        steps.append(kept(x))
    model.requires_grad_(True)
    losses += fit(place, model, optimizer, 12)
    return losses, steps, state(model, optimizer)


# ------------------------------------------------------------------------- moved, made of others


@in_place_case("The model becomes float64 in the middle of training.")
def becomes_double(place):
    model = place.capture(mlp(place))
    losses = fit(place, model, sgd(model), 14)
    model.double()
    optimizer = sgd(model)
    for number in range(16):
        x, y = batch(place, number)
        losses.append(update(optimizer, F.cross_entropy(model(x.double()), y)))
    return losses, state(model, optimizer)


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


class Symmetric(nn.Module):
    """A symmetric weight."""

    def forward(self, weight):
        return weight.triu() + weight.triu(1).transpose(-1, -2)


@in_place_case("A parametrization is in the model from the start, and another comes later.")
def parametrizations_come_later(place):
    model = made(place, nn.Sequential, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    parametrizations.weight_norm(model[2])
    place.capture(model)
    optimizer = sgd(model)
    losses = fit(place, model, optimizer, 16)
    parametrize.register_parametrization(model[0], "weight", Symmetric())
    optimizer = sgd(model)
    losses += fit(place, model, optimizer, 16)
    parametrize.remove_parametrizations(model[0], "weight")
    optimizer = sgd(model)
    losses += fit(place, model, optimizer, 16)
    return losses, state(model, optimizer)


@in_place_case("Spectral norm keeps its vectors in buffers, which forward updates.")
def spectral_norm(place):
    model = made(place, Headed)
    parametrizations.spectral_norm(model.body)
    place.capture(model)
    optimizer = sgd(model)
    return fit(place, model, optimizer, 24), state(model, optimizer)


@in_place_case(
    "Weights are pruned in the middle: masks, forward hooks, and then made permanent.",
    expect=either("hook"),
)
def pruned(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    losses = fit(place, model, optimizer, 14)
    prune.l1_unstructured(model[0], "weight", amount=0.4)
    optimizer = sgd(model)
    losses += fit(place, model, optimizer, 14)
    prune.remove(model[0], "weight")
    optimizer = sgd(model)
    losses += fit(place, model, optimizer, 14)
    return losses, state(model, optimizer)


@in_place_case("Other weights are put in by functional_call for a while.", expect=either())
def called_with_other_weights(place):
    model = place.capture(made(place, Headed))
    optimizer = sgd(model)
    losses = fit(place, model, optimizer, 8)
    fast = {name: one.detach().clone().requires_grad_() for name, one in model.named_parameters()}
    for number in range(8, 20):
        x, y = batch(place, number)
        inner = F.cross_entropy(functional_call(model, fast, (x,)), y)
        slopes = torch.autograd.grad(inner, list(fast.values()))
        for one, slope in zip(fast.values(), slopes, strict=True):
            one.data.sub_(slope, alpha=0.1)
        losses.append((inner.item(), update(optimizer, F.cross_entropy(model(x), y))))
    return losses, fast, state(model, optimizer)


class Cached(nn.Module):
    """Keeps a table on the device, which grows with the longest input."""

    def __init__(self):
        super().__init__()
        self.embed, self.table = nn.Embedding(11, 8), None
        self.head = nn.Linear(8, 11)

    def forward(self, ids):
        if self.table is None or len(self.table) < ids.shape[1]:
            positions = torch.arange(ids.shape[1], device=ids.device, dtype=torch.float32)
            self.table = torch.sin(positions[:, None] * torch.ones(8, device=ids.device))
        return self.head(self.embed(ids) + self.table[: ids.shape[1]])


@in_place_case("A table of positions grows in forward when a longer batch comes, and is kept.")
def table_grows_in_forward(place):
    model = place.capture(made(place, Cached))
    optimizer, losses = sgd(model), []
    for number in range(36):
        ids = tokens(place, number, 4, 3 if number < 12 else 7 - 2 * (number % 2))
        losses.append(update(optimizer, F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())))
    return losses, model.table, state(model, optimizer)


@in_place_case(
    "The embedding stays on the host: a model over two devices.", expect=either("device|host|cpu")
)
def embedding_on_the_host(place):
    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11).to(place.torch_device)

        def forward(self, ids):
            return self.head(self.embed(ids).to(place.torch_device))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = place.capture(Split())
    optimizer, losses = sgd(model), []
    for number in range(NUM):
        ids = torch.arange(12).reshape(3, 4) % (number + 2) % 11
        target = ids.to(place.torch_device).flatten()
        losses.append(update(optimizer, F.cross_entropy(model(ids).flatten(0, 1), target)))
    return losses, state(model, optimizer)
