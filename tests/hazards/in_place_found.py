"""Modules captured where they stand: what was found by looking for loops that break them."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from functools import partial, wraps

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hazards.captured_models import Headed, batch, batches, kept, mlp, sgd, state
from hazards.harness import CPU, GPU
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


class InAList(nn.Module):
    """Keeps its weights in a list of Python as well, and decays them in forward."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.all = [self.first.weight, self.last.weight]

    def forward(self, x, y):
        scores = self.last(F.relu(self.first(x)))
        return F.cross_entropy(scores, y) + 0.1 * sum(one.square().sum() for one in self.all)


@in_place_case(
    "A list of Python has the weights as well, for a penalty in forward.", expect=either()
)
def weights_in_a_list(place):
    model = made(place, InAList)
    model.all = [model.first.weight, model.last.weight]
    place.capture(model)
    optimizer = sgd(model)
    losses = [update(optimizer, model(x, y)) for x, y in batches(place, NUM)]
    return losses, state(model, optimizer)


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


class Marked(nn.Module):
    """Reads an attribute that people put on a parameter."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.layer.weight.gain = 3.0

    def forward(self, x):
        return self.layer(x) * getattr(self.layer.weight, "gain", 1.0)


@in_place_case("Parameters have attributes of the user, which forward reads.", expect=either())
def attributes_of_parameters(place):
    model = made(place, Marked)
    model.layer.weight.gain = 3.0
    place.capture(model)
    optimizer = sgd(model)
    return fit(place, model, optimizer), state(model, optimizer)


class ByIdentity(nn.Module):
    """Keeps a scale for each parameter in a dictionary."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.scales = {}

    def forward(self, x):
        return self.layer(x) * self.scales.get(self.layer.weight, 1.0)


@in_place_case("A dictionary has a scale for each parameter.", expect=either())
def parameters_are_keys(place):
    model = made(place, ByIdentity)
    model.scales = {model.layer.weight: 0.25}
    place.capture(model)
    optimizer = sgd(model)
    return fit(place, model, optimizer), state(model, optimizer)


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


class Shared(nn.Module):
    """One layer in several places, in containers and in a plain list."""

    def __init__(self):
        super().__init__()
        one = nn.Linear(8, 8)
        self.layers = nn.ModuleList([one, nn.Linear(8, 8), one])
        self.table = nn.ModuleDict({"one": one, "norm": nn.LayerNorm(8)})
        self.plain = [one]
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        x = self.table["norm"](self.table["one"](x))
        return self.head(self.plain[0](x))


@in_place_case("One layer stands in lists, dictionaries and a plain list, used four times.")
def layer_in_many_places(place):
    model = place.capture(made(place, Shared))
    optimizer = sgd(model)
    return fit(place, model, optimizer), state(model, optimizer)


class Hidden(nn.Module):
    """A layer in a plain list, which parameters() does not know."""

    def __init__(self):
        super().__init__()
        self.hidden = [nn.Linear(8, 8)]
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(torch.tanh(self.hidden[0](x)))


@in_place_case("A layer in a plain list is trained by an optimizer of its own.", expect=either())
def layer_in_a_plain_list(place):
    model = made(place, Hidden)
    model.hidden[0].to(place.torch_device)
    place.capture(model)
    optimizer, other = sgd(model), sgd(model.hidden[0])
    losses = []
    for x, y in batches(place, NUM):
        other.zero_grad()
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
        other.step()
    return losses, state(model, optimizer), state(model.hidden[0], other)


class UsesGlobal(nn.Module):
    """Uses a weight that is a global of its file."""

    def __init__(self, weights):
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.weights = weights

    def forward(self, x):
        return self.layer(x) * self.weights["t"]


@in_place_case(
    "A weight in a dictionary of the user's is no parameter of the model.", expect=either()
)
def weight_of_somebody_else(place):
    weights = {"t": place.moved(torch.ones(1)).requires_grad_()}
    model = place.capture(made(place, UsesGlobal, weights))
    optimizer = sgd(model)
    losses = fit(place, model, optimizer)
    return losses, state(model, optimizer), weights["t"].grad


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


@in_place_case("Twin critics: apart from step 11 on, together before.", expect=either())
def twin_losses_go_apart_late(place):
    model = place.capture(made(place, Twins))
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, NUM)):
        optimizer.zero_grad()
        one, two = model(x)
        first, second = F.cross_entropy(one, y), F.cross_entropy(two, y)
        if number < 11:
            (first + second).backward()
        else:
            first.backward()
            second.backward()
        optimizer.step()
        losses.append((first.item(), second.item()))
    return losses, state(model, optimizer)


@in_place_case("Twin critics, of which each is trained in every second step.", expect=either())
def twins_are_trained_in_turns(place):
    model = place.capture(made(place, Twins))
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, 2 * NUM)):
        scores = model(x)[number % 2]
        losses.append(update(optimizer, F.cross_entropy(scores, y)))
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


@in_place_case("model.eval() comes between two backward passes of one forward.", expect=either())
def eval_between_two_backward_passes(place):
    return _embedded(place, lambda model, ids: model.eval())


@in_place_case("Random numbers are seeded between two backward passes.", expect=either())
def seeded_between_two_backward_passes(place):
    return _embedded(place, lambda model, ids: torch.manual_seed(3))


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
    "A shift is moved between forward and a backward of other outputs.", expect=either()
)
def weight_moves_before_another_backward(place):
    class Two(Shifted):
        def forward(self, x):
            hidden = torch.tanh(x * 2 + self.shift)
            return self.head(hidden), hidden

    model = place.capture(made(place, Two))
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, NUM)):
        optimizer.zero_grad()
        scores, hidden = model(x)
        loss = F.cross_entropy(scores, y)
        if number > 10 and number % 3 == 0:
            loss = loss + hidden.square().mean()
            with torch.no_grad():
                model.shift.add_(0.5)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


class OwnGenerator(nn.Module):
    """Draws its noise from a generator of its own."""

    def __init__(self, device):
        super().__init__()
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
        self.draw = torch.Generator(device).manual_seed(4)

    def forward(self, x):
        hidden = self.layer(x)
        noise = torch.rand(hidden.shape, device=x.device, generator=self.draw)
        return self.head(torch.tanh(hidden * noise))


