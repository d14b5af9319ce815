"""Objects captured in place, in loops where features of torch and of Python meet as few have them."""

from __future__ import annotations

import copy
import functools
import pickle
import types

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from hazards.captured_harness import snapshot
from hazards.captured_models import Headed, batch, batches, kept, mlp, sgd, state
from hazards.in_place_harness import captured, either, in_place_case
from hazards.in_place_models import NUM, Normed, Tied, fit, floats, made, tokens, update


def with_late(place, model, late, *, first=10, every=3):
    """Train plainly, and call `late(number, x, y)` before some of the steps."""
    place.capture(model)
    optimizer, found = sgd(model), []
    for number, (x, y) in enumerate(batches(place, NUM)):
        if number >= first and (number - first) % every == 0:
            found.append(late(number, x, y))
        found.append(update(optimizer, F.cross_entropy(model(x), y)))
    return found, state(model, optimizer)


# --------------------------------------------------------------- what stands for `forward`


class Scorer(nn.Module):
    """A body and a head, with its own name for the activation."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


class Doubler(Scorer):
    """Gives twice the scores."""

    def forward(self, x):
        return 2 * super().forward(x)


@in_place_case(
    "`forward` of the class is replaced after the capture, and put back.", expect=either()
)
def forward_of_the_class_is_replaced(place):
    model = made(place, Scorer)
    place.capture(model)
    optimizer, as_written = sgd(model), Scorer.forward
    losses = fit(place, model, optimizer, 8)
    try:
        Scorer.forward = lambda self, x: self.head(torch.tanh(self.body(x)))
        losses += fit(place, model, optimizer, 8, start=8)
    finally:
        Scorer.forward = as_written
    losses += fit(place, model, optimizer, 8, start=16)
    return losses, state(model, optimizer)


@in_place_case(
    "The model gets another class after the capture, with a `forward` of its own.", expect=either()
)
def model_gets_another_class(place):
    model = made(place, Scorer)
    place.capture(model)
    optimizer = sgd(model)
    losses = fit(place, model, optimizer, 8)
    model.__class__ = Doubler
    losses += fit(place, model, optimizer, 8, start=8)
    model.__class__ = Scorer
    losses += fit(place, model, optimizer, 8, start=16)
    return losses, state(model, optimizer)


@in_place_case(
    "`model.forward` is wrapped by the loop after the capture, as Accelerate does.",
    expect=either(),
)
def forward_is_wrapped_late(place):
    model = made(place, Scorer)
    place.capture(model)
    optimizer = sgd(model)
    losses = fit(place, model, optimizer, 8)
    before = model.forward

    @functools.wraps(before)
    def halved(*args, **kwargs):
        return 0.5 * before(*args, **kwargs)

    model.forward = halved
    losses += fit(place, model, optimizer, 8, start=8)
    model.forward = before
    losses += fit(place, model, optimizer, 8, start=16)
    return losses, state(model, optimizer)


@in_place_case("`model.forward` is bound to another function, and deleted again.", expect=either())
def forward_is_bound_and_deleted(place):
    model = made(place, Scorer)
    place.capture(model)
    optimizer = sgd(model)
    losses = fit(place, model, optimizer, 8)
    model.forward = types.MethodType(lambda self, x: self.head(torch.tanh(self.body(x))), model)
    losses += fit(place, model, optimizer, 8, start=8)
    del model.forward
    losses += fit(place, model, optimizer, 8, start=16)
    return losses, state(model, optimizer)


class Folded(nn.Module):
    """Folds a sequence by calling itself on halves, as a tree does."""

    def __init__(self):
        super().__init__()
        self.join, self.head = nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x, is_top=True):
        if len(x) > 1:
            half = len(x) // 2
            parts = self(x[:half], is_top=False), self(x[half:], is_top=False)
            x = torch.tanh(self.join(torch.cat(parts, -1)))[None]
        return self.head(x[0]) if is_top else x[0]


@in_place_case("forward calls the model itself, on halves of its sequence.", expect=either())
def forward_calls_itself(place):
    model = made(place, Folded)
    place.capture(model)
    optimizer, losses = sgd(model), []
    for number in range(NUM):
        x, y = floats(place, number, 4, 3, 8), tokens(place, number, 3, most=4)
        losses.append(update(optimizer, F.cross_entropy(model(x), y)))
    return losses, state(model, optimizer)


class Caller(nn.Module):
    """Calls another model, which may call this one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.other = []

    def forward(self, x, depth=3):
        x = torch.tanh(self.layer(x))
        return self.other[0](x, depth=depth - 1) if depth else x


