"""One thing under several names: results, kept tensors, views and states that share memory or objects."""

from __future__ import annotations

import collections
import contextlib
import types
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.optim.optimizer import register_optimizer_step_post_hook

from hazards.captured_harness import CAPTURED, EITHER, captured_case, refused, snapshot
from hazards.captured_models import (
    Headed,
    Trainer,
    batch,
    batches,
    kept,
    losses_of,
    mlp,
    run,
    sgd,
    state,
    training_step,
    updated,
)


NUM = 24


def results_of(place, step, num=NUM):
    """Call the step with so many batches; return what it returned, as it stands then."""
    return [snapshot(place, step(pair)) for pair in batches(place, num)]


# --------------------------------------------------------------------- what a step gives back


@captured_case(
    "The rate is returned for the log, while a schedule moves it after each step.",
    expect=EITHER,
)
def rate_is_returned(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)

    def train(pair):
        x, y = pair
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        return {"loss": loss.detach(), "lr": optimizer.param_groups[0]["lr"]}

    step = place.capture(train)
    results = []
    for pair in batches(place, NUM):
        results.append(step(pair))
        schedule.step()
    return results, state(model, optimizer)


@captured_case(
    "The last rate of the schedule is returned, for an Adam as people make it.", expect=EITHER
)
def last_rate_is_returned(place):
    model = mlp(place)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def train(pair):
        x, y = pair
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        return loss.detach(), schedule.get_last_lr()[0]

    step = place.capture(train)
    results = []
    for pair in batches(place, NUM):
        results.append(step(pair))
        schedule.step()
    return results, state(model, optimizer)


@captured_case(
    "The weight of a penalty is the rate of the optimizer, which falls in every step.",
    expect=EITHER,
)
def rate_is_used_in_the_loss(place):
    model = mlp(place)
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)

    def train(pair):
        x, y = pair
        out = model(x)
        penalty = out.square().mean() * optimizer.param_groups[0]["lr"]
        return updated(optimizer, F.cross_entropy(out, y) + penalty)

    step = place.capture(train)
    losses = []
    for pair in batches(place, NUM):
        losses.append(kept(step(pair)))
        schedule.step()
    return losses, state(model, optimizer)


@captured_case(
    "The step keeps the rate of this call in an attribute, which the loop logs.", expect=EITHER
)
def rate_is_kept(place):
    trainer = Trainer(place)
    schedule = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 6)

    def train(pair):
        trainer.rate = trainer.optimizer.param_groups[0]["lr"]
        return trainer.train(pair)

    step = place.capture(train)
    rates = []
    for pair in batches(place, NUM):
        step(pair)
        rates.append(trainer.rate)
        schedule.step()
    return rates, trainer.state()


@captured_case("Decoupled decay by hand multiplies weights by the rate.", expect=EITHER)
def decay_by_the_rate(place):
    model = mlp(place)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0 if n < 9 else 0.5)

    def train(pair):
        x, y = pair
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 - optimizer.param_groups[0]["lr"] * 0.5)
        return loss

    step = place.capture(train)
    losses = []
    for pair in batches(place, NUM):
        losses.append(kept(step(pair)))
        schedule.step()
    return losses, state(model, optimizer)


@dataclass
class Doubled:
    """A result that is scaled when it is made."""

    loss: torch.Tensor
    count: int = 0
    norm: torch.Tensor = field(init=False)

    def __post_init__(self):
        self.loss = self.loss * 2
        self.norm = self.loss.square()


@captured_case("A returned dataclass scales its loss in `__post_init__`.", expect=EITHER)
def returned_dataclass_scales(place):
    trainer = Trainer(place)

    def train(pair):
        return Doubled(trainer.train(pair).detach(), count=len(pair[0]))

    return results_of(place, place.capture(train)), trainer.state()


@captured_case("A dataclass of the batch scales its features in `__post_init__`.", expect=EITHER)
def dataclass_of_the_batch_scales(place):
    @dataclass
    class Batch:
        x: torch.Tensor
        y: torch.Tensor

        def __post_init__(self):
            self.x = self.x * 2

    trainer = Trainer(place)

    def train(one):
        return trainer.train((one.x, one.y))

    step = place.capture(train)
    return [kept(step(Batch(x, y))) for x, y in batches(place, NUM)], trainer.state()