@in_place_case(
    "A generator of the model's own, and a second backward pass at times.", expect=either()
)
def own_generator_and_second_backward(place):
    model = made(place, OwnGenerator, place.torch_device)
    place.capture(model)

    def step(number, x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        return loss.item()

    return _late(place, model, step)


@in_place_case(
    "Two forwards, the first backward comes last, with dropout and batch norm.", expect=either()
)
def backward_in_the_order_of_forwards(place):
    model = place.capture(made(place, Normed))
    optimizer = sgd(model)
    losses = []
    for number in range(NUM):
        optimizer.zero_grad()
        (x, y), (u, v) = batch(place, number), batch(place, 50 + number)
        one = F.cross_entropy(model(x), y)
        if number % 4 == 3:
            two = F.cross_entropy(model(u), v)
            one.backward()
            two.backward()
        else:
            one.backward()
        optimizer.step()
        losses.append(one.item())
    return losses, state(model, optimizer)


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


class Island(nn.Module):
    """A head that runs in float32 within autocast."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        hidden = F.relu(self.body(x))
        with torch.autocast(x.device.type, enabled=False):
            return self.head(hidden.float())


def _in_autocast(place, model, *, inside=False, num=24, dtype=lambda number: torch.bfloat16):
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, num)):
        optimizer.zero_grad()
        with torch.autocast(_kind(place), dtype=dtype(number)):
            loss = F.cross_entropy(model(x), y)
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


@in_place_case("Autocast with an island of float32, backward outside.", expect=either("autocast"))
def island_of_float32(place):
    return _in_autocast(place, place.capture(made(place, Island)))


@in_place_case("Autocast with an island of float32, backward inside.", expect=either("autocast"))
def island_of_float32_and_backward_inside(place):
    return _in_autocast(place, place.capture(made(place, Island)), inside=True)


class Cubic(nn.Module):
    """Operations whose backward passes cast in autocast."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        hidden = F.gelu(self.body(x))
        hidden = F.layer_norm(hidden, (16,)) * torch.sigmoid(hidden) + hidden.softmax(-1).pow(3)
        return self.head(hidden / (1 + hidden.abs().cumsum(-1)))


@in_place_case(
    "Many kinds of operations in autocast, backward outside.", expect=either("autocast")
)
def many_operations_in_autocast(place):
    return _in_autocast(place, place.capture(made(place, Cubic)))


@in_place_case("The same in float16, with a GradScaler by hand.", expect=either("autocast"))
def many_operations_in_float16(place):
    model = place.capture(made(place, Cubic))
    optimizer = sgd(model)
    losses = []
    for x, y in batches(place, 24):
        optimizer.zero_grad()
        with torch.autocast(_kind(place), dtype=torch.bfloat16, cache_enabled=False):
            scores = model(x)
        loss = F.cross_entropy(scores.float(), y)
        (loss * 1024).backward()
        for weight in model.parameters():
            weight.grad.div_(1024)
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


@in_place_case(
    "Backward runs in autocast from step 13 on, outside before.", expect=either("autocast")
)
def backward_moves_into_autocast(place):
    model = place.capture(made(place, Island))
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, 24)):
        optimizer.zero_grad()
        with torch.autocast(_kind(place), dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
            if number > 12:
                loss.backward()
        if number <= 12:
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


@in_place_case("Autocast is on in every second step.", expect=either("autocast"))
def autocast_at_times(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, 32)):
        optimizer.zero_grad()
        with torch.autocast(_kind(place), dtype=torch.bfloat16, enabled=number % 2 == 0):
            scores = model(x)
        loss = F.cross_entropy(scores.float(), y)
        loss.backward()
        optimizer.step()
        losses.append((loss.item(), str(scores.dtype)))
    return losses, state(model, optimizer)


@in_place_case("Autocast changes its dtype in the middle.", expect=either("autocast"))
def autocast_changes_its_dtype(place):
    model = place.capture(mlp(place))
    dtypes = [torch.bfloat16, torch.float16]
    return _in_autocast(place, model, num=32, dtype=lambda number: dtypes[number > 14])


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
    "A weight is used in the autocast block after the model.", expect=either("autocast|outside")
)
def weight_is_used_after_the_model_in_autocast(place):
    model = place.capture(made(place, Headed))
    optimizer = sgd(model)
    losses = []
    for x, y in batches(place, 24):
        optimizer.zero_grad()
        with torch.autocast(_kind(place), dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y) + F.linear(x, model.body.weight).square().mean()
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


def _with_more_in_the_block(place, model, more, *, num=32):
    """Train in blocks of autocast that have another part of the loss, which `more(x)` computes."""
    optimizer = sgd(model)
    losses = []
    for x, y in batches(place, num):
        optimizer.zero_grad()
        with torch.autocast(_kind(place), dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y) + more(x)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


@in_place_case("All weights are penalised in the autocast block: none of their casts is shared.")
def penalty_in_the_block_of_autocast(place):
    model = place.capture(made(place, Headed))
    return _with_more_in_the_block(
        place, model, lambda x: 0.01 * sum(one.square().sum() for one in model.parameters())
    )


@in_place_case(
    "An einsum uses a weight in the autocast block after the model.", expect=either("autocast")
)
def einsum_with_a_weight_in_the_block_of_autocast(place):
    model = place.capture(made(place, Headed))
    return _with_more_in_the_block(
        place,
        model,
        lambda x: torch.einsum("bi,oi->bo", x, model.body.weight).square().mean(),
    )


@in_place_case(
    "A part of the model is called alone in the autocast block after it, by its own name.",
    expect=either("autocast"),
)
def part_is_called_in_the_block_of_autocast(place):
    model = place.capture(made(place, Headed))
    return _with_more_in_the_block(place, model, lambda x: model.body(x).square().mean())


@in_place_case(
    "A weight is used behind another model, within a mode of torch functions for one block in two.",
    expect=either("autocast"),
)
def weight_is_used_within_a_device_mode_in_autocast(place):
    model, other = place.capture(made(place, Headed)), made(place, nn.Linear, 8, 8)
    numbers = iter(range(1000))

    def more(x):
        hidden = other(x)
        if next(numbers) % 2:
            with torch.device("cpu"):
                return F.linear(hidden, model.body.weight).square().mean()
        return F.linear(hidden, model.body.weight).square().mean()

    return _with_more_in_the_block(place, model, more)


@in_place_case(
    "A replica as nn.DataParallel makes it is called beside the model, hooks and all.",
    expect=either(),
)
def replica_of_data_parallel(place):
    model = place.capture(mlp(place))
    model.register_forward_hook(lambda module, given, out: out * 2)
    optimizer = sgd(model)
    found = fit(place, model, optimizer)
    replica = model._replicate_for_data_parallel()
    for name, child in model._modules.items():
        replica._modules[name] = copy.deepcopy(child).requires_grad_(False)
        for weight in replica._modules[name].parameters():
            weight.mul_(0.5)
    x, _ = batch(place, 1)
    return found, kept(replica(x)), kept(model(x)), state(model, optimizer)


