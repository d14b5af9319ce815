"""Steps that change what is no value: attributes, flags and versions of tensors, hooks, parts of modules."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from hazards.captured_harness import CAPTURED, EITHER, captured_case, refused
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


@captured_case("Each weight has its momentum as an attribute.", expect=CAPTURED)
def momentum_at_the_weights(place):
    model = mlp(place)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        weights = list(model.parameters())
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            with torch.no_grad():
                before = getattr(weight, "momentum", None)
                weight.momentum = gradient if before is None else 0.9 * before + gradient
                weight.sub_(0.05 * weight.momentum)
        return loss.detach()

    losses = run(place.capture(step), batches(place, NUM))
    return losses, [weight.momentum for weight in model.parameters()], state(model)


@captured_case("Each weight counts its updates in an attribute.", expect=refused("count"))
def weights_count(place):
    model = mlp(place)

    def after(loss):
        for weight in model.parameters():
            weight.count = getattr(weight, "count", 0) + 1

    return trained(place, after, model=model), [weight.count for weight in model.parameters()]


@captured_case("A list that is an attribute of a weight grows.", expect=refused("log"))
def a_list_at_a_weight(place):
    model = mlp(place)
    weight = next(model.parameters())
    weight.log = []
    return trained(place, lambda loss: weight.log.append(len(weight.log))), weight.log


@captured_case("A tensor that is no weight is given a gradient in each step.", expect=EITHER)
def gradient_of_no_weight(place):
    anchor = place.moved(torch.zeros(()))

    def after(loss):
        anchor.grad = loss * 2

    found = trained(place, after)
    return found, anchor.grad


@captured_case("The step freezes a layer, or trains it again, in turns.", expect=refused("weight"))
def frozen_in_turns(place):
    model = mlp(place)
    first = model[0]
    return trained(
        place, lambda loss: first.requires_grad_(not first.weight.requires_grad), model=model
    )


@captured_case("A tensor gets one dimension more in each step, in place.", expect=refused("grows"))
def unsqueezed(place):
    grows = place.moved(torch.zeros(2))
    return trained(place, lambda loss: grows.unsqueeze_(0)), grows.dim()


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


@captured_case(
    "Batches come again in each epoch, with the gradients that they had.", expect=EITHER
)
def gradients_of_the_batch_add_up(place):
    model, found = mlp(place), []
    step, data = attack_on(place, model), list(batches(place, 6))
    for epoch in range(5):
        for x, y in data:
            found += [kept(step(x, y)), kept(x.grad)]
            if epoch % 2:
                x.requires_grad_(False)
            if epoch == 3:
                x.grad = None
    return found, state(model)


@captured_case(
    "The batch requires gradients, for a penalty, and still does so behind.", expect=CAPTURED
)
def batch_requires_gradients(place):
    model, found = mlp(place), []
    optimizer = sgd(model)

    def step(x, y):
        optimizer.zero_grad()
        x.requires_grad_()
        loss = F.cross_entropy(model(x), y)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        torch.autograd.backward(loss + slope.square().sum(), inputs=list(model.parameters()))
        optimizer.step()
        return loss.detach()

    step = place.capture(step)
    for x, y in batches(place, NUM):
        found += [step(x, y), x.requires_grad, x.grad is None]
    return found, state(model, optimizer)


class Pair(nn.Module):
    """Asks whether it is given one tensor or two."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, a, b):
        return self.net(a) if a is b else self.net(a) + self.net(b)


