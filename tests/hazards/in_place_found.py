"""Modules captured where they stand: what was found by looking for loops that break them."""

from __future__ import annotations

import copy
import threading

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hazards.captured_models import batch, batches, kept, mlp, sgd, state
from hazards.in_place_harness import either, in_place_case
from hazards.in_place_models import NUM, Normed, fit, floats, made, tokens, update


def _kind(place):
    return place.torch_device.type


def _late(place, model, step, *, first=11, num=NUM, loss_of=F.cross_entropy, **settings):
    """Train plainly, and by `step(number, x, y)` in each third step from `first` on."""
    optimizer = sgd(model, **settings)
    found = []
    for number, (x, y) in enumerate(batches(place, num)):
        optimizer.zero_grad()
        if number >= first and (number - first) % 3 == 0:
            found.append(step(number, x, y))
        else:
            loss = loss_of(model(x), y)
            loss.backward()
            found.append(loss.item())
        optimizer.step()
    return found, state(model, optimizer)


# ------------------------------------------------------------- passes that come apart


class Twins(nn.Module):
    """Two towers without a common weight, as critics have them."""

    def __init__(self):
        super().__init__()
        self.one, self.two = (
            nn.Linear(8, 4),
            nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)),
        )

    def forward(self, x):
        return self.one(x), self.two(x)


@in_place_case("Twin critics in one module: each loss goes backward on its own.", expect=either())
def twin_losses_go_backward_apart(place):
    model = place.capture(made(place, Twins))
    optimizer = sgd(model)
    losses = []
    for x, y in batches(place, NUM):
        optimizer.zero_grad()
        one, two = model(x)
        first, second = F.cross_entropy(one, y), F.cross_entropy(two, y)
        first.backward()
        second.backward()
        optimizer.step()
        losses.append((first.item(), second.item()))
    return losses, state(model, optimizer)


class Embedded(nn.Module):
    """An embedding, whose weight autograd does not save, before dropout and a head."""

    def __init__(self, p=0.3):
        super().__init__()
        self.embed, self.drop, self.head = nn.Embedding(11, 8), nn.Dropout(p), nn.Linear(8, 11)

    def forward(self, ids):
        return self.head(self.drop(torch.tanh(self.embed(ids))))


def _embedded(place, between, *, at=11, p=0.3, num=NUM):
    """Two backward passes of one forward pass at times, with something between them."""
    model = place.capture(made(place, Embedded, p))
    optimizer = sgd(model)
    losses = []
    for number in range(num):
        ids = tokens(place, number, 4, 6)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        if number >= at and number % 3 == 0:
            loss.backward(retain_graph=True)
            between(model, ids)
            loss.backward()
            model.train()
        else:
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


@in_place_case("Another dropout is set between two backward passes.", expect=either())
def dropout_between_two_backward_passes(place):
    def between(model, ids):
        model.drop.p = 0.9 if model.drop.p == 0.3 else 0.3

    return _embedded(place, between)


@in_place_case(
    "The loss of the step before stays, with its graph, and goes backward now.", expect=either()
)
def backward_one_step_late(place):
    model = place.capture(made(place, Normed))
    optimizer = sgd(model)
    last, losses = None, []
    for number, (x, y) in enumerate(batches(place, NUM)):
        loss = F.cross_entropy(model(x), y)
        if number < 10:
            losses.append(update(optimizer, loss))
            continue
        if last is not None:
            optimizer.zero_grad()
            last.backward()
        last = loss
    return losses, state(model, optimizer)


@in_place_case("Double backward of a Hessian-vector product at times.", expect=either())
def hessian_vector_product_late(place):
    model = place.capture(nn.Sequential(mlp(place), nn.Tanh()))
    products = []

    def step(number, x, y):
        weights = list(model.parameters())
        loss = F.cross_entropy(model(x), y)
        first = torch.autograd.grad(loss, weights, create_graph=True)
        product = torch.autograd.grad(sum((one * one.detach()).sum() for one in first), weights)
        products.append([kept(one) for one in product])
        F.cross_entropy(model(x), y).backward()
        return loss.item()

    return _late(place, model, step), products


# ------------------------------------------------------------- modes