@in_place_case("Two captured models call each other, some levels deep.", expect=either())
def models_call_each_other(place):
    first, second = made(place, Caller), made(place, Caller)
    first.other, second.other = [second], [first]
    place.capture(first, name="first")
    place.capture(second, name="second")
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    losses = []
    for x, _ in batches(place, NUM):
        losses.append(update(optimizer, first(x).square().mean()))
        losses.append(update(optimizer, second(x, depth=1).square().mean()))
    return losses, state(first, optimizer), state(second)


class Outer(nn.Module):
    """A model whose part is of a class of the user's."""

    def __init__(self):
        super().__init__()
        self.part, self.head = Scorer(), nn.Linear(4, 4)

    def forward(self, x):
        return self.head(self.part(x))


@in_place_case(
    "`forward` of a part's class is replaced after the capture, and put back.", expect=either()
)
def forward_of_a_part_is_replaced(place):
    model = made(place, Outer)
    place.capture(model)
    optimizer, as_written = sgd(model), Scorer.forward
    losses = fit(place, model, optimizer, 8)
    try:
        Scorer.forward = lambda self, x: self.head(torch.tanh(self.body(x)))
        losses += fit(place, model, optimizer, 8, start=8)
    finally:
        Scorer.forward = as_written
    losses += fit(place, model, optimizer, 8, start=16)
    return losses, state(model, optimizer)