@in_place_case(
    "Saved activations are rounded by hooks, from step 11 on.", expect=either("saved|hook")
)
def saved_tensor_hooks_late(place):
    model = place.capture(nn.Sequential(mlp(place), nn.Tanh()))

    def step(number, x, y):
        with torch.autograd.graph.saved_tensors_hooks(
            lambda one: one.half().to(one.dtype) if one.is_floating_point() else one,
            lambda one: one,
        ):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.item()

    return _late(place, model, step)


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


@in_place_case(
    "Anomaly detection is on in some late steps, and finds a NaN.", expect=either("anomaly")
)
def anomaly_detection_late(place):
    class Roots(Headed):
        def forward(self, x):
            return torch.sqrt(F.relu(super().forward(x)))

    model = place.capture(made(place, Roots))

    def step(number, x, y):
        try:
            with torch.autograd.detect_anomaly(check_nan=True):
                model(x * 0).sum().backward()
        except RuntimeError:
            return "NaN"
        return "no NaN"

    def finite(scores, y):
        return F.cross_entropy(scores + 1e-3, y)

    model2 = model
    return _late(
        place,
        model2,
        step,
        loss_of=lambda scores, y: (
            scores.detach().sum() * 0 + F.cross_entropy(scores, y) * 0
        ).nan_to_num(),
    )


class _Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is F.linear else out


@in_place_case(
    "A mode of the user's changes functions from step 11 on.", expect=either("mode|Doubling")
)
def function_mode_late(place):
    model = place.capture(mlp(place))

    def step(number, x, y):
        with _Doubling():
            scores = model(x)
        loss = F.cross_entropy(scores, y)
        loss.backward()
        return loss.item()

    return _late(place, model, step)


@in_place_case(
    "The default dtype changes in the middle, and forward makes tensors.", expect=either()
)
def default_dtype_changes(place):
    class Makes(Headed):
        def forward(self, x):
            noise = torch.arange(4, device=x.device) * torch.full((4,), 0.1, device=x.device)
            return super().forward(x) + noise

    model = place.capture(made(place, Makes))
    found = []

    def step(number, x, y):
        torch.set_default_dtype(torch.float64)
        try:
            scores = model(x)
        finally:
            torch.set_default_dtype(torch.float32)
        loss = F.cross_entropy(scores, y)
        found.append(str(scores.dtype))
        loss.backward()
        return loss.item()

    return _late(place, model, step), found


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


# ------------------------------------------------------------- inputs and outputs


@in_place_case("forward clamps its input by `.data`.", expect=either())
def input_is_changed_by_data(place):
    class Clamps(Headed):
        def forward(self, x):
            x.data.clamp_(-0.5, 0.5)
            return super().forward(x)

    model = place.capture(made(place, Clamps))
    optimizer = sgd(model)
    losses = []
    for x, y in batches(place, NUM):
        losses.append((update(optimizer, F.cross_entropy(model(x), y)), x))
    return losses, state(model, optimizer)


@in_place_case("forward asks whether its input is a leaf.", expect=either())
def asks_for_a_leaf(place):
    class Asks(Headed):
        def forward(self, x):
            scores = super().forward(x)
            return scores if x.is_leaf else scores * 0.5

    body = made(place, nn.Linear, 8, 8)
    model = place.capture(made(place, Asks))
    both = nn.ModuleList([body, model])
    optimizer = sgd(both)
    losses = [
        update(optimizer, F.cross_entropy(model(body(x)), y)) for x, y in batches(place, NUM)
    ]
    return losses, state(both, optimizer)


@in_place_case("A view of the input is returned, and the input changed after it.", expect=either())
def view_of_the_input_is_returned(place):
    class Returns(Headed):
        def forward(self, x):
            return super().forward(x), x[:, 2:]

    model = place.capture(made(place, Returns))
    optimizer = sgd(model)
    found = []
    for x, y in batches(place, NUM):
        scores, rest = model(x)
        found.append(update(optimizer, F.cross_entropy(scores, y)))
        x.zero_()
        found.append(kept(rest))
    return found, state(model, optimizer)


@in_place_case("Views of a buffer and of a weight are returned, and live on.", expect=either())
def views_of_state_are_returned(place):
    class Returns(Headed):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(6))

        def forward(self, x):
            self.count.add_(1)
            return super().forward(x), self.count[2:4], self.head.weight.detach()[1:]

    model = place.capture(made(place, Returns))
    optimizer = sgd(model)
    found = []
    for x, y in batches(place, NUM):
        scores, count, weight = model(x)
        found.append(update(optimizer, F.cross_entropy(scores, y)))
        count.mul_(0.5)
        found.append((kept(count), kept(weight)))
    return found, state(model, optimizer)


@in_place_case(
    "The same tensor is given as two arguments, and views that overlap.", expect=either()
)
def arguments_share_memory(place):
    class Two(Headed):
        def forward(self, x, other, *, scale=1.0):
            return super().forward(x) + super().forward(other) * scale

    model = place.capture(made(place, Two))
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, 2 * NUM)):
        wide = floats(place, number, 7, 8)
        pairs = [(x, x), (wide[:6], wide[1:])]
        one, two = pairs[number % 2]
        losses.append(update(optimizer, F.cross_entropy(model(one, two, scale=0.5), y)))
    return losses, state(model, optimizer)


@in_place_case(
    "The same tensor, which requires gradients, is given as two arguments.", expect=either()
)
def arguments_are_one_with_gradients(place):
    class Two(Headed):
        def forward(self, x, other):
            return super().forward(x) + super().forward(other * 2)

    body, model = made(place, nn.Linear, 8, 8), place.capture(made(place, Two))
    both = nn.ModuleList([body, model])
    optimizer = sgd(both)
    losses = []
    for x, y in batches(place, NUM):
        hidden = body(x)
        losses.append(update(optimizer, F.cross_entropy(model(hidden, hidden), y)))
    return losses, state(both, optimizer)