class _Pair(NamedTuple):
    loss: torch.Tensor
    half: torch.Tensor


class Pair(_Pair):
    """A named tuple that is made from one value."""

    def __new__(cls, loss, half=None):
        return super().__new__(cls, loss + 1, loss / 2 if half is None else half)


@captured_case("A returned named tuple computes its entries when it is made.", expect=EITHER)
def returned_tuple_computes(place):
    trainer = Trainer(place)

    def train(pair):
        return Pair(trainer.train(pair).detach())

    return results_of(place, place.capture(train)), trainer.state()


class Tagged(list):
    """A list with an attribute."""

    total = None


@captured_case("A returned list has attributes that hold tensors.", expect=EITHER)
def returned_list_has_attributes(place):
    trainer = Trainer(place)

    def train(pair):
        loss = trainer.train(pair).detach()
        result = Tagged([loss, loss + 1])
        result.total = loss * 3
        return result

    step = place.capture(train)
    results = [step(pair) for pair in batches(place, NUM)]
    return results, [result.total for result in results], trainer.state()


@captured_case("A returned tensor has an attribute that the loop reads.", expect=EITHER)
def returned_tensor_has_an_attribute(place):
    trainer = Trainer(place)

    def train(pair):
        x, y = pair
        out = trainer.model(x)
        loss = updated(trainer.optimizer, F.cross_entropy(out, y)).detach()
        loss.accuracy = (out.argmax(1) == y).float().mean()
        return loss

    step = place.capture(train)
    results = [step(pair) for pair in batches(place, NUM)]
    return results, [result.accuracy for result in results], trainer.state()


@captured_case("A default dict, a Counter and a set of texts are returned.", expect=EITHER)
def returns_other_containers(place):
    trainer = Trainer(place)

    def train(pair):
        loss = trainer.train(pair).detach()
        named = collections.defaultdict(list)
        named["loss"].append(loss)
        counts = collections.Counter(rows=len(pair[0]))
        return named, counts, {"a", "b"}, collections.deque([loss, loss * 2], maxlen=2)

    step = place.capture(train)
    results = [step(pair) for pair in batches(place, NUM)]
    for named, counts, _, recent in results:
        named["other"].append(1)
        counts.update(["rows"])
        recent.append(0)
    return results, trainer.state()


@captured_case(
    "One dict of metrics is filled by each step and returned; the loop holds it and adds to it.",
    expect=EITHER,
)
def one_dict_of_metrics(place):
    trainer = Trainer(place)
    metrics = {}

    def train(pair):
        metrics["loss"] = trainer.train(pair).detach()
        metrics["rows"] = len(pair[0])
        return metrics

    step = place.capture(train)
    seen, is_same = [], []
    for number, pair in enumerate(batches(place, NUM)):
        is_same.append(step(pair) is metrics)
        metrics["number"] = number
        seen.append(snapshot(place, metrics))
    return seen, is_same, trainer.state()


@captured_case("The same list stands twice in what is returned.", expect=EITHER)
def one_list_twice(place):
    trainer = Trainer(place)

    def train(pair):
        parts = [trainer.train(pair).detach()]
        return {"parts": parts, "again": parts}

    step = place.capture(train)
    results = [step(pair) for pair in batches(place, NUM)]
    for result in results:
        result["parts"].append(len(result["again"]))
    return results, trainer.state()


@captured_case(
    "Gradients are returned as a list; the loop scales them in place and updates.", expect=EITHER
)
def returned_gradients_are_scaled(place):
    trainer = Trainer(place)

    def backward(pair):
        trainer.optimizer.zero_grad(set_to_none=False)
        loss = trainer.loss(pair)
        loss.backward()
        return loss.detach(), [p.grad for p in trainer.model.parameters()]

    step = place.capture(backward)
    losses = []
    for pair in batches(place, NUM):
        loss, grads = step(pair)
        torch._foreach_mul_(grads, 0.5)
        trainer.optimizer.step()
        losses.append(loss)
    return losses, trainer.state()


