"""Steps that change what is no value: attributes, flags and versions of tensors, hooks, parts of modules."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from hazards.captured_harness import CAPTURED, captured_case, refused
from hazards.captured_models import batches, kept, mlp, sgd, state


NUM = 16


def run(step, pairs):
    """Call the step with both parts of each batch; return copies of the losses."""
    return [kept(step(x, y)) for x, y in pairs]


def trained(place, after, *, model=None, loss_of=None, num=NUM):
    """Train; `after(loss)` is called at the end of each step."""
    model = mlp(place) if model is None else model
    optimizer = sgd(model)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) if loss_of is None else loss_of(x, y)
        loss.backward()
        optimizer.step()
        after(loss.detach())
        return loss.detach()

    return run(place.capture(step), batches(place, num)), state(model, optimizer)


# ------------------------------------------------------------------------- attributes of tensors


@captured_case("The step freezes a layer, or trains it again, in turns.", expect=refused("weight"))
def frozen_in_turns(place):
    model = mlp(place)
    first = model[0]
    return trained(
        place, lambda loss: first.requires_grad_(not first.weight.requires_grad), model=model
    )


# --------------------------------------------------------------------------------------- batches


@captured_case("The step leaves its prediction at its batch.", expect=refused("an attribute"))
def prediction_at_the_batch(place):
    model, found = mlp(place), []
    optimizer = sgd(model)

    def step(x, y):
        optimizer.zero_grad()
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        x.scores = scores.detach()
        return loss.detach()

    step = place.capture(step)
    for x, y in batches(place, NUM):
        step(x, y)
        found.append(x.scores.clone())
    return found, state(model, optimizer)


def attack_on(place, model):
    """Return a captured step that leaves the gradient of its features at them."""

    def step(x, y):
        x.requires_grad_()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    return place.capture(step)


@captured_case("The batch gets gradients, for an attack.", expect=CAPTURED)
def gradients_of_the_batch(place):
    model, found = mlp(place), []
    step = attack_on(place, model)
    for x, y in batches(place, NUM):
        found += [kept(step(x, y)), kept(x.grad), x.requires_grad]
    return found, state(model)


# -------------------------------------------------------------------------------------- versions


@captured_case(
    "A step keeps what follows from a weight until its version is another.",
    expect=refused("version"),
)
def kept_by_version_within(place):
    model, known = mlp(place), {}
    target = place.moved(torch.randn(4, 8, generator=torch.Generator().manual_seed(3)))

    def step(x, y):
        if known.get("version") != target._version:
            known["version"], known["rows"] = target._version, F.normalize(target, dim=1)
        return F.mse_loss(model(x), x @ known["rows"].t()).detach()

    step, found = place.capture(step), []
    for number, (x, y) in enumerate(batches(place, NUM)):
        found.append(step(x, y))
        if number % 4 == 3:
            target.lerp_(model[0].weight.detach()[:4], 0.5)
    return found


# ------------------------------------------------------------------------------ hooks and parts


@captured_case("The step adds a hook to a layer in each call.", expect=refused("hooks"))
def hooks_of_a_layer(place):
    model = mlp(place)
    found = trained(
        place,
        lambda loss: model[0].register_forward_hook(lambda m, i, out: out * 0.9),
        model=model,
    )
    return found, len(model[0]._forward_hooks)
