"""Modules captured where they stand: what was found by looking for loops that break them."""

from __future__ import annotations

import copy
import threading
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hazards.captured_models import Headed, batch, batches, kept, mlp, sgd, state
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


# ------------------------------------------------------------- weights that stand elsewhere too


class TiedByPartial(nn.Module):
    """Its head is a function that holds the weight of the embedding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.head = partial(F.linear, weight=self.embed.weight)

    def forward(self, ids):
        return self.head(torch.tanh(self.embed(ids)))


@in_place_case("The head is a partial that holds the embedding's weight.", expect=either())
def tied_by_a_partial(place):
    model = place.capture(made(place, TiedByPartial))
    optimizer = sgd(model)
    losses = []
    for number in range(NUM):
        ids = tokens(place, number, 4, 5)
        losses.append(
            update(
                optimizer, F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            )
        )
    return losses, state(model, optimizer)


class ReadsGradient(nn.Module):
    """Weighs its output by the gradient of the step before."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        gradient = self.layer.weight.grad
        scores = self.layer(x)
        return scores if gradient is None else scores * (1 + gradient.abs().mean())


@in_place_case("forward reads `.grad` of a weight, from the step before.", expect=either())
def forward_reads_gradients(place):
    model = place.capture(made(place, ReadsGradient))
    optimizer = sgd(model)
    losses = []
    for x, y in batches(place, NUM):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


class OwnBackward(nn.Module):
    """Runs the backward pass of a loss of its own in forward."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.other = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 2)

    def forward(self, x):
        hidden = F.relu(self.body(x))
        if self.training:
            (0.1 * self.other(hidden.detach()).square().mean()).backward()
        return self.head(hidden)


@in_place_case("An auxiliary loss goes backward in forward.", expect=either())
def backward_in_forward(place):
    model = place.capture(made(place, OwnBackward))
    optimizer = sgd(model)
    losses = []
    for x, y in batches(place, NUM):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


class TakesWeight(nn.Module):
    """Takes a weight as an argument."""

    def __init__(self):
        super().__init__()
        self.embed, self.body = nn.Embedding(11, 8), nn.Linear(8, 8)

    def forward(self, ids, weight):
        return self.body(self.embed(ids)) @ weight.t()


@in_place_case("The loop gives the model one of its own weights as an argument.", expect=either())
def own_weight_is_an_argument(place):
    model = place.capture(made(place, TakesWeight))
    optimizer = sgd(model)
    losses = []
    for number in range(NUM):
        ids = tokens(place, number, 4, 5)
        scores = model(ids[:, :-1], model.embed.weight).flatten(0, 1)
        losses.append(update(optimizer, F.cross_entropy(scores, ids[:, 1:].flatten())))
    return losses, state(model, optimizer)


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


@in_place_case(
    "The embedding is moved between two backward passes of one forward.", expect=either()
)
def weight_moves_between_two_backward_passes(place):
    def between(model, ids):
        with torch.no_grad():
            model.embed.weight.mul_(0.5)

    return _embedded(place, between)


@in_place_case("Another dropout is set between two backward passes.", expect=either())
def dropout_between_two_backward_passes(place):
    def between(model, ids):
        model.drop.p = 0.9 if model.drop.p == 0.3 else 0.3

    return _embedded(place, between)


class Shifted(nn.Module):
    """Adds to its input, which autograd does not save."""

    def __init__(self):
        super().__init__()
        self.shift, self.head = nn.Parameter(torch.linspace(-1, 1, 8)), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(torch.tanh(x * 2 + self.shift))


@in_place_case(
    "The input is used again between two backward passes, which torch allows.", expect=either()
)
def input_moves_between_two_backward_passes(place):
    model = place.capture(made(place, Shifted))

    def step(number, x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        x.zero_()
        loss.backward()
        return loss.item()

    return _late(place, model, step)


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
    "Encoder and decoder share a weight, each called once in an autocast block.",
    expect=either("autocast|tied|outside"),
)
def two_models_with_one_weight_in_autocast(place):
    one = made(place, nn.Sequential, nn.Linear(8, 8), nn.ReLU())
    two = made(place, nn.Sequential, nn.Linear(8, 8), nn.Linear(8, 4))
    two[0].weight = one[0].weight
    place.capture(one, name="encoder")
    place.capture(two, name="decoder")
    both = nn.ModuleList([one, two])
    optimizer = sgd(both)
    losses = []
    for x, y in batches(place, 24):
        optimizer.zero_grad()
        with torch.autocast(_kind(place), dtype=torch.bfloat16):
            loss = F.cross_entropy(two(one(x)), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(both, optimizer)


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


@in_place_case("forward sets the grad mode itself, and leaves it so.", expect=either())
def forward_sets_the_grad_mode(place):
    class Sets(Headed):
        def forward(self, x):
            torch.set_grad_enabled(self.training)
            return super().forward(x)

    model = place.capture(made(place, Sets))
    optimizer = sgd(model)
    losses, modes = [], []
    try:
        for number, (x, y) in enumerate(batches(place, 36)):
            if number % 3 == 2:
                model.eval()
                scores = model(x)
                modes.append((torch.is_grad_enabled(), scores.requires_grad))
                model.train()
            loss = F.cross_entropy(model(x), y)
            modes.append((torch.is_grad_enabled(), loss.requires_grad))
            losses.append(update(optimizer, loss))
    finally:
        torch.set_grad_enabled(True)
    return losses, modes, state(model, optimizer)


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


@in_place_case(
    "A force field that is evaluated under no_grad, by enable_grad within.", expect=either()
)
def force_field_is_evaluated(place):
    class Within(Forces):
        @torch.enable_grad()
        def forward(self, positions):
            positions = positions.detach().requires_grad_()
            energy = self.body(positions).sum()
            (forces,) = torch.autograd.grad(energy, positions, create_graph=self.training)
            return energy, -forces

    model = place.capture(made(place, Within))
    optimizer = sgd(model, lr=0.01)
    found = []
    for number in range(30):
        positions = floats(place, number, 5, 3)
        if number % 2:
            model.eval()
            with torch.no_grad():
                energy, forces = model(positions)
            found.append(
                (energy.detach(), forces.detach(), energy.requires_grad, forces.requires_grad)
            )
            model.train()
            continue
        energy, forces = model(positions)
        loss = energy.square() + (forces - 1).square().mean()
        found.append((update(optimizer, loss), positions.requires_grad))
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