@in_place_case(
    "Two views of one activation are arguments, apart in storage ranges.", expect=either()
)
def arguments_are_chunks(place):
    class Two(Headed):
        def forward(self, x, other):
            return super().forward(x) + super().forward(other * 2)

    body, model = made(place, nn.Linear, 8, 16), place.capture(made(place, Two))
    both = nn.ModuleList([body, model])
    optimizer = sgd(both)
    losses = []
    for x, y in batches(place, NUM):
        losses.append(update(optimizer, F.cross_entropy(model(*body(x).chunk(2, 1)), y)))
    return losses, state(both, optimizer)


@in_place_case("Inputs are expanded, transposed and strided views.", expect=either())
def inputs_are_views(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    losses = []
    for number in range(45):
        _, y = batch(place, number)
        wide = floats(place, number, 12, 16)
        x = [wide[:1, :8].expand(6, 8), wide[::2, ::2], wide.t()[:6, :8]][number % 3]
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
    return losses, state(model, optimizer)


@in_place_case(
    "An input is written to in place by the loop after forward, which saves nothing of it.",
    expect=either(),
)
def input_is_filled_after_forward(place):
    model = place.capture(made(place, Shifted))
    optimizer = sgd(model)
    losses = []
    for x, y in batches(place, NUM):
        scores = model(x)
        x.fill_(7.0)
        losses.append(update(optimizer, F.cross_entropy(scores, y)))
    return losses, state(model, optimizer)


@in_place_case("The output depends on the clock.", expect=either("time|clock"))
def returns_the_time(place):
    import time

    ticks = []

    class Timed(Headed):
        def forward(self, x):
            start = time.perf_counter_ns()
            return super().forward(x), start

    model = place.capture(made(place, Timed))
    optimizer = sgd(model)
    losses = []
    for x, y in batches(place, NUM):
        scores, start = model(x)
        ticks.append(start)
        losses.append(update(optimizer, F.cross_entropy(scores, y)))
    return losses, len(set(ticks)) == NUM, state(model, optimizer)


@in_place_case("Addresses and versions of inputs are returned.", expect=either())
def returns_an_address(place):
    class Says(Headed):
        def forward(self, x):
            return super().forward(x), x.data_ptr(), x._version

    model = place.capture(made(place, Says))
    optimizer = sgd(model)
    found = []
    held = []
    for number, (x, y) in enumerate(batches(place, NUM)):
        held.append(x)
        for _ in range(number):
            x.add_(0)
        scores, address, version = model(x)
        found.append(
            (update(optimizer, F.cross_entropy(scores, y)), address == x.data_ptr(), version)
        )
    return found, state(model, optimizer)


@in_place_case("Arguments are *args, **kwargs, a number that grows, and a flag.", expect=either())
def arguments_of_all_kinds(place):
    class Any(Headed):
        def forward(self, *xs, beta=1.0, **others):
            out = sum(super(Any, self).forward(x) for x in xs) * beta
            return out + others["bias"] if others.get("bias") is not None else out

    model = place.capture(made(place, Any))
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, 40)):
        if number % 2:
            scores = model(x, x + 1, beta=0.5)
        else:
            scores = model(x, bias=floats(place, number, 4), beta=1 + number * 0.1)
        losses.append(update(optimizer, F.cross_entropy(scores, y)))
    return losses, state(model, optimizer)


@in_place_case(
    "A number changes in every call for 150 calls: nothing is hoarded.", expect=either()
)
def number_changes_for_ever(place):
    class Annealed(Headed):
        def forward(self, x, beta):
            return super().forward(x) * beta

    model = place.capture(made(place, Annealed))
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, 150)):
        losses.append(update(optimizer, F.cross_entropy(model(x, 1 + number / 1000), y)))
    return losses, state(model, optimizer)


class Detaches(nn.Module):
    """Straight-through estimator, a stopped branch and no_grad within forward."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        hard = hidden + (hidden.sign() - hidden).detach()
        with torch.no_grad():
            target = self.body(x).softmax(-1)
        return self.head(hard), hidden.detach(), target, (hidden > 0)


@in_place_case("Straight-through, detach and no_grad within forward; some outputs are boolean.")
def detaches_within(place):
    model = place.capture(made(place, Detaches))
    optimizer = sgd(model)
    found = []
    for x, y in batches(place, NUM):
        scores, hidden, target, mask = model(x)
        flags = [one.requires_grad for one in (scores, hidden, target, mask)]
        loss = F.cross_entropy(scores, y) + (target * hidden * mask).sum() * 0.01
        found.append((update(optimizer, loss), flags))
    return found, state(model, optimizer)


class _Counting(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.scale = 2.0
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x * ctx.scale


@in_place_case("An autograd.Function of the user's, with state in ctx.")
def own_function(place):
    class Squares(Headed):
        def forward(self, x):
            return _Counting.apply(super().forward(x))

    model = place.capture(made(place, Squares))
    optimizer = sgd(model, lr=0.01)
    return fit(place, model, optimizer), state(model, optimizer)


_SCALE = {"backward": 1.0}


class _Reversed(torch.autograd.Function):
    """Gradient reversal, whose strength is a global of the file."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -_SCALE["backward"] * gradient


@in_place_case(
    "Gradient reversal, whose strength the loop changes; backward reads a global.", expect=either()
)
def reversal_reads_a_global(place):
    class Reverses(Headed):
        def forward(self, x):
            return self.head(_Reversed.apply(F.relu(self.body(x))))

    model = place.capture(made(place, Reverses))
    optimizer = sgd(model)
    losses = []
    try:
        for number, (x, y) in enumerate(batches(place, 30)):
            _SCALE["backward"] = 1.0 if number < 15 else 0.25
            losses.append(update(optimizer, F.cross_entropy(model(x), y)))
    finally:
        _SCALE["backward"] = 1.0
    return losses, state(model, optimizer)


class _Lambda(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.strength * gradient, None


@in_place_case(
    "Gradient reversal, whose strength is an attribute set between forward and backward.",
    expect=either(),
)
def reversal_reads_an_attribute(place):
    class Reverses(Headed):
        strength = 1.0

        def forward(self, x):
            hidden = F.relu(self.body(x))
            if hidden.requires_grad and self.strength != 7:
                hidden = _Lambda.apply(hidden, self.strength)
            return self.head(hidden)

    model = place.capture(made(place, Reverses))
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, 40)):
        model.strength = 1.0 if number < 20 else 0.25
        loss = F.cross_entropy(model(x), y)
        model.strength = 0.5
        losses.append(update(optimizer, loss))
    return losses, state(model, optimizer)


# ------------------------------------------------------------- hooks