@captured_case(
    "The step returns its weights by name, and the loop clamps them in place.", expect=EITHER
)
def returned_weights_are_clamped(place):
    trainer = Trainer(place)

    def train(pair):
        loss = trainer.train(pair)
        return loss.detach(), dict(trainer.model.named_parameters())

    step = place.capture(train)
    losses = []
    for pair in batches(place, NUM):
        loss, weights = step(pair)
        with torch.no_grad():
            for weight in weights.values():
                weight.clamp_(-0.3, 0.3)
        losses.append(loss)
    return losses, trainer.state()


@captured_case(
    "The step returns a buffer and the state of its optimizer, which the loop resets in place.",
    expect=EITHER,
)
def returned_state_is_reset(place):
    trainer = Trainer(place)
    sums = torch.zeros(4, device=place.torch_device)

    def train(pair):
        x, y = pair
        out = trainer.model(x)
        sums.add_(out.detach().sum(0))
        updated(trainer.optimizer, F.cross_entropy(out, y))
        first = trainer.model[0].weight
        return sums, trainer.optimizer.state[first]["momentum_buffer"]

    step = place.capture(train)
    seen = []
    for number, pair in enumerate(batches(place, NUM)):
        total, momentum = step(pair)
        seen.append(snapshot(place, total))
        if number % 5 == 4:
            total.zero_()
            momentum.mul_(0.1)
    return seen, sums, trainer.state()


@captured_case(
    "The step returns what it also keeps in an attribute; the loop changes it in place.",
    expect=EITHER,
)
def returned_and_kept(place):
    trainer = Trainer(place)
    trainer.shift = torch.zeros(8, device=place.torch_device)

    def train(pair):
        x, y = pair
        loss = trainer.train((x - trainer.shift, y))
        trainer.shift = 0.5 * trainer.shift + 0.5 * x.mean(0)
        return loss.detach(), trainer.shift

    step = place.capture(train)
    losses, shifts = [], []
    for pair in batches(place, NUM):
        loss, shift = step(pair)
        losses.append(loss)
        shifts.append(snapshot(place, shift))
        shift.mul_(0.5)
    return losses, shifts, trainer.shift, trainer.state()


# -------------------------------------------------------------------------------- kept tensors


@captured_case("One new tensor is kept under two names, and the loop changes one.", expect=EITHER)
def kept_under_two_names(place):
    trainer = Trainer(place)
    trainer.a = trainer.b = torch.zeros(8, device=place.torch_device)

    def train(pair):
        x, y = pair
        loss = trainer.train((x + trainer.a - 0.5 * trainer.b, y))
        trainer.a = trainer.b = x.mean(0)
        return loss

    step = place.capture(train)
    losses = []
    for number, pair in enumerate(batches(place, NUM)):
        losses.append(kept(step(pair)))
        if number % 3 == 2:
            trainer.a.mul_(2)
    return losses, trainer.a, trainer.b, trainer.state()


@captured_case("A kept tensor and a view of it are attributes.", expect=EITHER)
def kept_with_a_view(place):
    trainer = Trainer(place)
    trainer.all = torch.zeros(2, 8, device=place.torch_device)
    trainer.first = trainer.all[0]

    def train(pair):
        x, y = pair
        loss = trainer.train((x + trainer.first, y))
        trainer.all = torch.stack([x.mean(0), x.std(0)])
        trainer.first = trainer.all[0]
        return loss

    step = place.capture(train)
    losses = []
    for pair in batches(place, NUM):
        losses.append(kept(step(pair)))
        trainer.all.mul_(0.5)
    return losses, trainer.first, trainer.state()


