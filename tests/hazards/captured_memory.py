"""Loops in which memory that a step uses is let go, replaced, shared or kept."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_harness import CAPTURED, EITHER, captured_case
from hazards.captured_models import (
    batches,
    mlp,
    poison,
    run,
    state,
    training_step,
)


# ------------------------------------------------------------------- validation between steps


@captured_case(
    "The model under autocast is validated between steps, which caches casts of weights.",
    expect=EITHER,
)
def validation_fills_the_autocast_cache(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batch):
        x, y = batch
        with torch.autocast(place.torch_device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    losses, scores = [], []
    for number, batch in enumerate(batches(place, 20)):
        with torch.autocast(place.torch_device.type, dtype=torch.bfloat16):
            losses += run(step, [batch])
            if number % 2:
                with torch.no_grad():
                    scores.append(model(next(batches(place, 1))[0]))
    return losses, scores, state(model, optimizer)


# -------------------------------------------------------------------------- weights replaced


@captured_case(
    "For validation `.data` is swapped with averages, and swapped back.", expect=CAPTURED
)
def averages_are_swapped_in_and_out(place):
    model = mlp(place)
    averages = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer))

    def swap():
        for number, parameter in enumerate(model.parameters()):
            averages[number], parameter.data = parameter.data, averages[number]

    losses, scores = [], []
    for number, batch in enumerate(batches(place, 20)):
        losses += run(step, [batch])
        for average, parameter in zip(averages, model.parameters(), strict=True):
            average.mul_(0.9).add_(parameter.detach(), alpha=0.1)
        if number % 5 == 4:
            swap()
            with torch.no_grad():
                scores.append(model(next(batches(place, 1))[0]))
            swap()
    return losses, scores, averages, state(model, optimizer)


@captured_case(
    "A checkpoint is loaded with assign=True; a new optimizer follows.", expect=CAPTURED
)
def checkpoint_is_assigned_with_a_new_optimizer(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train(batch):
        x, y = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    losses = run(step, batches(place, 20))
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(saved, assign=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    held = poison(place, (16, 8), (16,), (4, 16), (4,))
    losses += run(step, batches(place, 20))
    return losses, held, state(model, optimizer)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.out = nn.Linear(8, 12, bias=False)

    def forward(self, ids):
        return self.out(self.embed(ids))


def _ids(place, count):
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(12, (2, 5), generator=generator) for _ in range(count)]
    return [(row.to(place.torch_device), row.flip(0).to(place.torch_device)) for row in rows]


def _token_loss(scores, ids):
    return F.cross_entropy(scores.flatten(0, 1), ids.flatten())


@captured_case(
    "Output weights are tied to the embedding in the middle of training.", expect=CAPTURED
)
def weights_are_tied(place):
    model = Tied().to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(training_step(model, optimizer, loss_of=_token_loss))
    losses = run(step, _ids(place, 20))
    model.out.weight = model.embed.weight
    held = poison(place, (12, 8))
    losses += run(step, _ids(place, 20))
    return losses, held, state(model, optimizer)


# ------------------------------------------------------------------------------- gradients


@captured_case("Two calls accumulate before gradients are let go outside.", expect=CAPTURED)
def gradients_accumulate_over_two_calls(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def add_gradients(batch):
        x, y = batch
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    step = place.capture(add_gradients)
    losses = []
    for number, batch in enumerate(batches(place, 40)):
        losses += run(step, [batch])
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    return losses, state(model, optimizer)


# --------------------------------------------------------------- buffers, caches, wrappers


class Masked(nn.Module):
    """Attention scores under a causal mask that is cached and grows."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.mask = None

    def forward(self, x):
        length = x.size(1)
        if self.mask is None or self.mask.size(0) < length:
            self.mask = torch.ones(length, length, device=x.device).triu(1) * -9.0
        scores = self.project(x) @ x.transpose(1, 2) + self.mask[:length, :length]
        return scores.softmax(-1) @ x


def _masked_step(model, optimizer):
    def train(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return train


@captured_case("A causal mask is cached and grows as longer batches come.", expect=EITHER)
def cached_mask_grows(place):
    model = Masked().to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(_masked_step(model, optimizer))
    lengths = [4] * 10 + [6] * 10 + [4] * 8 + [7] * 6 + [4, 6, 7] * 4
    losses, held = [], []
    for number, length in enumerate(lengths):
        x = torch.randn(2, length, 8, generator=torch.Generator().manual_seed(number))
        losses += run(step, [x.to(place.torch_device)])
        if number in (10, 28):
            held.append(poison(place, (4, 4), (6, 6)))
    return losses, held, state(model, optimizer)


# -------------------------------------------------------------- memory let go and handed out


@captured_case("A tensor of the closure is replaced by another before each call.", expect=EITHER)
def tensor_is_replaced_each_call(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = torch.ones(4).to(place.torch_device)

    def train(batch):
        x, y = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, weight=weights)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    losses, held = [], []
    for number, batch in enumerate(batches(place, 18)):
        weights = torch.tensor([1.0, 2.0, 3.0, 1.0 + number]).to(place.torch_device)
        held.append(torch.full((4,), 1e9, device=place.torch_device))
        losses += run(step, [batch])
    return losses, held, state(model, optimizer)


CLASS_WEIGHTS = None


@captured_case(
    "Class weights are a global that is bound again for the second epoch.", expect=CAPTURED
)
def global_tensor_is_bound_again(place):
    global CLASS_WEIGHTS
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batch):
        x, y = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, weight=CLASS_WEIGHTS)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    losses = []
    for factors in ([1.0, 2.0, 3.0, 4.0], [4.0, 1.0, 1.0, 1.0]):
        CLASS_WEIGHTS = torch.tensor(factors).to(place.torch_device)
        held = poison(place, (4,))
        losses += run(step, batches(place, 20))
    CLASS_WEIGHTS = None
    return losses, held, state(model, optimizer)


# ------------------------------------------------------------------------------- results


@captured_case("All results are kept to the end, without copies.", expect=CAPTURED)
def results_are_kept(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batch):
        x, y = batch
        optimizer.zero_grad()
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "scores": scores.detach(), "best": scores.argmax(1)}

    step = place.capture(train)
    return [step(batch) for batch in batches(place, 18)], state(model, optimizer)


@captured_case(
    "The forward pass alone is the step; backward and update are outside.", expect=EITHER
)
def backward_is_outside(place):
    model = mlp(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = place.capture(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
    losses = []
    for batch in batches(place, 18):
        optimizer.zero_grad()
        loss = step(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, state(model, optimizer)