@in_place_case("A second call in one autocast block comes late.", expect=either("autocast"))
def autocast_with_a_late_second_call(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, 24)):
        optimizer.zero_grad()
        with torch.autocast(_kind(place), dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
            if number > 16:
                loss = loss + model(x * 2).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


@in_place_case(
    "The captured model is checkpointed from step 11 on.", expect=either("checkpoint|saved")
)
def checkpointed_late(place):
    model = place.capture(made(place, Normed))

    def step(number, x, y):
        x.requires_grad_()
        loss = F.cross_entropy(checkpoint(model, x, use_reentrant=number % 2 == 0), y)
        loss.backward()
        return loss.item()

    return _late(place, model, step, num=26)


class Forces(nn.Module):
    """Energies, and forces by autograd within forward, as force fields have them."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, positions):
        positions.requires_grad_(True)
        energy = self.body(positions).sum()
        (forces,) = torch.autograd.grad(energy, positions, create_graph=True)
        return energy, -forces


@in_place_case(
    "A force field: forward makes its input require gradients, and differentiates.",
    expect=either(),
)
def force_field(place):
    model = place.capture(made(place, Forces))
    optimizer = sgd(model, lr=0.01)
    found = []
    for number in range(NUM):
        positions = floats(place, number, 5, 3)
        energy, forces = model(positions)
        loss = energy.square() + (forces - 1).square().mean()
        found.append((update(optimizer, loss), positions.requires_grad, positions.grad))
    return found, state(model, optimizer)


# ------------------------------------------------------------- objects


@in_place_case("copy.copy, deepcopy and pickle of a captured model are ordinary models.")
def copies_are_ordinary(place):
    import io

    model = place.capture(made(place, Normed, 0.0))
    optimizer = sgd(model)
    found = fit(place, model, optimizer)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    shallow = copy.copy(model)
    deep = copy.deepcopy(model)
    shallow.first = nn.Linear(8, 16).to(place.torch_device)
    with torch.no_grad():
        for weight in [*shallow.first.parameters(), *deep.parameters()]:
            weight.fill_(0.01)
    x, _ = batch(place, 1)
    outs = [kept(one(x)) for one in (shallow, deep, loaded)]
    return (
        found,
        outs,
        ["forward" in vars(one) for one in (shallow, deep, loaded)],
        fit(place, model, optimizer),
        state(model, optimizer),
    )


@in_place_case(
    "GAN in one loop: discriminator sees real, fake and fake again, in one step.", expect=either()
)
def gan_with_both_captured(place):
    maker = place.capture(made(place, nn.Sequential, nn.Linear(4, 8), nn.Tanh()), name="maker")
    judge = place.capture(mlp(place, num_out=1), name="judge")
    for_maker, for_judge = sgd(maker), sgd(judge)
    losses = []
    for number in range(30):
        x, _ = batch(place, number)
        fake = maker(floats(place, number, 6, 4))
        for_judge.zero_grad()
        one = F.softplus(-judge(x)).mean()
        one.backward()
        two = F.softplus(judge(fake.detach())).mean()
        two.backward()
        for_judge.step()
        for_maker.zero_grad()
        three = F.softplus(-judge(fake)).mean()
        three.backward()
        for_maker.step()
        losses.append((one.item(), two.item(), three.item()))
    return losses, state(maker, for_maker), state(judge, for_judge)


@in_place_case(
    "Each step runs in a thread of its own; another model evaluates meanwhile.", expect=either()
)
def each_step_in_a_thread(place):
    model = place.capture(mlp(place, dropout=0.1))
    optimizer = sgd(model)
    losses = []

    def train(number):
        with torch.device(place.torch_device) if False else torch.enable_grad():
            x, y = batch(place, number)
            losses.append(update(optimizer, F.cross_entropy(model(x), y)))

    for number in range(NUM):
        thread = threading.Thread(target=train, args=(number,))
        thread.start()
        thread.join()
    return losses, state(model, optimizer)


# ------------------------------------------------------------- state that forward writes


class Codebook(nn.Module):
    """Vector quantization with a codebook that follows by averages, in forward."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 4), nn.Linear(4, 4)
        self.register_buffer("codes", torch.linspace(-1, 1, 20).reshape(5, 4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        hidden = self.body(x)
        nearest = torch.cdist(hidden, self.codes).argmin(1)
        chosen = self.codes[nearest]
        if self.training:
            with torch.no_grad():
                hits = F.one_hot(nearest, 5).to(x.dtype)
                self.codes.mul_(0.9).add_(hits.t() @ hidden, alpha=0.1)
                self.calls += 1
        return self.head(hidden + (chosen - hidden).detach()), (
            hidden - chosen.detach()
        ).square().mean()


@in_place_case("A codebook follows by averages in forward, and calls are counted on the device.")
def codebook_follows(place):
    model = place.capture(made(place, Codebook))
    optimizer = sgd(model)
    losses = []
    for x, y in batches(place, NUM):
        scores, commitment = model(x)
        losses.append(update(optimizer, F.cross_entropy(scores, y) + 0.25 * commitment))
    return losses, state(model, optimizer)


# ------------------------------------------------------------- gradients


@in_place_case(
    "Gradients come expanded, transposed and as parts of a larger tensor, in turns.",
    expect=either(),
)
def gradients_of_many_layouts(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    found = []
    for number, (x, _) in enumerate(batches(place, 40)):
        optimizer.zero_grad()
        scores = model(x)
        wide = floats(place, number, 8, 12)
        given = [
            torch.ones((), device=x.device).expand(6, 4),
            wide.t()[:6, :4],
            wide[1:7, ::3],
            wide[:1, :4].expand(6, 4),
        ][number // 10]
        scores.backward(given)
        optimizer.step()
        found.append(kept(scores))
    return found, state(model, optimizer)


@in_place_case(
    "The optimizer's step comes between forward and backward of the next batch.", expect=either()
)
def pipelined_steps(place):
    model = place.capture(made(place, Embedded, 0.0))
    optimizer = sgd(model)
    losses, waiting = [], None
    for number in range(30):
        ids = tokens(place, number, 4, 6)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        if waiting is not None:
            losses.append(waiting.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        waiting = loss
    return losses, state(model, optimizer)