@captured_case("The batch itself is kept, and the loop refills its memory.", expect=EITHER)
def kept_batch_is_refilled(place):
    trainer = Trainer(place)
    buffer = torch.zeros(6, 8, device=place.torch_device)
    trainer.last = None

    def train(x, y):
        out = trainer.model(x)
        loss = F.cross_entropy(out, y)
        if trainer.last is not None:
            loss = loss + F.mse_loss(trainer.model(trainer.last), out.detach())
        trainer.last = x
        return updated(trainer.optimizer, loss)

    step = place.capture(train)
    losses = []
    for x, y in batches(place, NUM):
        buffer.copy_(x)
        losses.append(kept(step(buffer, y)))
    return losses, trainer.state()


@captured_case("The last three tensors stand in a new list each step.", expect=EITHER)
def rolling_list(place):
    trainer = Trainer(place)
    trainer.last = [torch.zeros(8, device=place.torch_device) for _ in range(3)]

    def train(pair):
        x, y = pair
        loss = trainer.train((x + 0.1 * sum(trainer.last), y))
        trainer.last = [x.mean(0), *trainer.last[:2]]
        return loss

    step = place.capture(train)
    held, losses = [], []
    for pair in batches(place, NUM):
        losses.append(kept(step(pair)))
        held.append(trainer.last[0])
    return losses, held, trainer.last, trainer.state()


@captured_case(
    "A shift register: two attributes hold the last two of a kind, moved along.", expect=EITHER
)
def shift_register(place):
    trainer = Trainer(place)
    trainer.now = trainer.before = torch.zeros(8, device=place.torch_device)

    def train(pair):
        x, y = pair
        loss = trainer.train((x + 0.5 * trainer.now - 0.1 * trainer.before, y))
        trainer.before = trainer.now
        trainer.now = x.mean(0)
        return loss

    step = place.capture(train)
    losses = losses_of(place, step, NUM)
    return losses, trainer.now, trainer.before, trainer.state()


@captured_case(
    "Gradients of the last step are kept as they stand, for their cosine.", expect=EITHER
)
def last_gradients_are_kept(place):
    trainer = Trainer(place)
    trainer.last = [torch.zeros_like(p) for p in trainer.model.parameters()]

    def train(pair):
        trainer.optimizer.zero_grad()
        trainer.loss(pair).backward()
        grads = [p.grad for p in trainer.model.parameters()]
        dots = torch.stack([(a * b).sum() for a, b in zip(grads, trainer.last, strict=True)])
        trainer.last = grads
        trainer.optimizer.step()
        return dots.sum()

    return losses_of(place, place.capture(train), NUM), trainer.last, trainer.state()


@captured_case(
    "A gradient that the loop took once is expected to go on being the gradient.", expect=EITHER
)
def gradient_is_held_by_the_loop(place):
    trainer = Trainer(place)

    def train(pair):
        trainer.optimizer.zero_grad(set_to_none=False)
        loss = trainer.loss(pair)
        loss.backward()
        trainer.optimizer.step()
        return loss

    step = place.capture(train)
    pairs = list(batches(place, NUM))
    losses = run(step, pairs[:2])
    held = [p.grad for p in trainer.model.parameters()]
    norms = []
    for pair in pairs[2:]:
        losses += run(step, [pair])
        norms.append([g.norm() for g in held])
    return losses, norms, trainer.state()