@in_place_case(
    "A hook of a layer inside comes at step 10, and goes at step 14.", expect=either("hook")
)
def hook_within_for_a_while(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    found, losses, handle = [], [], None
    for number, (x, y) in enumerate(batches(place, 26)):
        if number == 10:
            handle = model[0].register_forward_hook(
                lambda part, args, out: found.append(kept(out)) or out * 2
            )
        if number == 14:
            handle.remove()
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
    return losses, found, state(model, optimizer)


@in_place_case(
    "A hook for all modules comes at step 10, and goes at step 14.", expect=either("hook")
)
def global_hook_for_a_while(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    found, losses, handle = [], [], None
    try:
        for number, (x, y) in enumerate(batches(place, 26)):
            if number == 10:
                handle = nn.modules.module.register_module_forward_hook(
                    lambda part, args, out: found.append(type(part).__name__)
                )
            if number == 14:
                handle.remove()
            losses.append(update(optimizer, F.cross_entropy(model(x), y)))
    finally:
        if handle is not None:
            handle.remove()
    return losses, found, state(model, optimizer)


@in_place_case(
    "A hook of a weight comes at step 10 and halves its gradient.", expect=either("hook")
)
def weight_hook_for_a_while(place):
    model = place.capture(made(place, Twins))
    optimizer = sgd(model)
    found, losses, handle = [], [], None
    for number, (x, y) in enumerate(batches(place, 26)):
        if number == 10:
            handle = model.one.weight.register_hook(
                lambda one: found.append(one is None) or one * 0.5
            )
        if number == 18:
            handle.remove()
        one, two = model(x)
        loss = F.cross_entropy(two, y)
        losses.append(
            update(optimizer, loss if number in (12, 13) else loss + F.cross_entropy(one, y))
        )
    return losses, found, state(model, optimizer)


@in_place_case("A full backward hook of a layer inside comes at step 10.", expect=either("hook"))
def backward_hook_within_late(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    found, losses = [], []
    for number, (x, y) in enumerate(batches(place, 20)):
        if number == 10:
            model[3].register_full_backward_hook(
                lambda part, given, taken: found.append(kept(taken[0]))
            )
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
    return losses, found, state(model, optimizer)


# ------------------------------------------------------------- objects


@in_place_case(
    "The model is cloned by its __dict__, as learn2learn does, and adapted.", expect=either()
)
def cloned_by_its_dict(place):
    model = place.capture(made(place, nn.Linear, 8, 4))
    optimizer = sgd(model)
    found = fit(place, model, optimizer)
    clone = model.__new__(type(model))
    clone.__dict__ = model.__dict__.copy()
    clone._parameters = {name: one.detach() * 0 for name, one in model._parameters.items()}
    x, _ = batch(place, 1)
    return found, kept(clone(x)), state(model, optimizer)


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


@in_place_case("Released between forward and backward, and captured again.")
def released_between_the_passes(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, 40)):
        loss = F.cross_entropy(model(x), y)
        if number == 15:
            place.release(model)
            place.capture(model)
        losses.append(update(optimizer, loss))
    return losses, state(model, optimizer)


@in_place_case("Parent and part are captured, and called in turns.", expect=either())
def parent_and_part(place):
    model = made(place, nn.Sequential, Headed(), nn.Linear(4, 4))
    place.capture(model[0], name="part")
    place.capture(model, name="parent")
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, 40)):
        scores = model(x) if number % 2 else model[1](model[0](x))
        losses.append(update(optimizer, F.cross_entropy(scores, y)))
    return losses, state(model, optimizer)


@in_place_case("Teacher without gradients, student with: one is the other's average.")
def teacher_and_student(place):
    student = place.capture(made(place, Normed), name="student")
    teacher = copy.deepcopy(student)
    for weight in teacher.parameters():
        weight.requires_grad_(False)
    place.capture(teacher, name="teacher")
    optimizer = sgd(student)
    losses = []
    for x, y in batches(place, 24):
        with torch.no_grad():
            target = teacher(x)
        seen = teacher(x * 1.1)
        loss = F.cross_entropy(student(x), y) + F.mse_loss(
            student(x * 0.9) if len(losses) % 5 == 4 else target, seen
        )
        losses.append(update(optimizer, loss))
        with torch.no_grad():
            for one, other in zip(teacher.parameters(), student.parameters(), strict=True):
                one.lerp_(other, 0.1)
    return losses, state(student, optimizer), state(teacher)


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


@in_place_case("Forward in a thread, loss and backward in the loop.", expect=either())
def forward_in_a_thread(place):
    model = place.capture(mlp(place))
    optimizer = sgd(model)
    losses = []
    for x, y in batches(place, NUM):
        found = []
        penalty = sum(one.square().sum() for one in model.parameters()) * 0.01
        thread = threading.Thread(target=lambda found=found, x=x: found.append(model(x)))
        thread.start()
        thread.join()
        losses.append(update(optimizer, F.cross_entropy(found[0], y) + penalty))
    return losses, state(model, optimizer)


def _logged(function):
    calls = []

    @wraps(function)
    def call(*args, **kwargs):
        calls.append(1)
        return function(*args, **kwargs)

    call.calls = calls
    return call


@in_place_case(
    "forward is wrapped by a decorator that counts in Python.", expect=either("call|count")
)
def forward_is_counted(place):
    model = made(place, Headed)
    model.forward = _logged(model.forward)
    counted = model.forward
    place.capture(model)
    optimizer = sgd(model)
    return fit(place, model, optimizer), len(counted.calls), state(model, optimizer)


@in_place_case("A module with its own __call__, __getattr__ and __slots__.", expect=either())
def own_call_and_getattr(place):
    class Own(Headed):
        __slots__ = ("seen",)

        def __call__(self, x):
            return super().__call__(x * 2) + 1

        def __getattr__(self, name):
            if name == "gain":
                return 0.5
            return super().__getattr__(name)

        def forward(self, x):
            return super().forward(x) * self.gain

    model = place.capture(made(place, Own))
    optimizer = sgd(model)
    return fit(place, model, optimizer), state(model, optimizer)


@in_place_case("Lazy modules are captured before their first call.", expect=either())
def lazy_modules(place):
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyBatchNorm1d(), nn.LazyLinear(4)).to(
        place.torch_device
    )
    place.capture(model)
    torch.manual_seed(1)
    model(batch(place, 0)[0])
    optimizer = sgd(model)
    return fit(place, model, optimizer), state(model, optimizer)