class Remembering(nn.Module):
    """Writes into a table that its input may be a view of."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.register_buffer("table", torch.ones(12, 8))

    def forward(self, x):
        with torch.no_grad():
            self.table.mul_(0.9)
        return self.layer(x)


@in_place_case("The input is a view of a buffer that forward writes, at times.", expect=either())
def input_is_a_view_of_a_buffer(place):
    model = made(place, Remembering)
    place.capture(model)
    optimizer, found = sgd(model), []
    for number in range(NUM):
        rows = model.table[number % 3 : number % 3 + 6]
        rows = rows if number % 4 == 3 else rows.clone()
        with torch.no_grad():
            found.append(kept(model(rows)))
        found.append(update(optimizer, model(rows).square().mean()))
    return found, state(model, optimizer)


# -------------------------------------------------------------- what looks into the model


@in_place_case(
    "The model is traced for export now and then, and the trace predicts.", expect=either()
)
def traced_now_and_then(place):
    model = mlp(place)

    def late(number, x, y):
        del y
        with torch.no_grad():
            traced = torch.jit.trace(model, x, check_trace=False)
            other, _ = batch(place, number + 100)
            return kept(traced(other))

    return with_late(place, model, late)


@in_place_case("Operations are counted by a mode of torch's in some steps.", expect=either())
def operations_are_counted(place):
    model = mlp(place)

    def late(number, x, y):
        del number
        with FlopCounterMode(display=False) as counted:
            F.cross_entropy(model(x), y).backward()
        return counted.get_total_flops()

    return with_late(place, model, late)


@in_place_case("The model is mapped by vmap over parts of a batch at times.", expect=either())
def mapped_at_times(place):
    model = mlp(place)

    def late(number, x, y):
        del number, y
        return kept(torch.func.vmap(model)(x.reshape(2, 3, 8)))

    return with_late(place, model, late)


@in_place_case("A vector-Jacobian product of the model is asked for at times.", expect=either())
def vjp_at_times(place):
    model = mlp(place)

    def late(number, x, y):
        del number, y
        scores, pull = torch.func.vjp(model, x)
        return kept(scores), kept(pull(torch.ones_like(scores))[0])

    return with_late(place, model, late)


@in_place_case("The model is copied and pickled between forward and backward.", expect=captured())
def copied_between_the_passes(place):
    model = made(place, Normed)
    place.capture(model)
    optimizer, losses = sgd(model), []
    for number, (x, y) in enumerate(batches(place, NUM)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if number % 4 == 3:
            for other in (copy.deepcopy(model).eval(), pickle.loads(pickle.dumps(model)).eval()):
                with torch.no_grad():
                    losses.append(snapshot(place, other(x)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


@in_place_case(
    "Model and optimizer are copied together, and the copies train on.", expect=either()
)
def copied_together(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    place.capture(model)
    place.capture(optimizer)
    losses = fit(place, model, optimizer, 12)
    model_2, optimizer_2 = copy.deepcopy((model, optimizer))
    for number in range(12, 20):
        losses += fit(place, model, optimizer, 1, start=number)
        losses += fit(place, model_2, optimizer_2, 1, start=number + 1)
    return losses, state(model, optimizer), state(model_2, optimizer_2)


# --------------------------------------------------------------------- gradients and outputs


@in_place_case("An output is detached in place, and carried on to the next step.", expect=either())
def output_is_detached_in_place(place):
    model = made(place, lambda: nn.GRUCell(8, 8))
    place.capture(model)
    optimizer, losses = sgd(model), []
    hidden = torch.zeros(6, 8, device=place.torch_device)
    for x, _ in batches(place, NUM):
        new = model(x, hidden)
        losses.append(update(optimizer, new.square().mean()))
        hidden = new.detach_()
    return losses, hidden, state(model, optimizer)


@in_place_case("Outputs keep their gradients, which the loop reads.", expect=captured())
def outputs_keep_gradients(place):
    model = mlp(place)
    place.capture(model)
    optimizer, found = sgd(model), []
    for x, y in batches(place, NUM):
        scores = model(x)
        scores.retain_grad()
        found.append(update(optimizer, F.cross_entropy(scores, y)))
        found.append(snapshot(place, scores.grad))
    return found, state(model, optimizer)


@in_place_case("Gradients are asked for some weights alone, by three ways.", expect=either())
def gradients_of_some_weights(place):
    model = made(place, Headed)
    place.capture(model)
    optimizer, found = sgd(model), []
    for number, (x, y) in enumerate(batches(place, 30)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        some = list((model.body, model.head)[number // 2 % 2].parameters())
        if number % 3 == 0:
            loss.backward(inputs=some)
        elif number % 3 == 1:
            for weight, gradient in zip(some, torch.autograd.grad(loss, some), strict=True):
                weight.grad = gradient
        else:
            torch.autograd.backward([loss, loss.square()], [torch.ones(()).to(loss), None])
        optimizer.step()
        found.append(loss.item())
    return found, state(model, optimizer)


@in_place_case("Two weights have one tensor as their gradient.", expect=captured("optimizer"))
def one_gradient_for_two_weights(place):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(place.torch_device)
    optimizer = sgd(model, momentum=0.9)
    place.capture(optimizer)
    found = []
    for number, (x, _) in enumerate(batches(place, NUM)):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        if number >= 10:
            model[1].weight.grad = model[0].weight.grad
        optimizer.step()
        found.append(loss.item())
    return found, state(model, optimizer)


# ----------------------------------------------------------------------- weights and updates


@in_place_case(
    "Two captured optimizers update the same weights, one after the other.", expect=captured()
)
def two_optimizers_of_one_weight(place):
    model = mlp(place)
    first = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    second = sgd(model[3], lr=0.01, momentum=0.9)
    place.capture(first, name="first")
    place.capture(second, name="second")
    found = []
    for x, y in batches(place, NUM):
        first.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        first.step()
        second.step()
        found.append(loss.item())
    return found, state(model, first, second)


@in_place_case(
    "Each weight has an optimizer, which steps in a hook of backward.", expect=either("hook")
)
def optimizers_in_backward(place):
    model = mlp(place)
    every = {weight: torch.optim.SGD([weight], lr=0.1) for weight in model.parameters()}

    def step(weight):
        every[weight].step()
        every[weight].zero_grad()

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(step)
    place.capture(model)
    for number, one in enumerate(every.values()):
        place.capture(one, name=f"optimizer {number}")
    found = []
    for x, y in batches(place, NUM):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        found.append(loss.item())
    return found, state(model, *every.values())


@in_place_case(
    "A weight changes places with another by `swap_tensors`, and back.", expect=captured()
)
def weights_are_swapped(place):
    model = mlp(place)
    optimizer = sgd(model)
    other = nn.Parameter(torch.full_like(model[0].weight, 0.05))
    place.capture(model)
    place.capture(optimizer)
    losses = fit(place, model, optimizer, 8)
    for start in (8, 18):
        optimizer.zero_grad()
        torch.utils.swap_tensors(model[0].weight, other)
        losses += fit(place, model, optimizer, 10, start=start)
    return losses, state(model, optimizer), other


@in_place_case("`.double()` and `.float()` swap what the weights are.", expect=captured("model"))
def conversions_swap(place):
    model = mlp(place)
    place.capture(model)
    optimizer = sgd(model)
    losses = fit(place, model, optimizer, 10)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        optimizer.zero_grad()
        model.double().float()
        losses += fit(place, model, optimizer, 14, start=10)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    return losses, state(model, optimizer)


@in_place_case(
    "Head and embedding are tied after the capture, and untied later.", expect=captured()
)
def tied_after_the_capture(place):
    model = made(place, Tied)
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    place.capture(model)
    found = []
    for start in (0, 10, 20):
        if start == 10:
            model.head.weight = model.embed.weight
        if start == 20:
            model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
        optimizer = sgd(model)
        for number in range(start, start + 10):
            ids = tokens(place, number, 4, 6)
            scores = model(ids[:, :-1]).flatten(0, 1)
            found.append(update(optimizer, F.cross_entropy(scores, ids[:, 1:].flatten())))
    return found, state(model)


@in_place_case("The optimizer's state goes to the host between steps, and back.", expect=either())
def state_on_the_host(place):
    model = mlp(place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    place.capture(optimizer)
    found = []
    for number in range(NUM):
        found += fit(place, model, optimizer, 1, start=number)
        for of_weight in optimizer.state.values():
            on_host = {name: one.to("cpu", copy=True) for name, one in of_weight.items()}
            of_weight.update({name: place.moved(one) for name, one in on_host.items()})
    return found, state(model, optimizer)


@in_place_case(
    "Switches of the captured optimizer are flipped in its group.", expect=captured("optimizer")
)
def switches_of_the_optimizer(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    place.capture(optimizer)
    losses = []
    for start, switch in enumerate(["foreach", "nesterov", "maximize", "maximize"]):
        losses += fit(place, model, optimizer, 8, start=8 * start)
        optimizer.param_groups[0][switch] = not optimizer.param_groups[0][switch]
    return losses, state(model, optimizer)


# ------------------------------------------------------------------------ turns of the loop


def training(place, model, optimizer, seed):
    """Yield between the passes of each step, as a scheduler of several trainings wants it."""
    for x, y in batches(place, NUM):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), (y + seed) % 4)
        try:
            yield
        except ValueError:
            continue
        loss.backward()
        yield kept(loss)
        optimizer.step()


@in_place_case("Two trainings are generators, whose passes are interleaved.", expect=captured())
def interleaved_trainings(place):
    models = [made(place, Normed) for _ in range(2)]
    optimizers = [sgd(model) for model in models]
    for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        place.capture(model, name=f"model {number}")
        place.capture(optimizer, name=f"optimizer {number}")
    both = [
        training(place, model, optimizer, seed)
        for seed, (model, optimizer) in enumerate(zip(models, optimizers, strict=True))
    ]
    found = [value for pair in zip(*both, strict=True) for value in pair if value is not None]
    return found, state(models[0], optimizers[0]), state(models[1], optimizers[1])


@in_place_case(
    "An error is thrown into a generator between the passes, which goes on.", expect=captured()
)
def error_between_the_passes(place):
    model = made(place, Normed)
    optimizer = sgd(model)
    place.capture(model)
    place.capture(optimizer)
    steps, found = training(place, model, optimizer, 0), []
    for number in range(NUM):
        next(steps, None)
        if number in (9, 15):
            steps.throw(ValueError("a bad batch"))
        found.append(next(steps, None))
    return found, state(model, optimizer)