@captured_case(
    "Gradients are views of one flat buffer, which is zeroed and clipped as one.",
    expect=CAPTURED,
)
def flat_gradients(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    sizes = [p.numel() for p in model.parameters()]
    flat = torch.zeros(sum(sizes), device=place.torch_device)
    for p, part in zip(model.parameters(), flat.split(sizes), strict=True):
        p.grad = part.view_as(p)

    def train(pair):
        x, y = pair
        flat.zero_()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        flat.mul_((1.0 / (flat.norm() + 1e-6)).clamp(max=1.0))
        optimizer.step()
        return loss

    step = place.capture(train)
    losses, norms = [], []
    for pair in batches(place, NUM):
        losses += run(step, [pair])
        norms.append(flat.norm())
    return losses, norms, flat, state(model, optimizer)


def _copied_to_a_flat_buffer(place, make_optimizer):
    """Train as ranks that sum do: gradients are copied to parts of one buffer, which stay."""
    model = mlp(place)
    weights = list(model.parameters())
    optimizer = make_optimizer(weights)
    flat = torch.zeros(sum(p.numel() for p in weights), device=place.torch_device)
    sizes = [p.numel() for p in weights]
    parts = [part.view_as(p) for part, p in zip(flat.split(sizes), weights, strict=True)]

    def train(pair):
        x, y = pair
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for part, p in zip(parts, weights, strict=True):
            part.copy_(p.grad)
            p.grad = part
        flat.mul_(2.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = place.capture(train)
    losses, norms = [], []
    for pair in batches(place, NUM):
        losses += run(step, [pair])
        norms.append([flat.norm(), *(part.norm() for part in parts)])
    return losses, norms, flat, parts, state(model, optimizer)


@captured_case(
    "Gradients are copied to parts of a flat buffer, and an update counts on the host.",
    expect=CAPTURED,
)
def gradients_copied_to_flat_parts(place):
    return _copied_to_a_flat_buffer(
        place, lambda weights: torch.optim.AdamW(weights, lr=1e-2, foreach=True)
    )


@captured_case(
    "Gradients are copied to parts of a flat buffer, and the update is in the graph.",
    expect=CAPTURED,
)
def gradients_copied_to_flat_parts_in_a_graph(place):
    return _copied_to_a_flat_buffer(
        place, lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9)
    )


@captured_case("Weights are views of one flat parameter, which is updated.", expect=CAPTURED)
def flat_weights(place):
    model = mlp(place)
    weights = list(model.parameters())
    flat = nn.Parameter(torch.cat([p.detach().flatten() for p in weights]))
    flat.grad = torch.zeros_like(flat)
    sizes = [p.numel() for p in weights]
    views = zip(weights, flat.data.split(sizes), flat.grad.split(sizes), strict=True)
    for p, part, grad in views:
        p.data, p.grad = part.view_as(p), grad.view_as(p)
    optimizer = torch.optim.Adam([flat], lr=1e-2)

    def train(pair):
        x, y = pair
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return losses_of(place, place.capture(train), NUM), flat, flat.grad, state(model, optimizer)


@captured_case("An optimizer of the project replaces its averages in each step.", expect=CAPTURED)
def optimizer_replaces_its_state(place):
    class Own(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    own = self.state[p]
                    last = own.get("average", torch.zeros_like(p))
                    own["average"] = 0.9 * last + 0.1 * p.grad
                    p.sub_(0.1 * own["average"])

    model = mlp(place)
    optimizer = Own(model.parameters(), {})
    step = place.capture(training_step(model, optimizer))
    return losses_of(place, step, NUM), state(model, optimizer)


@captured_case("A tensor of the step's own is kept in a group of the optimizer.", expect=EITHER)
def group_keeps_a_tensor(place):
    model = mlp(place)
    optimizer = sgd(model)
    optimizer.param_groups[0]["norm"] = torch.ones((), device=place.torch_device)

    def train(pair):
        x, y = pair
        group = optimizer.param_groups[0]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in group["params"]]).norm()
        group["norm"] = 0.9 * group["norm"] + 0.1 * norm
        torch._foreach_div_([p.grad for p in group["params"]], group["norm"])
        optimizer.step()
        return loss

    step = place.capture(train)
    norms, losses = [], []
    for pair in batches(place, NUM):
        losses += run(step, [pair])
        norms.append(optimizer.param_groups[0]["norm"])
    return losses, norms, state(model, optimizer)


# ------------------------------------------------------------- forms that change in one place


@captured_case("A square matrix of the step's is transposed in place by the loop.", expect=EITHER)
def transposed_in_place(place):
    trainer = Trainer(place)
    turn = torch.linspace(-1, 1, 64, device=place.torch_device).view(8, 8)

    def train(pair):
        x, y = pair
        return trainer.train((x @ turn, y))

    def before(number):
        if number % 10 == 9:
            turn.t_()

    return losses_of(place, place.capture(train), 36, before=before), trainer.state()