@in_place_case(
    "Which of a ModuleList is used comes by number, and not all have gradients.", expect=either()
)
def expert_by_number(place):
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList([nn.Linear(8, 4) for _ in range(3)])

        def forward(self, x, which):
            return self.experts[which](x)

    model = place.capture(made(place, Experts))
    optimizer = sgd(model)
    found = []
    for number, (x, y) in enumerate(batches(place, 45)):
        found.append(update(optimizer, F.cross_entropy(model(x, number % 3), y)))
        found.append([one.grad is None for one in model.parameters()])
    return found, state(model, optimizer)


@in_place_case(
    "functional_call puts in other weights from step 12 on, and gives them gradients.",
    expect=either(),
)
def functional_call_late(place):
    model = place.capture(mlp(place))

    def step(number, x, y):
        weights = {
            name: one.detach().mul(0.5).requires_grad_() for name, one in model.named_parameters()
        }
        loss = F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)
        gradients = torch.autograd.grad(loss, list(weights.values()))
        for weight, gradient in zip(model.parameters(), gradients, strict=True):
            weight.grad = gradient
        return loss.item()

    return _late(place, model, step, num=36)


@in_place_case(
    "functional_call with derived weights (MAML): gradients reach the originals.", expect=either()
)
def functional_call_with_derived_weights(place):
    model = place.capture(mlp(place))

    def step(number, x, y):
        weights = dict(model.named_parameters())
        loss = F.cross_entropy(model(x), y)
        inner = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        adapted = {
            name: one - 0.1 * two for (name, one), two in zip(weights.items(), inner, strict=True)
        }
        outer = F.cross_entropy(torch.func.functional_call(model, adapted, (x + 1,)), y)
        outer.backward()
        return outer.item()

    return _late(place, model, step, first=0, num=40)


@in_place_case(
    "torch.func gives gradients for each sample at times.", expect=either(), devices=(CPU, GPU)
)
def gradients_per_sample_late(place):
    model = place.capture(mlp(place))
    norms = []

    def step(number, x, y):
        weights = {name: one.detach() for name, one in model.named_parameters()}

        def loss_of(weights, x, y):
            return F.cross_entropy(torch.func.functional_call(model, weights, (x[None],)), y[None])

        each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(weights, x, y)
        norms.append([one.flatten(1).norm(dim=1) for one in each.values()])
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.item()

    return _late(place, model, step), norms


@in_place_case(
    "Forward mode: a directional derivative by jvp at times.", expect=either(), devices=(CPU, GPU)
)
def jvp_late(place):
    model = place.capture(nn.Sequential(mlp(place), nn.Tanh()))
    found = []

    def step(number, x, y):
        found.append(torch.func.jvp(model, (x,), (torch.ones_like(x),)))
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.item()

    return _late(place, model, step), found


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


@in_place_case("A codebook follows, and a second backward pass comes at times.", expect=either())
def codebook_and_second_backward(place):
    model = place.capture(made(place, Codebook))
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, NUM)):
        optimizer.zero_grad()
        scores, commitment = model(x)
        loss = F.cross_entropy(scores, y)
        if number > 10 and number % 3 == 0:
            loss.backward(retain_graph=True)
            (0.25 * commitment).backward()
        else:
            (loss + 0.25 * commitment).backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


@in_place_case("Weights are clamped within forward, under no_grad.", expect=either())
def weights_are_clamped_in_forward(place):
    class Clamps(Headed):
        def forward(self, x):
            with torch.no_grad():
                self.head.weight.clamp_(-0.2, 0.2)
            return super().forward(x)

    model = place.capture(made(place, Clamps))
    optimizer = sgd(model)
    return fit(place, model, optimizer), state(model, optimizer)


@in_place_case("Batch norm with momentum=None.", expect=either())
def cumulative_batch_norm(place):
    model = made(place, Normed)
    model.norm.momentum = None
    place.capture(model)
    optimizer = sgd(model)
    return fit(place, model, optimizer), state(model, optimizer)


@in_place_case("Batch norm's momentum is annealed by the loop.", expect=either())
def momentum_is_annealed(place):
    model = place.capture(made(place, Normed))
    optimizer = sgd(model)
    losses = []
    for epoch in range(4):
        model.norm.momentum = 0.1 / (epoch + 1)
        losses += fit(place, model, optimizer, 8, start=10 * epoch)
    return losses, state(model, optimizer)


@in_place_case(
    "A buffer is replaced by the loop between the passes, and by forward.", expect=either()
)
def buffer_is_replaced(place):
    class Scaled(Headed):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x):
            return super().forward(x) + self.scale

    model = place.capture(made(place, Scaled))
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, 30)):
        loss = F.cross_entropy(model(x), y)
        if number % 7 == 6:
            model.scale = model.scale * 0.5
        losses.append(update(optimizer, loss))
    return losses, state(model, optimizer)


# ------------------------------------------------------------- gradients


@in_place_case("`.grad` objects: who holds them, and whether they are one.", expect=either())
def identity_of_gradients(place):
    model = place.capture(made(place, Normed))
    optimizer = sgd(model)
    held, found = [], []
    for number, (x, y) in enumerate(batches(place, NUM)):
        optimizer.zero_grad(set_to_none=number % 4 == 0)
        F.cross_entropy(model(x), y).backward()
        gradients = [one.grad for one in model.parameters()]
        found.append([any(one is other for other in held) for one in gradients])
        found.append([(one.stride(), one.is_contiguous(), one.requires_grad) for one in gradients])
        storages = [one.untyped_storage().data_ptr() for one in gradients]
        found.append(len(set(storages)) == len(storages))
        held += gradients
        optimizer.step()
    return found, held, state(model, optimizer)


@in_place_case("Sparse gradients of an embedding.", expect=either("sparse"), devices=(CPU, GPU))
def sparse_gradients(place):
    model = made(place, nn.Sequential, nn.Embedding(11, 8, sparse=True), nn.Linear(8, 11))
    place.capture(model)
    optimizer = sgd(model)
    losses = []
    for number in range(NUM):
        ids = tokens(place, number, 4, 6)
        losses.append(
            update(
                optimizer, F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            )
        )
    return losses, list(model.parameters())


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


@in_place_case("A part of the outputs is changed in place before backward.", expect=either())
def outputs_are_changed_in_place(place):
    model = place.capture(made(place, Twins))
    optimizer = sgd(model)
    losses = []
    for x, y in batches(place, NUM):
        one, two = model(x)
        one += 1
        two[:, :2] *= 0.5
        two.relu_()
        losses.append(update(optimizer, F.cross_entropy(one, y) + F.cross_entropy(two, y)))
    return losses, state(model, optimizer)