@captured_case("The step asks whether two of its arguments are one.", expect=CAPTURED)
def one_argument_or_two(place):
    model = Pair(mlp(place))
    optimizer = sgd(model)

    def step(a, b, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(a, b), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = place.capture(step)
    found = []
    for number, (x, y) in enumerate(batches(place, 24)):
        found.append(step(x, x if number % 3 else x.flip(0), y))
    return found, state(model, optimizer)


@captured_case("Self-attention, whose query is its key.", expect=CAPTURED)
def query_is_key(place):
    model = nn.MultiheadAttention(8, 2, batch_first=True).to(place.torch_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step(q, k, v):
        optimizer.zero_grad()
        loss = model(q, k, v, need_weights=False)[0].square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = place.capture(step)
    found = [step(x[None], x[None], x[None]) for x, _ in batches(place, 4)]
    for x, _ in batches(place, NUM):
        x = x[None]
        found.append(step(x, x, x))
    return found, state(model, optimizer)


class Images(list):
    """A batch that says how it was scaled."""


class Noted(dict):
    """A batch with notes beside its tensors."""


@captured_case("A batch is a dictionary with a list of numbers beside it.", expect=CAPTURED)
def notes_beside_the_parts(place):
    model = mlp(place)
    step = place.capture(
        lambda one: F.cross_entropy(model(one["x"]), one["y"]).detach() * one.notes["scales"][0]
    )
    found = []
    for number, (x, y) in enumerate(batches(place, NUM)):
        one = Noted(x=x, y=y)
        one.notes = {"scales": [0.5 if number >= 7 else 1.0]}
        found.append(step(one))
    return found


class Rounded(float):
    def __repr__(self):
        return f"{float(self):.1f}"


class Phase(enum.Enum):
    FIRST, LAST = 1.0, 0.5

    def __repr__(self):
        return "<a phase>"


@captured_case("A batch is a user's list with a number of its own.", expect=CAPTURED)
def attribute_of_a_list(place):
    model = mlp(place)
    step = place.capture(lambda one: F.cross_entropy(model(one[0]), one[1]).detach() * one.scale)
    found = []
    for number, (x, y) in enumerate(batches(place, NUM)):
        one = Images([x, y])
        one.scale = 0.5 if number >= 7 else 1.0
        found.append(step(one))
    return found


@captured_case("Numbers and texts of the user's classes show less than they are.", expect=CAPTURED)
def texts_that_hide(place):
    model = mlp(place)
    step = place.capture(
        lambda x, y, rate, phase: F.cross_entropy(model(x), y).detach() * float(rate) * phase.value
    )
    found = []
    for number, (x, y) in enumerate(batches(place, 24)):
        rate = Rounded(0.71 if number >= 7 else 0.74)
        found.append(step(x, y, rate, Phase.LAST if number >= 15 else Phase.FIRST))
    return found


@dataclasses.dataclass
class Node:
    x: torch.Tensor
    y: torch.Tensor
    parent: object = None


@captured_case("A batch leads back to itself.", expect=refused("Node"))
def cyclic_batch(place):
    model, found = mlp(place), []
    step = place.capture(lambda node: F.cross_entropy(model(node.x), node.y).detach())
    for x, y in batches(place, 6):
        node = Node(x, y)
        node.parent = node
        found.append(step(node))
    return found


# -------------------------------------------------------------------------------------- versions


@captured_case(
    "The loop keeps what follows from a weight until its version is another.", expect=CAPTURED
)
def kept_by_version(place):
    model = mlp(place)
    optimizer = sgd(model)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step, version, found = place.capture(step), None, []
    for x, y in batches(place, NUM):
        step(x, y)
        weight = model[0].weight
        if weight._version != version:
            norm, version = weight.detach().norm(), weight._version
        found.append(norm.clone())
    return found, state(model, optimizer)


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


@captured_case("The step adds a hook to an optimizer in each call.", expect=refused("hooks"))
def hooks_of_an_optimizer(place):
    model, other = mlp(place), torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    optimizer = sgd(model)

    def decay(*_):
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(0.99)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.register_step_post_hook(decay)
        return loss.detach()

    losses = run(place.capture(step), batches(place, NUM))
    return (
        losses,
        len(optimizer._optimizer_step_post_hooks),
        state(model, optimizer),
        len(other.state),
    )


@captured_case("The step registers a parameter in each call.", expect=refused("extra"))
def parameters_that_come(place):
    model = mlp(place)

    def after(loss):
        name = f"extra{len(list(model.parameters()))}"
        model.register_parameter(name, nn.Parameter(place.moved(torch.zeros(1))))

    found = trained(place, after, model=model)
    return found, len(list(model.parameters()))


@captured_case("The step appends to a ModuleList.", expect=refused("ModuleList"))
def layers_that_come(place):
    layers = nn.ModuleList()
    return trained(place, lambda loss: layers.append(nn.Identity())), len(layers)


@captured_case("A teacher is given the weights as its own tensors in each step.", expect=refused())
def assigned_teacher(place):
    model = mlp(place)
    teacher = copy.deepcopy(model)

    def after(loss):
        weights = {name: one.detach().clone() for name, one in model.state_dict().items()}
        teacher.load_state_dict(weights, assign=True)

    def loss_of(x, y):
        scores = model(x)
        return F.cross_entropy(scores, y) + F.mse_loss(scores, teacher(x).detach())

    return trained(place, after, model=model, loss_of=loss_of)


@captured_case(
    "The rate of torch's dropout is set by a name that is read.", expect=refused("drop.p")
)
def set_by_a_name(place):
    model, drop, names = mlp(place), nn.Dropout(0.1), ["p"]

    def after(loss):
        for name in names:
            setattr(drop, name, 0.5 if drop.p == 0.1 else 0.1)

    return trained(place, after, model=model), drop.p


# ----------------------------------------------------------------------------- other containers


@captured_case("Tasks take turns: the first goes to the end.", expect=refused("tasks"))
def order_of_a_dictionary(place):
    tasks, found = collections.OrderedDict(a=1, b=2, c=3), []
    model = mlp(place)

    def step(x, y):
        loss = F.cross_entropy(model(x), y).detach()
        tasks.move_to_end(next(iter(tasks)))
        return loss

    step = place.capture(step)
    for x, y in batches(place, NUM):
        found += [step(x, y), "".join(tasks)]
    return found


@captured_case("A count stands in an array of objects.", expect=refused("log"))
def array_of_objects(place):
    log = np.array([0, None], dtype=object)

    def after(loss):
        log[0] += 1

    return trained(place, after), log[0]


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)
        self.count: int = 0

    def forward(self, x):
        self.count += 1
        return self.inner(x) * (1.0 if self.count < 8 else 0.5)


@captured_case("A scripted module counts its calls, and goes by the count.", expect=refused())
def scripted_count(place):
    torch.manual_seed(3)
    model = torch.jit.script(Counting().to(place.torch_device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = run(place.capture(step), batches(place, NUM))
    return losses, model.count, list(model.parameters())


# -------------------------------------------------------------------------------- torch's settings


@captured_case(
    "The precision of float32 is set in torch's new way in the middle.", expect=CAPTURED
)
def new_way_of_precision(place):
    products = torch.backends.cuda.matmul
    before, model = products.fp32_precision, mlp(place)
    step = place.capture(lambda x, y: F.cross_entropy(model(x), y).detach())
    found = []
    try:
        for number, (x, y) in enumerate(batches(place, NUM)):
            if number == 8:
                products.fp32_precision = "tf32"
            found.append(step(x, y))
    finally:
        products.fp32_precision = before
    return [one.shape for one in found]


@captured_case("What a step reads of torch's choice of kernels changes.", expect=CAPTURED)
def choice_of_kernels(place):
    products = torch.backends.cuda.matmul
    before, model = products.allow_bf16_reduced_precision_reduction, mlp(place)
    step = place.capture(
        lambda x, y: (
            F.cross_entropy(model(x), y).detach()
            * (1.0 if products.allow_bf16_reduced_precision_reduction else 0.5)
        )
    )
    found = []
    try:
        for number, (x, y) in enumerate(batches(place, NUM)):
            if number == 8:
                products.allow_bf16_reduced_precision_reduction = not before
            found.append(step(x, y))
    finally:
        products.allow_bf16_reduced_precision_reduction = before
    return found