@captured_case(
    "A complex filter is replaced by its conjugate, which is the same memory.", expect=EITHER
)
def conjugated_attribute(place):
    trainer = Trainer(place)
    real = torch.linspace(-1, 1, 8, device=place.torch_device)
    trainer.filter = torch.complex(real, real.flip(0))

    def train(pair):
        x, y = pair
        return trainer.train(((x * trainer.filter).imag, y))

    def before(number):
        if number == 12:
            trainer.filter = trainer.filter.conj()

    return losses_of(place, place.capture(train), NUM, before=before), trainer.state()


@captured_case("Batches come as they are or conjugated, in turns.", expect=EITHER)
def conjugated_batches(place):
    trainer = Trainer(place)

    def train(x, y):
        return trainer.train(((x * 1).imag, y))

    step = place.capture(train)
    losses = []
    for number, (x, y) in enumerate(batches(place, 30)):
        whole = torch.complex(x, x.flip(1))
        losses.append(kept(step(whole.conj() if number % 3 == 2 else whole, y)))
    return losses, trainer.state()


@captured_case("A buffer gets another storage by `set_`, and another size.", expect=EITHER)
def buffer_is_set(place):
    trainer = Trainer(place)
    scale = torch.ones(8, device=place.torch_device)

    def train(pair):
        x, y = pair
        return trainer.train((x * scale, y))

    def before(number):
        if number == 10:
            scale.set_(torch.full((8,), 2.0, device=place.torch_device))
        if number == 18:
            scale.data = torch.full((1,), 0.5, device=place.torch_device)

    return losses_of(place, place.capture(train), 30, before=before), trainer.state()


@captured_case("A hook is put on a tensor of the closure that is no parameter.", expect=EITHER)
def hook_on_a_tensor_of_the_closure(place):
    model = mlp(place)
    prompt = torch.zeros(8, device=place.torch_device, requires_grad=True)
    optimizer = torch.optim.SGD([prompt], lr=0.1)

    def train(pair):
        x, y = pair
        return updated(optimizer, F.cross_entropy(model(x + prompt), y))

    def before(number):
        if number == 12:
            prompt.register_hook(lambda g: g * 0.1)

    return losses_of(place, place.capture(train), NUM, before=before), prompt


@captured_case("A tensor becomes a view that remembers where it came from.", expect=EITHER)
def tensor_gets_a_history(place):
    trainer = Trainer(place)
    source = torch.ones(8, device=place.torch_device, requires_grad=True)
    trainer.scale = source.detach()

    def train(pair):
        x, y = pair
        source.grad = None
        return trainer.train((x * trainer.scale, y))

    def before(number):
        if number == 12:
            trainer.scale = source.view(8)

    losses = losses_of(place, place.capture(train), NUM, before=before)
    return losses, source.grad, trainer.state()


# --------------------------------------------------------------- state of torch, and of modules


@captured_case("Hooks for all modules are registered for a while.", expect=EITHER)
def global_forward_hook(place):
    trainer = Trainer(place)
    handles = []

    def before(number):
        if number == 9:
            handles.append(
                nn.modules.module.register_module_forward_hook(lambda module, args, out: out * 0.9)
            )
        if number == 18:
            handles.pop().remove()

    step = place.capture(trainer.train)
    try:
        return losses_of(place, step, 30, before=before), trainer.state()
    finally:
        for handle in handles:
            handle.remove()


@captured_case("Hooks for all optimizers are registered for a while.", expect=EITHER)
def global_optimizer_hook(place):
    trainer = Trainer(place)
    handles = []

    def decay(optimizer, args, kwargs):
        with torch.no_grad():
            for p in optimizer.param_groups[0]["params"]:
                p.mul_(0.9)

    def before(number):
        if number == 9:
            handles.append(register_optimizer_step_post_hook(decay))
        if number == 18:
            handles.pop().remove()

    step = place.capture(trainer.train)
    try:
        return losses_of(place, step, 30, before=before), trainer.state()
    finally:
        for handle in handles:
            handle.remove()