@in_place_case(
    "A weight is frozen between forward and backward, and thawed after.", expect=either()
)
def frozen_between_the_passes(place):
    model = place.capture(made(place, Headed))
    optimizer = sgd(model)
    found = []
    for number, (x, y) in enumerate(batches(place, 30)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if number % 3 == 2:
            model.body.weight.requires_grad_(False)
        loss.backward()
        model.body.weight.requires_grad_(True)
        found.append((loss.item(), model.body.weight.grad is None))
        optimizer.step()
    return found, state(model, optimizer)


@in_place_case("forward raises for bad batches, which the loop leaves out.", expect=either())
def forward_raises_at_times(place):
    model = place.capture(made(place, Normed))
    optimizer = sgd(model)
    losses = []
    for number in range(30):
        x, y = batch(place, number, rows=1 if number % 4 == 3 else 6)
        try:
            losses.append(update(optimizer, F.cross_entropy(model(x), y)))
        except ValueError:
            losses.append("too few")
    return losses, state(model, optimizer)


@in_place_case(
    "A hook of an output raises in some backward passes; the loop goes on.", expect=either()
)
def backward_raises_at_times(place):
    model = place.capture(made(place, Normed))
    optimizer = sgd(model)
    losses = []

    def fail(gradient):
        raise RuntimeError("no")

    for number, (x, y) in enumerate(batches(place, 30)):
        scores = model(x)
        if number % 5 == 4:
            scores.register_hook(fail)
        loss = F.cross_entropy(scores, y)
        try:
            losses.append(update(optimizer, loss))
        except RuntimeError:
            losses.append("failed")
    return losses, state(model, optimizer)


@in_place_case("Models come and go: 12 are captured, trained and let go.", expect=either())
def models_come_and_go(place):
    found, refs = [], []
    for number in range(6):
        model = place.capture(mlp(place), name=f"m{number}")
        optimizer = sgd(model)
        found.append(fit(place, model, optimizer, 8))
        refs.append(weakref.ref(model))
        place.release(model)
        del model, optimizer
    gc.collect()
    return found, [ref() is None for ref in refs]


@in_place_case(
    "Captured models that are never released are let go with the loop's last name.",
    expect=either(),
)
def models_are_let_go(place):
    found, refs = [], []
    for _ in range(4):
        model = place.capture(mlp(place), name="model")
        optimizer = sgd(model)
        found.append(fit(place, model, optimizer, 10))
        refs.append(weakref.ref(model))
        place.objects.clear()
        del model, optimizer
    gc.collect()
    return found, [ref() is None for ref in refs]


@in_place_case("Two activations are arguments, which from step 11 on are one.", expect=either())
def arguments_become_one(place):
    class Two(Headed):
        def forward(self, x, other):
            return (
                super().forward(x) + super().forward(other * 2) * x.mean() + other.square().sum()
            )

    bodies = made(place, nn.ModuleList, [nn.Linear(8, 8), nn.Linear(8, 8)])
    model = place.capture(made(place, Two))
    both = nn.ModuleList([bodies, model])
    optimizer = sgd(both, lr=0.01)
    losses = []
    for number, (x, y) in enumerate(batches(place, 24)):
        one, two = bodies[0](x), bodies[1](x)
        losses.append(
            update(optimizer, F.cross_entropy(model(one, two if number < 11 else one), y))
        )
    return losses, state(both, optimizer)


@in_place_case("An argument is one of the model's weights from step 11 on.", expect=either())
def argument_becomes_own_weight(place):
    model = place.capture(made(place, TakesWeight))
    optimizer = sgd(model)
    other = model.embed.weight.detach().clone().requires_grad_()
    losses = []
    for number in range(NUM):
        ids = tokens(place, number, 4, 5)
        weight = other if number < 11 else model.embed.weight
        scores = model(ids[:, :-1], weight).flatten(0, 1)
        losses.append(update(optimizer, F.cross_entropy(scores, ids[:, 1:].flatten())))
    return losses, state(model, optimizer), other.grad


@in_place_case(
    "Loss and logits are returned, and from step 12 on the loop's loss is of the logits.",
    expect=either(),
)
def loss_moves_to_another_output(place):
    class Answers(Headed):
        def forward(self, x, y):
            scores = super().forward(x)
            return F.cross_entropy(scores, y), scores

    model = place.capture(made(place, Answers))
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, 40)):
        loss, scores = model(x, y)
        if number >= 12:
            loss = loss + F.mse_loss(scores, torch.zeros_like(scores))
        losses.append(update(optimizer, loss))
    return losses, state(model, optimizer)


@in_place_case("The loop takes its loss from the logits, beside the loss that comes with them.")
def loss_and_logits_are_both_used(place):
    class Answers(Headed):
        def forward(self, x, y):
            scores = super().forward(x)
            return F.cross_entropy(scores, y), scores

    model = place.capture(made(place, Answers))
    optimizer = sgd(model)
    losses = []
    for x, y in batches(place, 40):
        loss, scores = model(x, y)
        losses.append(update(optimizer, loss + scores.square().mean()))
    return losses, state(model, optimizer)


@in_place_case(
    "A backward pass through the loss, then one through the logits behind it, at times.",
    expect=either(),
)
def logits_go_backward_after_the_loss(place):
    class Answers(Headed):
        def forward(self, x, y):
            scores = super().forward(x)
            return F.cross_entropy(scores, y), scores

    model = place.capture(made(place, Answers))
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, 30)):
        optimizer.zero_grad()
        loss, scores = model(x, y)
        if number % 4 == 3:
            loss.backward(retain_graph=True)
            scores.square().mean().backward()
        else:
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