@captured_case(
    "Some steps stand in a context of the loop that packs what backward needs.", expect=EITHER
)
def packed_by_the_loop(place):
    model = mlp(place)
    step = place.capture(training_step(model, sgd(model, momentum=0.9)))

    def pack(x):
        return x.dtype, x.bfloat16() if x.is_floating_point() else x

    losses = []
    for number, pair in enumerate(batches(place, 30)):
        is_packed = 9 <= number < 18
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept[1].to(kept[0]))
        with hooks if is_packed else contextlib.nullcontext():
            losses += run(step, [pair])
    return losses, state(model)


@captured_case("Parametrized weights are cached by the loop around some steps.", expect=EITHER)
def parametrizations_are_cached(place):
    model = mlp(place)
    parametrizations.weight_norm(model[0])
    trainer = Trainer(place)
    trainer.model, trainer.optimizer = model, sgd(model)

    def train(pair):
        x, y = pair
        trainer.optimizer.zero_grad()
        loss = F.cross_entropy(trainer.model(trainer.model[0].weight[:6] + x), y)
        loss.backward()
        trainer.optimizer.step()
        return loss + model[0].weight.square().sum()

    step = place.capture(train)
    losses = []
    for number, pair in enumerate(batches(place, 30)):
        is_cached = 9 <= number < 18
        with parametrize.cached() if is_cached else contextlib.nullcontext():
            losses += run(step, [pair])
    return losses, state(model)


class Scaled(nn.Module):
    """A layer with a number, which is scripted."""

    def __init__(self):
        super().__init__()
        self.alpha = 1.0
        self.weight = nn.Parameter(torch.linspace(-1, 1, 32).view(8, 4))

    def forward(self, x):
        return x @ self.weight * self.alpha


@captured_case("A scripted model has a number that the loop changes.", expect=EITHER)
def scripted_model(place):
    model = torch.jit.script(Scaled().to(place.torch_device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def before(number):
        if number == 12:
            model.alpha = 0.2

    step = place.capture(training_step(model, optimizer))
    return losses_of(place, step, NUM, before=before), list(model.parameters())


@captured_case("A layer's bias becomes None, and dropout an identity.", expect=CAPTURED)
def parts_are_taken_out(place):
    trainer = Trainer(place, dropout=0.5)

    def before(number):
        if number == 12:
            trainer.model[3].bias = None
        if number == 24:
            trainer.model[2] = nn.Identity()

    step = place.capture(trainer.train)
    return losses_of(place, step, 36, before=before), trainer.state()


@captured_case(
    "The `forward` of one layer is wrapped on the object, and restored.", expect=CAPTURED
)
def forward_is_wrapped(place):
    trainer = Trainer(place)
    layer = trainer.model[3]

    def before(number):
        if number == 12:
            plain = layer.forward
            layer.forward = types.MethodType(lambda self, x: plain(x) * 0.5, layer)
        if number == 24:
            del layer.forward

    return losses_of(place, place.capture(trainer.train), 36, before=before), trainer.state()


@captured_case(
    "The schedule is made in the middle, and wraps the optimizer's step.", expect=CAPTURED
)
def schedule_is_made_late(place):
    model = mlp(place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = place.capture(training_step(model, optimizer))
    schedule, losses = None, []
    for number, pair in enumerate(batches(place, 30)):
        losses += run(step, [pair])
        if number == 12:
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=30)
        elif schedule is not None:
            schedule.step()
    return losses, schedule.last_epoch, state(model, optimizer)


@captured_case(
    "The optimizer and a lazy layer are made by the first call of the step.", expect=CAPTURED
)
def made_by_the_first_call(place):
    class Lazy(Trainer):
        optimizer = None

        def train(self, pair):
            x, y = pair
            loss = F.cross_entropy(self.model(x), y)
            if self.optimizer is None:
                self.optimizer = sgd(self.model, momentum=0.9)
            return updated(self.optimizer, loss)

    trainer = Lazy(place)
    trainer.model = nn.Sequential(nn.LazyLinear(4, device=place.torch_device))
    trainer.optimizer = None
    return losses_of(place, place.capture(trainer.train), NUM), trainer.state()


@captured_case(
    "A layer takes its scale from the first batch it sees, and sets a flag.", expect=CAPTURED
)
def initialised_by_the_first_batch(place):
    class ActNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
            self.is_ready = False

        def forward(self, x):
            if not self.is_ready:
                with torch.no_grad():
                    self.shift.copy_(-x.mean(0))
                    self.scale.copy_(1 / (x.std(0) + 1e-3))
                self.is_ready = True
            return (x + self.shift) * self.scale

    trainer = Trainer(place)
    norm = ActNorm().to(place.torch_device)
    trainer.model.insert(0, norm)
    trainer.optimizer = sgd(trainer.model)

    def before(number):
        if number == 15:
            norm.is_ready = False

    losses = losses_of(place, place.capture(trainer.train), 30, before=before)
    return losses, norm.is_ready, trainer.state()


@captured_case(
    "Averages are swapped in for a captured evaluation, and out again, every few steps.",
    expect=EITHER,
)
def swapped_for_a_captured_evaluation(place):
    trainer = Trainer(place)
    averages = [p.detach().clone() for p in trainer.model.parameters()]

    def evaluate(pair):
        with torch.no_grad():
            return trainer.loss(pair)

    step, test = place.capture(trainer.train), place.capture(evaluate)

    def swap():
        for p, mean in zip(trainer.model.parameters(), averages, strict=True):
            p.data, mean.data = mean.data, p.data

    losses, scores = [], []
    for number, pair in enumerate(batches(place, 36)):
        losses += run(step, [pair])
        torch._foreach_lerp_(averages, [p.data for p in trainer.model.parameters()], 0.1)
        if number % 3 == 2:
            swap()
            scores += [kept(test(batch(place, 90 + n))) for n in range(3)]
            swap()
    return losses, scores, averages, trainer.state()


@captured_case(
    "Losses and gradients are no numbers from some call on, and then are again.", expect=EITHER
)
def no_numbers_for_a_while(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)

    def train(pair):
        x, y = pair
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for p in model.parameters():
            p.grad = torch.where(torch.isfinite(p.grad), p.grad, torch.zeros_like(p.grad))
        optimizer.step()
        return loss, [p.grad for p in model.parameters()]

    step = place.capture(train)
    results = []
    for number, (x, y) in enumerate(batches(place, NUM)):
        scale = float("nan") if 1 <= number < 6 or number == 15 else 1.0
        loss, grads = step((x * scale, y))
        results.append((kept(loss), [g.norm() for g in grads]))
    return results, state(model, optimizer)


@captured_case(
    "A phase is counted in an enum-like class attribute by a hook.", expect=refused("num")
)
def counted_by_a_hook_on_the_class(place):
    class Watched(Headed):
        num = 0

    model = Watched().to(place.torch_device)

    def count(module, args):
        type(module).num += 1

    model.register_forward_pre_hook(count)
    step = place.capture(training_step(model, sgd(model)))
    return len(losses_of(place, step, 16)), Watched.num


@captured_case(
    "Groups of batches return the rate, which a schedule moves between groups.", expect=EITHER
)
def rate_is_returned_by_groups(place):
    trainer = Trainer(place)
    schedule = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, 0.9)

    def train(pair):
        loss = trainer.train(pair)
        return {"loss": loss.detach(), "lr": trainer.optimizer.param_groups[0]["lr"]}

    step = place.capture(train, steps_per_launch=3)
    results = []
    for number in range(14):
        results += step([batch(place, 3 * number + part) for part in range(3)])
        schedule.step()
    return results, trainer.state()


@captured_case(
    "Groups of batches return gradients, which the loop adds up; results are changed.",
    expect=EITHER,
)
def groups_return_gradients(place):
    trainer = Trainer(place)

    def train(pair):
        trainer.train(pair)
        return [p.grad for p in trainer.model.parameters()]

    step = place.capture(train, steps_per_launch=3)
    sums = [torch.zeros_like(p) for p in trainer.model.parameters()]
    norms = []
    for number in range(14):
        results = step([batch(place, 3 * number + part) for part in range(3)])
        for grads in results:
            torch._foreach_add_(sums, grads)
        norms.append([g.norm() for g in results[-1]])
    return sums, norms, trainer.state()