class Interpolated(nn.Module):
    """Counts its forward calls, which a replay must not make."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x, out=None, names=("a", "b"), *, extra=None):
        scores = self.layer(x)
        return {"scores": scores, "names": names, "extra": extra, "nested": [{"x": x.sum()}, None]}


@in_place_case(
    "Arguments that are plain come back in the result, as the objects of this call.",
    expect=either(),
)
def arguments_come_back(place):
    model = place.capture(made(place, Interpolated))
    optimizer = sgd(model)
    found = []
    for number, (x, y) in enumerate(batches(place, 30)):
        extra = {"step": number % 2, "tags": ["t"]}
        out = model(x, extra=extra)
        found.append((out["extra"] == extra, out["names"], out["nested"][0]["x"].detach().clone()))
        out["nested"].append(number)
        out["names"] = number
        found.append(update(optimizer, F.cross_entropy(out["scores"], y)))
    return found, state(model, optimizer)


@in_place_case(
    "An argument that is None or a list is filled by forward.",
    expect=either("change|argument|list|host"),
)
def forward_fills_a_list(place):
    class Fills(Headed):
        def forward(self, x, taps):
            hidden = F.relu(self.body(x))
            taps.append(hidden)
            return self.head(hidden)

    model = place.capture(made(place, Fills))
    optimizer = sgd(model)
    losses = []
    for x, y in batches(place, NUM):
        taps = []
        loss = F.cross_entropy(model(x, taps), y) + taps[0].square().mean()
        losses.append((update(optimizer, loss), len(taps)))
    return losses, state(model, optimizer)


@in_place_case("The batch's memory is let go and used again before backward.", expect=either())
def batch_memory_is_used_again(place):
    model = place.capture(made(place, Normed))
    optimizer = sgd(model)
    losses = []
    for number in range(30):
        x, y = batch(place, number)
        scores = model(x)
        x.fill_(9.0) if number < 0 else None
        del x
        junk = [torch.full((6, 8), 1e9, device=place.torch_device) for _ in range(8)]
        losses.append(update(optimizer, F.cross_entropy(scores, y)))
        del junk
    return losses, state(model, optimizer)


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


@in_place_case(
    "Only the biases are trained, and clamped between forward and backward.", expect=either()
)
def biases_are_clamped_between(place):
    model = made(place, Headed)
    for name, weight in model.named_parameters():
        weight.requires_grad_("bias" in name)
    place.capture(model)
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
    losses = []
    for x, y in batches(place, NUM):
        loss = F.cross_entropy(model(x), y)
        with torch.no_grad():
            model.body.bias.clamp_(-0.1, 0.1)
        losses.append(update(optimizer, loss))
    return losses, state(model, optimizer)


@in_place_case(
    "Gradients go into buffers that DDP-like code made: `.grad` set to views, each step.",
    expect=either(),
)
def gradients_are_set_anew_each_step(place):
    model = place.capture(made(place, Normed))
    optimizer = sgd(model)
    weights = list(model.parameters())
    losses = []
    for x, y in batches(place, NUM):
        flat = torch.zeros(sum(one.numel() for one in weights), device=place.torch_device)
        for weight, part in zip(
            weights, flat.split([one.numel() for one in weights]), strict=True
        ):
            weight.grad = part.view_as(weight)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        losses.append((loss.item(), flat.norm().item()))
        optimizer.step()
    return losses, state(model, optimizer)


@in_place_case(
    "Outputs are unbound views of one tensor, and go into different losses.", expect=either()
)
def outputs_are_unbound(place):
    class Splits(Headed):
        def forward(self, x):
            return super().forward(x).unbind(1)

    model = place.capture(made(place, Splits))
    optimizer = sgd(model)
    losses = []
    for x, _ in batches(place, NUM):
        one, two, three, _ = model(x)
        losses.append(update(optimizer, one.square().mean() + (two * three).mean()))
    return losses, state(model, optimizer)


@in_place_case(
    "An output is a broken-up view with gaps, changed in place by the loop.", expect=either()
)
def output_is_a_strided_view(place):
    class Strides(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 12)

        def forward(self, x):
            return self.layer(x)[:, ::3], self.layer(x).t()[:4]

    model = place.capture(made(place, Strides))
    optimizer = sgd(model)
    losses = []
    for x, y in batches(place, NUM):
        one, two = model(x)
        losses.append(
            (
                update(optimizer, F.cross_entropy(one, y) + F.cross_entropy(two.t(), y)),
                one.stride(),
                two.stride(),
            )
        )
    return losses, state(model, optimizer)


@in_place_case("300 batches of growing width, some come again.", expect=either())
def three_hundred_shapes(place):
    model = place.capture(made(place, nn.Sequential, nn.Linear(8, 8), nn.Tanh()))
    optimizer = sgd(model)
    losses = []
    for number in range(300):
        rows = 1 + number if number % 3 else 7
        losses.append(update(optimizer, model(floats(place, number, rows, 8)).square().mean()))
    return losses, state(model, optimizer)


@in_place_case(
    "A model is captured while its own forward runs, and released within.", expect=either()
)
def captured_and_released_within(place):
    class Releases(Headed):
        def forward(self, x):
            return super().forward(x)

    model = place.capture(made(place, Releases))
    optimizer = sgd(model)
    calls = []

    def hook(part, args):
        calls.append(1)
        if len(calls) == 12:
            place.release(model)
        if len(calls) == 14:
            place.capture(model)

    model.register_forward_pre_hook(hook)
    return fit(place, model, optimizer, 40), len(calls), state(model, optimizer)


@in_place_case(
    "Weights and gradients are in float64, inputs too; then `.to(float32)` in the middle.",
    expect=either(),
)
def dtype_changes_twice(place):
    model = place.capture(mlp(place).double())
    losses = []
    for dtype in (torch.float64, torch.float32, torch.float64):
        model.to(dtype)
        optimizer = sgd(model)
        for number in range(12):
            x, y = batch(place, number)
            losses.append(update(optimizer, F.cross_entropy(model(x.to(dtype)), y)))
    return losses, state(model, optimizer)


@in_place_case(
    "An input with gradients is filled anew by the loop: one leaf, whose gradient adds up.",
    expect=either(),
)
def one_input_leaf(place):
    model = place.capture(mlp(place))
    x = place.moved(torch.zeros(6, 8)).requires_grad_()
    optimizer = sgd(model)
    found = []
    for number, (data, y) in enumerate(batches(place, NUM)):
        with torch.no_grad():
            x.copy_(data)
        found.append(update(optimizer, F.cross_entropy(model(x), y)))
        found.append(kept(x.grad))
        if number % 5 == 4:
            x.grad = None
    return found, state(model, optimizer)


@in_place_case(
    "Latent codes are optimized with the network: an embedding outside gives sliced rows.",
    expect=either(),
)
def latent_codes(place):
    codes = nn.Embedding(30, 8).to(place.torch_device)
    with torch.no_grad():
        codes.weight.copy_(floats(place, 0, 30, 8))
    model = place.capture(mlp(place))
    both = nn.ModuleList([codes, model])
    optimizer = sgd(both)
    losses = []
    for number in range(24):
        _, y = batch(place, number)
        rows = codes.weight[number : number + 6] if number % 2 else codes(tokens(place, number, 6))
        losses.append(update(optimizer, F.cross_entropy(model(rows), y) + rows.square().mean()))
    return losses, state(both, optimizer)
