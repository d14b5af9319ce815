"""Training idioms in the combinations in which people use them: found by trying to break a capture."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import math
import operator
import pickle
import random
from collections import OrderedDict, UserDict
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from hazards.captured_harness import (
    CAPTURED,
    EITHER,
    GPU,
    SIMULATED,
    captured_case,
    refused,
    snapshot,
)
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


NUM = 30


def seeded(place, make):
    """Return what `make()` gives on the place's device, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return make().to(place.torch_device)


def tokens(place, number, *, rows=4, length=6, words=12):
    """Return token ids of this number, on the device."""
    draw = torch.Generator().manual_seed(300 + number)
    return place.moved(torch.randint(1, words, (rows, length), generator=draw))


def fused_sgd(model, **settings):
    return sgd(model, fused=True, **settings)


def autocast(place, **settings):
    return torch.autocast(place.torch_device.type, **{"dtype": torch.bfloat16, **settings})


# -------------------------------------------------------------------------- mixed precision


def scaler_of(place, **settings):
    settings = {"init_scale": 2.0**10, "growth_interval": 3, **settings}
    return torch.amp.GradScaler(place.torch_device.type, **settings)


def with_overflows(pair, number):
    x, y = pair
    return x * (1e38 if number in (9, 10, 19) else 1), y


@captured_case(
    "A scheduler is called after those steps whose update the scaler did not skip.",
    expect=CAPTURED,
)
def scheduler_follows_the_scaler(place):
    model = mlp(place, dropout=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.5)
    scaler = scaler_of(place)

    def train(pair):
        x, y = pair
        optimizer.zero_grad(set_to_none=True)
        with autocast(place):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss, norm

    step = place.capture(train)
    results = []
    for number, pair in enumerate(batches(place, NUM)):
        before = scaler.get_scale()
        results.append([one.detach() for one in step(with_overflows(pair, number))])
        if scaler.get_scale() >= before:
            schedule.step()
    return results, scaler.state_dict(), schedule.get_last_lr(), state(model, optimizer)


@captured_case(
    "The step scales and goes backward; the loop unscales, clips, updates and grows the scale.",
    expect=CAPTURED,
)
def scaler_is_stepped_outside(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    scaler = scaler_of(place)

    def forward_backward(pair):
        x, y = pair
        optimizer.zero_grad()
        with autocast(place):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        return loss

    step = place.capture(forward_backward)
    results = []
    for number, pair in enumerate(batches(place, NUM)):
        loss = step(with_overflows(pair, number))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        results.append((kept(loss), scaler.get_scale()))
    return results, state(model, optimizer)


@captured_case("One scaler serves the two optimizers of a GAN.", expect=CAPTURED)
def one_scaler_for_two_optimizers(place):
    generator, critic = mlp(place, num_out=8), mlp(place, num_out=1)
    of_generator, of_critic = fused_sgd(generator, lr=0.02), fused_sgd(critic, lr=0.02)
    scaler = scaler_of(place, growth_interval=4)

    def train(real):
        noise = torch.randn_like(real)
        of_critic.zero_grad()
        with autocast(place):
            fake = generator(noise)
            loss_c = F.softplus(critic(fake.detach())).mean() + F.softplus(-critic(real)).mean()
        scaler.scale(loss_c).backward()
        scaler.step(of_critic)
        of_generator.zero_grad()
        with autocast(place):
            loss_g = F.softplus(-critic(fake)).mean()
        scaler.scale(loss_g).backward()
        scaler.step(of_generator)
        scaler.update()
        return {"critic": loss_c.detach(), "generator": loss_g.detach()}

    step = place.capture(train)
    results = [step(x) for x, _ in batches(place, 24)]
    return results, scaler.state_dict(), state(generator, of_generator), state(critic, of_critic)


@captured_case(
    "A bad batch raises after `unscale_`; the scaler then complains as long as it does.",
    expect=EITHER,
)
def raises_after_unscale(place):
    model = mlp(place)
    optimizer = fused_sgd(model)
    scaler = scaler_of(place)

    def train(pair, *, is_bad=False):
        x, y = pair
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        if is_bad:
            raise ValueError("a bad batch")
        scaler.step(optimizer)
        scaler.update()
        return x.sum()

    step = place.capture(train)
    results = []
    for number, pair in enumerate(batches(place, 24)):
        try:
            results.append(step(pair, is_bad=number == 12))
        except (ValueError, RuntimeError) as error:
            results.append(str(error))
        if number == 14:
            scaler.update()
    return results, state(model, optimizer)


@captured_case(
    "The step scales and steps; the loop updates the scaler, and changes how it backs off.",
    expect=EITHER,
)
def scaler_is_updated_outside(place):
    model = mlp(place)
    optimizer = fused_sgd(model)
    scaler = scaler_of(place)

    def train(pair):
        x, y = pair
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        return loss

    step = place.capture(train)
    results = []
    for number, pair in enumerate(batches(place, 24)):
        results.append(kept(step(with_overflows(pair, number))))
        scaler.update()
        if number == 14:
            scaler.set_backoff_factor(0.25)
        results.append(scaler.get_scale())
    return results, state(model, optimizer)


@captured_case("The growth of a scaler that the step updates is set by the loop.", expect=CAPTURED)
def growth_of_a_scaler_is_set(place):
    model = mlp(place)
    optimizer = fused_sgd(model)
    scaler = scaler_of(place)

    def train(pair):
        x, y = pair
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    step = place.capture(train)
    results = []
    for number, pair in enumerate(batches(place, 30)):
        results.append(kept(step(with_overflows(pair, number))))
        if number == 14:
            scaler.set_backoff_factor(0.25)
            scaler.set_growth_interval(2)
        results.append(scaler.get_scale())
    return results, state(model, optimizer)


@captured_case("`forward` is decorated with autocast, the loss is not.", expect=CAPTURED)
def autocast_as_a_decorator(place):
    class Model(Headed):
        @autocast(place)
        def forward(self, x):
            return super().forward(x)

    model = seeded(place, Model)
    optimizer = sgd(model)

    def train(pair):
        x, y = pair
        return updated(optimizer, F.cross_entropy(model(x).float(), y))

    losses = []
    step = place.capture(train)
    for number, pair in enumerate(batches(place, NUM)):
        losses += run(step, [pair])
        if number % 6 == 5:
            with torch.no_grad():
                losses.append(model(pair[0]))
    return losses, state(model)


@captured_case("A loss switches autocast off for itself, and casts to float.", expect=CAPTURED)
def autocast_is_off_in_a_part(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    settings = {"enabled": True}

    def train(pair):
        x, y = pair
        with autocast(place, enabled=settings["enabled"]):
            out = model(x)
            with autocast(place, enabled=False):
                last = model[3].weight
                loss = F.cross_entropy(out.float() @ (last @ last.t()), y)
        return updated(optimizer, loss)

    def before(number):
        settings["enabled"] = number < 15

    return losses_of(place, place.capture(train), NUM, before=before), state(model)


@captured_case("A custom function is made for autocast by `custom_fwd`.", expect=CAPTURED)
def custom_function_under_autocast(place):
    kind = place.torch_device.type

    class Square(torch.autograd.Function):
        @staticmethod
        @functools.partial(torch.amp.custom_fwd, device_type=kind, cast_inputs=torch.float32)
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @functools.partial(torch.amp.custom_bwd, device_type=kind)
        def backward(ctx, grad_out):
            (x,) = ctx.saved_tensors
            return 2 * x * grad_out

    model = mlp(place)
    optimizer = sgd(model)

    def train(pair):
        x, y = pair
        with autocast(place):
            loss = F.cross_entropy(Square.apply(model(x)), y)
        return updated(optimizer, loss)

    return losses_of(place, place.capture(train), NUM), state(model)


@captured_case("Weights in bfloat16 have master copies in float32.", expect=CAPTURED)
def master_weights(place):
    model = mlp(place).to(torch.bfloat16)
    masters = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1, momentum=0.9)

    def train(pair):
        x, y = pair
        for p in model.parameters():
            p.grad = None
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        loss.backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            master.grad = p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters(), strict=True):
                p.copy_(master)
        return loss

    return losses_of(place, place.capture(train), NUM), masters, state(model, optimizer)


@captured_case("A static loss scale is doubled by the loop every ten steps.", expect=EITHER)
def loss_scale_by_hand(place):
    trainer = Trainer(place)
    trainer.scale = 2.0

    def train(pair):
        trainer.optimizer.zero_grad()
        loss = trainer.loss(pair)
        (loss * trainer.scale).backward()
        for p in trainer.model.parameters():
            p.grad.div_(trainer.scale)
        trainer.optimizer.step()
        return loss

    def before(number):
        if number % 10 == 9:
            trainer.scale *= 2

    return losses_of(place, place.capture(train), NUM, before=before), trainer.state()


@captured_case(
    "The model goes to bfloat16 in the middle; the optimizer stays, its state is cleared.",
    expect=CAPTURED,
)
def model_becomes_bfloat16(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)

    def train(pair):
        x, y = pair
        out = model(x.to(model[0].weight.dtype))
        return updated(optimizer, F.cross_entropy(out.float(), y))

    def before(number):
        if number == 14:
            model.to(torch.bfloat16)
            optimizer.state.clear()
            optimizer.zero_grad()

    return losses_of(place, place.capture(train), NUM, before=before), state(model, optimizer)


# ----------------------------------------------------------------------------- accumulation


@captured_case(
    "A context manager of the loop says in an attribute whether gradients are used now.",
    expect=CAPTURED,
)
def accumulate_by_a_context_manager(place):
    class Accelerator:
        sync_gradients = True
        num_calls = 0

        @contextlib.contextmanager
        def accumulate(self):
            self.num_calls += 1
            self.sync_gradients = self.num_calls % 3 == 0
            yield

    accelerator, model = Accelerator(), mlp(place)
    optimizer = sgd(model, momentum=0.9)

    def train(pair):
        x, y = pair
        loss = F.cross_entropy(model(x), y)
        (loss / 3).backward()
        if accelerator.sync_gradients:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return loss

    step = place.capture(train)
    losses = []
    for pair in batches(place, 42):
        with accelerator.accumulate():
            losses.append(kept(step(pair)))
    return losses, state(model, optimizer)


@captured_case(
    "The step only goes backward; the loop updates every third time and lets gradients go.",
    expect=EITHER,
)
def update_outside_every_third_time(place):
    model = mlp(place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def forward_backward(pair):
        x, y = pair
        loss = F.cross_entropy(model(x), y) / 3
        loss.backward()
        return loss

    step = place.capture(forward_backward)
    losses = []
    for number, pair in enumerate(batches(place, NUM)):
        losses.append(kept(step(pair)))
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    return losses, state(model, optimizer)


@captured_case(
    "Micro-batches, the last group of which is shorter, are weighted by tokens.", expect=CAPTURED
)
def micro_batches_by_tokens(place):
    model = seeded(place, lambda: nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12)))
    optimizer = sgd(model, momentum=0.9)

    def train(parts):
        optimizer.zero_grad()
        num_tokens = sum((part[:, 1:] != 1).sum() for part in parts)
        total = 0.0
        for part in parts:
            out = model(part[:, :-1]).flatten(0, 1)
            target = part[:, 1:].flatten()
            loss = F.cross_entropy(out, target, ignore_index=1, reduction="sum") / num_tokens
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    step = place.capture(train)
    losses = []
    for number in range(28):
        size = 2 if number % 7 == 6 else 3
        losses.append(step([tokens(place, 3 * number + part) for part in range(size)]).clone())
    return losses, state(model, optimizer)


@captured_case("Gradients are summed in buffers of the user's own, by a flag.", expect=CAPTURED)
def gradients_in_buffers(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    sums = [torch.zeros_like(p) for p in model.parameters()]

    def train(pair, flush):
        x, y = pair
        loss = F.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        for one, new in zip(sums, grads, strict=True):
            one += new
        if flush:
            for p, one in zip(model.parameters(), sums, strict=True):
                p.grad = one / 2
            optimizer.step()
            for one in sums:
                one.zero_()
        return loss

    step = place.capture(train)
    losses = [kept(step(pair, n % 2 == 1)) for n, pair in enumerate(batches(place, NUM))]
    return losses, sums, state(model, optimizer)


# --------------------------------------------------------------- clipping and other gradients


@captured_case("Adaptive gradient clipping, by the norms of each row.", expect=CAPTURED)
def adaptive_clipping(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)

    def norms(x):
        return x.norm(dim=tuple(range(1, x.ndim)), keepdim=True) if x.ndim > 1 else x.norm()

    def train(pair):
        x, y = pair
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for p in model.parameters():
            limit = norms(p.detach()).clamp_(min=1e-3) * 0.01
            norm = norms(p.grad)
            smaller = p.grad * (limit / norm.clamp(min=1e-6))
            p.grad.detach().copy_(torch.where(norm > limit, smaller, p.grad))
        optimizer.step()
        return loss

    return losses_of(place, place.capture(train), NUM), state(model, optimizer)


@captured_case(
    "Each layer has a norm of its own; one of them is loosened by the loop.", expect=CAPTURED
)
def clipping_by_layer(place):
    model = mlp(place)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    limits = {name: 0.1 for name, _ in model.named_parameters()}

    def train(pair):
        x, y = pair
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norms = {
            name: nn.utils.clip_grad_norm_([p], limits[name])
            for name, p in model.named_parameters()
        }
        optimizer.step()
        return loss, norms

    step = place.capture(train)
    results = []
    for number, pair in enumerate(batches(place, NUM)):
        if number == 15:
            limits["3.weight"] = 10.0
        results.append(step(pair)[1])
    return results, state(model, optimizer)


@captured_case(
    "AutoClip: norms stand in a ring on the device, whose pointer is a tensor.", expect=CAPTURED
)
def clipping_by_a_quantile(place):
    model = mlp(place)
    optimizer = sgd(model)
    ring = torch.full((8,), 1.0, device=place.torch_device)
    pointer = torch.zeros(1, dtype=torch.long, device=place.torch_device)

    def train(pair):
        x, y = pair
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        ring.scatter_(0, pointer, norm.reshape(1))
        pointer.add_(1).remainder_(8)
        factor = (ring.sort().values[2] / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_([p.grad for p in model.parameters()], factor)
        optimizer.step()
        return loss

    return losses_of(place, place.capture(train), NUM), ring, pointer, state(model)


@captured_case(
    "AutoClip: norms are appended to a list, of which the step takes a quantile.",
    expect=refused("norms", at="norms.append(norm)"),
)
def clipping_by_a_list_of_norms(place):
    model = mlp(place)
    optimizer = sgd(model)
    norms = []

    def train(pair):
        x, y = pair
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        norms.append(norm)
        limit = torch.stack(norms).sort().values[len(norms) // 4]
        torch._foreach_mul_([p.grad for p in model.parameters()], limit / (norm + 1e-6))
        optimizer.step()
        return loss

    return losses_of(place, place.capture(train), NUM), norms, state(model)


@captured_case(
    "Noise is added to gradients by hooks; its size is a tensor that the loop fills.",
    expect=CAPTURED,
)
def gradient_noise_by_hooks(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    sigma = torch.tensor(0.1, device=place.torch_device)
    for p in model.parameters():
        p.register_hook(lambda g: g + sigma * torch.randn_like(g))

    def before(number):
        sigma.fill_(0.1 / (1 + number) ** 0.55)

    step = place.capture(training_step(model, optimizer))
    return losses_of(place, step, NUM, before=before), state(model, optimizer)


@captured_case(
    "Gradients are centralised by hooks after accumulation, for a phase.", expect=CAPTURED
)
def gradient_centralisation(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)

    def centralise(p):
        if p.ndim > 1:
            p.grad.sub_(p.grad.mean(dim=1, keepdim=True))

    hooks = [p.register_post_accumulate_grad_hook(centralise) for p in model.parameters()]

    def before(number):
        if number == 15:
            for hook in hooks:
                hook.remove()

    step = place.capture(training_step(model, optimizer))
    return losses_of(place, step, NUM, before=before), state(model, optimizer)


@captured_case(
    "The gradient of a bias is let go between backward and update, for some phases.",
    expect=CAPTURED,
)
def one_gradient_is_let_go(place):
    trainer = Trainer(place)
    trainer.is_biased = True

    def train(pair):
        trainer.optimizer.zero_grad()
        loss = trainer.loss(pair)
        loss.backward()
        if not trainer.is_biased:
            trainer.model[3].bias.grad = None
        trainer.optimizer.step()
        return loss

    def before(number):
        trainer.is_biased = number // 8 % 2 == 0

    losses = losses_of(place, place.capture(train), 40, before=before)
    return losses, trainer.state(), [p.grad for p in trainer.model.parameters()]


@captured_case(
    "Conflicting gradients of two tasks are projected onto each other.", expect=CAPTURED
)
def gradient_surgery(place):
    model = seeded(place, Headed)
    optimizer = sgd(model)

    def train(pair):
        x, y = pair
        out = model(x)
        losses = [F.cross_entropy(out, y), out.square().mean()]
        first, second = (
            torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            for loss in losses
        )
        for p, a, b in zip(model.parameters(), first, second, strict=True):
            dot = (a * b).sum()
            p.grad = a + b - torch.where(dot < 0, dot / b.square().sum().clamp(min=1e-9), 0.0) * b
        optimizer.step()
        return torch.stack(losses)

    return losses_of(place, place.capture(train), NUM), state(model)


@captured_case(
    "Per-sample gradients by vmap of grad are clipped and noised: DP-SGD.",
    expect=CAPTURED,
    devices=(GPU,),
)
def differential_privacy(place):
    model = mlp(place)
    optimizer = sgd(model)

    def loss_of(weights, x, y):
        return F.cross_entropy(functional_call(model, weights, (x[None],)), y[None])

    def train(pair):
        x, y = pair
        weights = {name: p.detach() for name, p in model.named_parameters()}
        grads = vmap(grad(loss_of), in_dims=(None, 0, 0))(weights, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factors = (1.0 / norms).clamp(max=1.0)
        for name, p in model.named_parameters():
            total = torch.einsum("n,n...->...", factors, grads[name])
            p.grad = (total + 0.1 * torch.randn_like(p)) / len(x)
        optimizer.step()
        return norms.mean()

    return losses_of(place, place.capture(train), NUM), state(model)


# --------------------------------------------------------------- averages, lookahead, and SAM


@captured_case("The decay of an average warms up by a count on the device.", expect=CAPTURED)
def average_with_a_warm_up(place):
    model = mlp(place, dropout=0.1)
    optimizer = sgd(model, momentum=0.9)
    average = copy.deepcopy(model).requires_grad_(False).eval()
    count = torch.zeros((), device=place.torch_device)

    def train(pair):
        x, y = pair
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        with torch.no_grad():
            count.add_(1)
            decay = torch.minimum((1 + count) / (10 + count), torch.full_like(count, 0.99))
            for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(p, 1 - decay)
        return loss

    step = place.capture(train)
    results = []
    for number, pair in enumerate(batches(place, NUM)):
        results.append(kept(step(pair)))
        if number % 7 == 6:
            with torch.no_grad():
                weights = dict(average.named_parameters())
                results.append(functional_call(model.eval(), weights, (pair[0],)))
            model.train()
    return results, state(average), state(model, optimizer)


@captured_case("Lookahead counts on the device, and follows by `torch.where`.", expect=CAPTURED)
def lookahead_on_the_device(place):
    model = mlp(place)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    slow = [p.detach().clone() for p in model.parameters()]
    count = torch.zeros((), dtype=torch.long, device=place.torch_device)

    def train(pair):
        x, y = pair
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        count.add_(1)
        is_turn = count % 5 == 0
        with torch.no_grad():
            for one, p in zip(slow, model.parameters(), strict=True):
                one.copy_(torch.where(is_turn, torch.lerp(one, p, 0.5), one))
                p.copy_(torch.where(is_turn, one, p))
        return loss

    return losses_of(place, place.capture(train), NUM), slow, state(model, optimizer)


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimisation, as people copy it."""

    def __init__(self, params, base, rho=0.05, **settings):
        super().__init__(params, {"rho": rho, **settings})
        self.base = base(self.param_groups, **settings)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm()
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base.step()
        self.zero_grad()


def _with_sam(place, model, around_second):
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)

    def train(pair):
        x, y = pair
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.first_step()
        with around_second(model):
            F.cross_entropy(model(x), y).backward()
        optimizer.second_step()
        return loss

    def before(number):
        if number == 20:
            optimizer.param_groups[0]["rho"] = 0.2

    losses = losses_of(place, place.capture(train), NUM, before=before)
    return losses, state(model)


@captured_case("SAM as people copy it: `.data` becomes the old weights again.", expect=EITHER)
def sharpness_aware(place):
    return _with_sam(place, mlp(place), contextlib.nullcontext)


@captured_case(
    "SAM keeps running statistics from the second pass by a momentum of zero, put back after it.",
    expect=EITHER,
)
def sharpness_aware_with_statistics(place):
    @contextlib.contextmanager
    def without_statistics(model):
        momenta = {m: m.momentum for m in model.modules() if isinstance(m, nn.BatchNorm1d)}
        for module in momenta:
            module.momentum = 0.0
        yield
        for module, momentum in momenta.items():
            module.momentum = momentum

    model = seeded(
        place, lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    )
    return _with_sam(place, model, without_statistics)


@captured_case(
    "SAM in place: weights are perturbed and put back by the same in-place sums.", expect=CAPTURED
)
def sharpness_aware_in_place(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    weights = list(model.parameters())

    def train(pair):
        x, y = pair
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            norm = torch._foreach_norm([p.grad for p in weights])
            scale = 0.05 / (torch.stack(norm).norm() + 1e-12)
            moves = torch._foreach_mul([p.grad for p in weights], scale)
            torch._foreach_add_(weights, moves)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            torch._foreach_sub_(weights, moves)
        optimizer.step()
        return loss

    return losses_of(place, place.capture(train), NUM), state(model, optimizer)


@captured_case("The mean of three checkpoints is loaded in the middle: a soup.", expect=CAPTURED)
def soup_of_checkpoints(place):
    trainer = Trainer(place)
    checkpoints = []

    def before(number):
        if number in (5, 10, 15):
            checkpoints.append(copy.deepcopy(trainer.model.state_dict()))
        if number == 18:
            first, *others = checkpoints
            mean = {k: sum((o[k] for o in others), first[k]) / 3 for k in first}
            trainer.model.load_state_dict(mean)

    return losses_of(place, place.capture(trainer.train), NUM, before=before), trainer.state()


# -------------------------------------------------- models that are frozen, grown and replaced


@captured_case("Layers thaw one after the other, from the head down.", expect=CAPTURED)
def gradual_unfreezing(place):
    model = seeded(
        place,
        lambda: nn.Sequential(*[nn.Linear(8, 8), nn.Tanh()] * 1, nn.Linear(8, 8), nn.Linear(8, 4)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    layers = [model[3], model[2], model[0]]
    model.requires_grad_(False)

    def before(number):
        if number % 12 == 0 and layers:
            layers.pop(0).requires_grad_(True)

    step = place.capture(training_step(model, optimizer))
    return losses_of(place, step, 42, before=before), state(model, optimizer)


@captured_case(
    "`train()` is overridden to keep batch norm frozen; validation runs in between.",
    expect=CAPTURED,
)
def batch_norm_stays_frozen(place):
    class Model(nn.Sequential):
        is_frozen = False

        def train(self, mode=True):
            super().train(mode)
            if self.is_frozen:
                self[1].eval()
            return self

    model = seeded(place, lambda: Model(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)))
    step = place.capture(training_step(model, sgd(model, momentum=0.9)))
    results = []
    for epoch in range(6):
        model.is_frozen = epoch >= 3
        model.train()
        results += run(step, batches(place, 6))
        model.eval()
        with torch.no_grad():
            results.append(model(batch(place, 90)[0]))
    return results, state(model)


class Lora(nn.Module):
    """A linear layer with a low-rank addition, which can be merged into it."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        weight = base.weight
        ones = functools.partial(torch.ones, device=weight.device)
        self.a = nn.Parameter(0.1 * ones(2, weight.shape[1]))
        self.b = nn.Parameter(0 * ones(weight.shape[0], 2))
        self.is_merged = False

    @torch.no_grad()
    def merge(self, sign):
        self.base.weight += sign * self.b @ self.a
        self.is_merged = sign > 0

    def forward(self, x):
        out = self.base(x)
        return out if self.is_merged else out + x @ self.a.t() @ self.b.t()


@captured_case(
    "Layers are wrapped for LoRA in the middle, and merged for each validation.", expect=CAPTURED
)
def adapters_are_added_and_merged(place):
    trainer = Trainer(place)
    model = trainer.model
    step = place.capture(trainer.train)
    results = run(step, batches(place, 10))
    for number in (0, 3):
        model[number] = Lora(model[number])
    weights = [p for p in model.parameters() if p.requires_grad]
    trainer.optimizer = torch.optim.AdamW(weights, lr=1e-2)
    for number, pair in enumerate(batches(place, 24)):
        results += run(step, [pair])
        if number % 6 == 5:
            for sign in (1, -1):
                with torch.no_grad():
                    results.append(model(pair[0]))
                model[0].merge(sign)
                model[3].merge(sign)
    return results, trainer.state()


@captured_case(
    "A network grows by a layer that is faded in by a buffer which the loop fills.",
    expect=CAPTURED,
)
def growing_with_a_fade(place):
    class Growing(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(8, 8)])
            self.head = nn.Linear(8, 4)
            self.register_buffer("alpha", torch.tensor(1.0))

        def forward(self, x):
            *first, last = self.blocks
            for block in first:
                x = F.relu(block(x))
            x = torch.lerp(x, F.relu(last(x)), self.alpha)
            return self.head(x)

    model = seeded(place, Growing)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def before(number):
        if number in (14, 28):
            new = seeded(place, lambda: nn.Linear(8, 8))
            model.blocks.append(new)
            optimizer.add_param_group({"params": new.parameters()})
        if number >= 14:
            model.alpha.fill_(min(1.0, (number % 14) / 8))

    step = place.capture(training_step(model, optimizer))
    return losses_of(place, step, 42, before=before), state(model, optimizer)


@captured_case(
    "A layer is widened, and the optimizer's groups and state are edited for it.", expect=CAPTURED
)
def layer_is_widened(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)

    def widened(old, make):
        new = make(old.detach().clone())
        optimizer.state[new]["momentum_buffer"] = make(optimizer.state.pop(old)["momentum_buffer"])
        return new

    def before(number):
        if number != 15:
            return
        first, last = model[0], model[3]
        rows = lambda t: nn.Parameter(torch.cat([t, t[:4]]))  # noqa: E731
        columns = lambda t: nn.Parameter(torch.cat([t, t[:, :4]], 1))  # noqa: E731
        first.weight, first.bias = widened(first.weight, rows), widened(first.bias, rows)
        last.weight = widened(last.weight, columns)
        first.out_features = last.in_features = 20
        optimizer.param_groups[0]["params"] = list(model.parameters())

    step = place.capture(training_step(model, optimizer))
    losses = losses_of(place, step, NUM, before=before)
    return losses, list(model.parameters()), len(optimizer.state)


@captured_case(
    "Each task has a head in a ModuleDict; one of them is re-initialised.", expect=CAPTURED
)
def a_head_for_each_task(place):
    body = seeded(place, lambda: nn.Linear(8, 8))
    heads = nn.ModuleDict({n: seeded(place, lambda: nn.Linear(8, 4)) for n in ("a", "b")})
    optimizer = sgd(nn.ModuleList([body, heads]), momentum=0.9)

    def train(one):
        out = heads[one["task"]](F.relu(body(one["x"])))
        return updated(optimizer, F.cross_entropy(out, one["y"]))

    step = place.capture(train)
    losses = []
    for number, (x, y) in enumerate(batches(place, 40)):
        losses.append(kept(step({"task": "ab"[number // 3 % 2], "x": x, "y": y})))
        if number == 20:
            with torch.no_grad():
                heads["b"].weight.zero_()
                heads["b"].bias.fill_(0.1)
    return losses, state(body), state(heads, optimizer)


@captured_case("`forward` ties the weights anew each time it is called.", expect=EITHER)
def weights_are_tied_in_forward(place):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Embedding(12, 8), nn.Linear(8, 12)

        def forward(self, ids):
            self.decoder.weight = self.encoder.weight
            return self.decoder(self.encoder(ids))

    model = seeded(place, Model)
    optimizer = sgd(model, momentum=0.9)

    def train(ids):
        out = model(ids[:, :-1]).flatten(0, 1)
        return updated(optimizer, F.cross_entropy(out, ids[:, 1:].flatten()))

    step = place.capture(train)
    return [kept(step(tokens(place, n))) for n in range(24)], state(model, optimizer)


@captured_case(
    "Weights are set from one vector by `vector_to_parameters`, twice.", expect=CAPTURED
)
def weights_from_a_vector(place):
    trainer = Trainer(place)
    vectors = []

    def before(number):
        if number == 8:
            vectors.append(nn.utils.parameters_to_vector(trainer.model.parameters()).detach())
        if number in (12, 22):
            vector = (vectors[0] * (1 + number)).clone() / 20
            nn.utils.vector_to_parameters(vector, trainer.model.parameters())
            vectors.append(vector)

    step = place.capture(trainer.train)
    return losses_of(place, step, 36, before=before), vectors, trainer.state()


@captured_case("A convolution goes to channels_last in the middle.", expect=CAPTURED)
def becomes_channels_last(place):
    model = seeded(
        place,
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 4)
        ),
    )
    optimizer = sgd(model, momentum=0.9, lr=0.01)
    train = training_step(model, optimizer)
    step = place.capture(train)
    losses = []
    for number in range(NUM):
        x, y = batch(place, number, rows=4, num_in=108)
        x = x.view(4, 3, 6, 6)
        if number == 12:
            model.to(memory_format=torch.channels_last)
        if number >= 12:
            x = x.contiguous(memory_format=torch.channels_last)
        losses.append(kept(step((x, y))))
    return losses, list(model.parameters())


# ---------------------------------------------------------------- optimizers and schedulers


@captured_case(
    "Training warms up with SGD and goes on with Adam, both made at the start.", expect=CAPTURED
)
def sgd_then_adam(place):
    trainer = Trainer(place)
    both = [trainer.optimizer, torch.optim.Adam(trainer.model.parameters(), lr=1e-2)]

    def before(number):
        trainer.optimizer = both[number >= 12]

    return (
        losses_of(place, place.capture(trainer.train), NUM, before=before),
        [one.state_dict() for one in both],
        trainer.state(),
    )


@captured_case(
    "Actor and critic share a trunk and have optimizers; the entropy's weight falls.",
    expect=CAPTURED,
)
def actor_and_critic(place):
    trunk, actor, critic = (seeded(place, lambda n=n: nn.Linear(8, n)) for n in (8, 4, 1))
    of_actor = torch.optim.Adam([*trunk.parameters(), *actor.parameters()], lr=1e-2)
    of_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-2)
    config = {"entropy": 0.1}

    def train(x, action, reward):
        hidden = torch.tanh(trunk(x))
        value = critic(hidden.detach()).squeeze(1)
        policy = torch.distributions.Categorical(logits=actor(hidden), validate_args=False)
        advantage = (reward - value).detach()
        loss_pi = -(policy.log_prob(action) * advantage).mean()
        loss_pi = loss_pi - config["entropy"] * policy.entropy().mean()
        loss_v = F.mse_loss(value, reward)
        for optimizer, loss in ((of_actor, loss_pi), (of_critic, loss_v)):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss_pi, loss_v, policy.probs

    step = place.capture(train)
    results = []
    for number, (x, y) in enumerate(batches(place, 36)):
        if number % 12 == 0:
            config["entropy"] *= 0.5
        results.append([kept(one) for one in step(x, y, reward=x.sum(1))])
    return results, state(trunk, of_actor), state(critic, of_critic)


class Noam:
    """The schedule of the annotated Transformer, around its optimizer."""

    def __init__(self, optimizer):
        self.optimizer, self._step, self._rate = optimizer, 0, 0.0

    def step(self):
        self._step += 1
        self._rate = 0.5 * min(self._step**-0.5, self._step * 10**-1.5)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad()


@captured_case(
    "An optimizer is wrapped by one that counts and sets the rate: Noam.",
    expect=refused("_step", at="self._step += 1"),
)
def noam_around_adam(place):
    model = mlp(place)
    optimizer = Noam(torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9))
    step = place.capture(training_step(model, optimizer))
    return losses_of(place, step, 20), optimizer._rate, state(model, optimizer.optimizer)


def _scheduled(place, optimizer_of, schedule_of, step_of):
    model = mlp(place)
    optimizer = optimizer_of(model)
    schedule = schedule_of(optimizer)
    step = place.capture(training_step(model, optimizer))
    losses = []
    for number, pair in enumerate(batches(place, 36)):
        losses += run(step, [pair])
        step_of(schedule, number)
    return losses, schedule.get_last_lr(), state(model, optimizer)


@captured_case("Cosine with warm restarts is stepped by fractions of an epoch.", expect=CAPTURED)
def warm_restarts(place):
    schedules = torch.optim.lr_scheduler
    return _scheduled(
        place,
        functools.partial(sgd, momentum=0.9, nesterov=True),
        lambda optimizer: schedules.CosineAnnealingWarmRestarts(optimizer, T_0=2, T_mult=2),
        lambda schedule, number: schedule.step(number / 6),
    )


@captured_case("Rate and momentum go up and down in cycles.", expect=CAPTURED)
def cyclic_rates(place):
    schedules = torch.optim.lr_scheduler
    return _scheduled(
        place,
        functools.partial(sgd, momentum=0.9),
        lambda optimizer: schedules.CyclicLR(optimizer, 0.01, 0.1, step_size_up=5),
        lambda schedule, number: schedule.step(),
    )


@captured_case(
    "Two schedules are chained; the optimizer is AMSGrad with two groups.", expect=CAPTURED
)
def chained_schedules(place):
    schedules = torch.optim.lr_scheduler

    def optimizer_of(model):
        first, *others = model.parameters()
        groups = [{"params": [first], "weight_decay": 0.1}, {"params": others, "lr": 3e-3}]
        return torch.optim.AdamW(groups, lr=1e-2, amsgrad=True)

    def schedule_of(optimizer):
        return schedules.ChainedScheduler(
            [
                schedules.ConstantLR(optimizer, factor=0.1, total_iters=8),
                schedules.MultiplicativeLR(optimizer, lambda number: 0.95),
            ]
        )

    return _scheduled(place, optimizer_of, schedule_of, lambda schedule, number: schedule.step())


@captured_case(
    "Population-based training: the worse of two copies takes weights and state of the better.",
    expect=CAPTURED,
)
def population_based_training(place):
    trainers = [Trainer(place), Trainer(place)]
    trainers[1].optimizer.param_groups[0]["lr"] = 0.01
    steps = [place.capture(trainer.train) for trainer in trainers]
    losses = []
    for number, pair in enumerate(batches(place, NUM)):
        now = [kept(step(pair)) for step in steps]
        losses.append(now)
        if number % 10 == 9:
            values = [float(one) for one in now]
            worse, better = values.index(max(values)), values.index(min(values))
            trainers[worse].model.load_state_dict(trainers[better].model.state_dict())
            state_dict = copy.deepcopy(trainers[better].optimizer.state_dict())
            trainers[worse].optimizer.load_state_dict(state_dict)
            trainers[worse].optimizer.param_groups[0]["lr"] *= 1.2
    return losses, [trainer.state() for trainer in trainers]


class ScheduleFree(torch.optim.Optimizer):
    """Schedule-free SGD: weights are read at y in training, and at x in evaluation."""

    def __init__(self, params, lr=0.1, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0, "train_mode": True})

    @torch.no_grad()
    def move(self, weight):
        for group in self.param_groups:
            for p in group["params"]:
                if "z" in self.state[p]:
                    p.lerp_(self.state[p]["z"], weight(group["beta"]))

    def eval(self):
        self.move(lambda beta: 1 - 1 / beta)

    def train(self):
        self.move(lambda beta: 1 - beta)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            share = 1 / (group["k"] + 1)
            for p in group["params"]:
                own = self.state[p]
                if "z" not in own:
                    own["z"] = p.clone()
                p.lerp_(own["z"], share)
                p.add_(p.grad, alpha=group["lr"] * (group["beta"] * (1 - share) - 1))
                own["z"].sub_(p.grad, alpha=group["lr"])
            group["k"] += 1


@captured_case(
    "A schedule-free optimizer counts in its group, and is switched for validation.",
    expect=refused(at='group["k"] += 1'),
)
def schedule_free(place):
    model = mlp(place)
    optimizer = ScheduleFree(model.parameters())
    step = place.capture(training_step(model, optimizer))
    results = []
    for number, pair in enumerate(batches(place, 24)):
        results += run(step, [pair])
        if number % 6 == 5:
            optimizer.eval()
            with torch.no_grad():
                results.append(model(pair[0]))
            optimizer.train()
    return results, state(model, optimizer)


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal by Newton's iteration."""

    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                own = self.state[p]
                if len(own) == 0:
                    own["momentum"] = torch.zeros_like(p)
                own["momentum"].lerp_(p.grad, 1 - group["momentum"])
                g = p.grad.lerp(own["momentum"], group["momentum"])
                p.add_(self.orthogonal(g), alpha=-group["lr"] * max(1, math.sqrt(len(p))))

    def orthogonal(self, g, num=3):
        x = g / (g.norm() + 1e-7)
        for _ in range(num):
            a = x @ x.T
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        return x


@captured_case(
    "Muon for matrices and AdamW for the rest; Muon's momentum changes once.", expect=CAPTURED
)
def muon_and_adamw(place):
    model = mlp(place)
    muon = Muon([p for p in model.parameters() if p.ndim == 2])
    adamw = torch.optim.AdamW([p for p in model.parameters() if p.ndim < 2], lr=1e-2)
    optimizers = [muon, adamw]

    def train(pair):
        x, y = pair
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        return loss

    def before(number):
        muon.param_groups[0]["momentum"] = 0.85 if number < 14 else 0.95

    return losses_of(place, place.capture(train), 32, before=before), state(model, *optimizers)


@captured_case(
    "A step size is estimated on the device and kept in the group, a new tensor each step.",
    expect=EITHER,
)
def step_size_is_a_kept_tensor(place):
    class Adaptive(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                norm = torch.stack([p.grad.norm() for p in group["params"]]).sum()
                group["d"] = torch.maximum(group["d"], 0.01 / (1 + norm))
                for p in group["params"]:
                    p.sub_(group["d"] * p.grad)

    model = mlp(place)
    start = torch.tensor(1e-3, device=place.torch_device)
    optimizer = Adaptive(model.parameters(), {"d": start})
    step = place.capture(training_step(model, optimizer))
    sizes = []
    losses = []
    for pair in batches(place, 24):
        losses += run(step, [pair])
        sizes.append(optimizer.param_groups[0]["d"].clone())
    return losses, sizes, state(model)


# ------------------------------------------------------------------------------------ losses


@captured_case("Weights of two losses are learned, as logarithms of variances.", expect=CAPTURED)
def uncertainty_weights(place):
    model = mlp(place)
    logs = nn.Parameter(torch.zeros(2, device=place.torch_device))
    optimizer = torch.optim.Adam(
        [{"params": model.parameters()}, {"params": [logs], "lr": 0.05}], lr=1e-2
    )

    def train(pair):
        x, y = pair
        out = model(x)
        losses = {"classes": F.cross_entropy(out, y), "size": out.square().mean()}
        total = sum(
            torch.exp(-s) * loss + s for s, loss in zip(logs, losses.values(), strict=True)
        )
        updated(optimizer, total)
        return {name: loss.detach() for name, loss in losses.items()} | {"total": total.detach()}

    step = place.capture(train)
    results = [step(pair) for pair in batches(place, 24)]
    return results, logs, state(model, optimizer)


@captured_case(
    "A table of losses and weights loses an entry, and a weight becomes zero.", expect=CAPTURED
)
def table_of_losses(place):
    trainer = Trainer(place)
    trainer.terms = {
        "ce": (lambda out, y: F.cross_entropy(out, y), 1.0),
        "l2": (lambda out, y: out.square().mean(), 0.1),
        "entropy": (lambda out, y: (out.softmax(1) * out.log_softmax(1)).sum(1).mean(), 0.1),
    }

    def train(pair):
        x, y = pair
        out = trainer.model(x)
        parts = {k: w * of(out, y) for k, (of, w) in trainer.terms.items() if w > 0}
        updated(trainer.optimizer, sum(parts.values()))
        return {name: part.detach() for name, part in parts.items()}

    step = place.capture(train)
    results = []
    for number, pair in enumerate(batches(place, 36)):
        if number == 12:
            trainer.terms["l2"] = (trainer.terms["l2"][0], 0.0)
        if number == 24:
            del trainer.terms["entropy"]
        results.append(step(pair))
    return results, trainer.state()


@captured_case("Loss weights follow the losses of the last epoch, as floats.", expect=EITHER)
def weights_from_the_last_epoch(place):
    trainer = Trainer(place)
    trainer.weights = [1.0, 1.0]

    def train(pair):
        x, y = pair
        out = trainer.model(x)
        losses = [F.cross_entropy(out, y), out.square().mean()]
        updated(trainer.optimizer, sum(map(operator.mul, trainer.weights, losses)))
        return torch.stack([loss.detach() for loss in losses])

    step = place.capture(train)
    sums = []
    for _ in range(5):
        total = sum(step(pair) for pair in batches(place, 7))
        sums.append(total)
        ratios = (total / sums[0]).softmax(0)
        trainer.weights = [2 * float(ratio) for ratio in ratios]
    return sums, trainer.state()


@captured_case(
    "Two views pass the model; the mask of negatives is made when the size changes.",
    expect=CAPTURED,
)
def contrastive_with_a_kept_mask(place):
    class Contrast(nn.Module):
        mask = None

        def negatives(self, size, device):
            if self.mask is None or len(self.mask) != size:
                self.mask = torch.eye(size, dtype=torch.bool, device=device)
            return self.mask

        def forward(self, a, b):
            z = F.normalize(torch.cat([a, b]), dim=1)
            scores = (z @ z.t() / 0.2).masked_fill(self.negatives(len(z), z.device), -1e9)
            target = torch.arange(len(z), device=z.device).roll(len(a))
            return F.cross_entropy(scores, target)

    model, contrast = mlp(place), Contrast()
    optimizer = sgd(model, momentum=0.9)

    def train(x):
        views = [x + 0.1 * torch.randn_like(x) for _ in range(2)]
        return updated(optimizer, contrast(*map(model, views)))

    step = place.capture(train)
    losses = []
    for number in range(36):
        rows = 4 if number >= 18 else 6
        losses.append(kept(step(batch(place, number, rows=rows)[0])))
    return losses, state(model, optimizer)


@captured_case(
    "A student becomes the teacher of the next generation, a copy in eval mode.", expect=CAPTURED
)
def born_again(place):
    trainer = Trainer(place, dropout=0.3)
    trainer.teacher = None

    def train(pair):
        x, y = pair
        out = trainer.model(x)
        loss = F.cross_entropy(out, y)
        if trainer.teacher is not None:
            with torch.no_grad():
                soft = (trainer.teacher(x) / 2).softmax(1)
            loss = 0.5 * loss + 0.5 * F.kl_div(out.log_softmax(1), soft, reduction="batchmean")
        return updated(trainer.optimizer, loss)

    def before(number):
        if number in (12, 24):
            trainer.teacher = copy.deepcopy(trainer.model).eval().requires_grad_(False)

    losses = losses_of(place, place.capture(train), 36, before=before)
    return losses, trainer.state(), state(trainer.teacher)


@captured_case(
    "R1, a gradient penalty by double backward, is added every fourth time.", expect=CAPTURED
)
def lazy_gradient_penalty(place):
    critic = seeded(
        place, lambda: nn.Sequential(nn.Linear(8, 16), nn.Softplus(), nn.Linear(16, 1))
    )
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2, betas=(0.0, 0.99))

    def train(real, fake, *, penalised):
        real = real.detach().requires_grad_(penalised)
        scores = critic(real)
        loss = F.softplus(-scores).mean() + F.softplus(critic(fake)).mean()
        if penalised:
            (slope,) = torch.autograd.grad(scores.sum(), real, create_graph=True)
            loss = loss + 2.5 * slope.square().sum(1).mean()
        return updated(optimizer, loss)

    step = place.capture(train)
    losses = []
    for number in range(44):
        real, fake = batch(place, number)[0], batch(place, 200 + number)[0]
        losses.append(kept(step(real, fake, penalised=number % 4 == 0)))
    return losses, state(critic, optimizer)


@captured_case(
    "WGAN: `p.data` is clamped in the step; the limit is loosened once.", expect=CAPTURED
)
def clamped_weights(place):
    trainer = Trainer(place)
    trainer.limit = 0.1

    def train(pair):
        loss = trainer.train(pair)
        for p in trainer.model.parameters():
            p.data.clamp_(-trainer.limit, trainer.limit)
        return loss

    def before(number):
        trainer.limit = 0.1 if number < 15 else 0.2

    return losses_of(place, place.capture(train), NUM, before=before), trainer.state()


@captured_case("Centres of classes follow features in place: a centre loss.", expect=CAPTURED)
def centre_loss(place):
    model = mlp(place)
    optimizer = sgd(model)
    centres = torch.zeros(4, 4, device=place.torch_device)

    def train(pair):
        x, y = pair
        out = model(x)
        loss = F.cross_entropy(out, y) + 0.1 * (out - centres[y]).square().mean()
        updated(optimizer, loss)
        which = F.one_hot(y, 4).to(out.dtype)
        count = which.sum(0)[:, None] + 1
        centres.add_((which.t() @ (out.detach() - centres[y])) / count, alpha=0.5)
        return loss

    return losses_of(place, place.capture(train), NUM), centres, state(model)


# ---------------------------------------------------------------------------------- autograd


class TopOne(torch.autograd.Function):
    """The largest score and its place, which is not differentiable."""

    @staticmethod
    def forward(ctx, x):
        values, places = x.max(dim=1)
        ctx.mark_non_differentiable(places)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(places)
        ctx.size = x.shape[1]
        return values, places

    @staticmethod
    def backward(ctx, grad_values, grad_places):
        if grad_values is None or not ctx.needs_input_grad[0]:
            return None
        (places,) = ctx.saved_tensors
        grad = grad_values.new_zeros(len(places), ctx.size)
        return grad.scatter_(1, places[:, None], grad_values[:, None])


@captured_case("A function of the user's returns places that have no gradient.", expect=CAPTURED)
def non_differentiable_output(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(pair):
        x, y = pair
        values, places = TopOne.apply(model(x))
        right = (places == y).to(values.dtype)
        updated(optimizer, (values * (1 - 2 * right)).mean())
        return right.mean()

    return losses_of(place, place.capture(train), NUM), state(model)


@captured_case(
    "A backward pass of the user's own counts on its class.",
    expect=refused("num_passes", at="Reversed.num_passes += 1"),
)
def backward_counts(place):
    class Reversed(torch.autograd.Function):
        num_passes = 0

        @staticmethod
        def forward(ctx, x, weight):
            ctx.weight = weight
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad_out):
            Reversed.num_passes += 1
            return -ctx.weight * grad_out, None

    model = mlp(place)
    optimizer = sgd(model)

    def train(pair):
        x, y = pair
        return updated(optimizer, F.cross_entropy(Reversed.apply(model(x), 0.5), y))

    return losses_of(place, place.capture(train), 20), Reversed.num_passes, state(model)


@captured_case(
    "Domain-adversarial training: the weight of a reversed gradient is an attribute of a module.",
    expect=CAPTURED,
)
def reversed_gradient(place):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.weight = weight
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad_out):
            return grad_out.neg() * ctx.weight, None

    class Reverse(nn.Module):
        weight = 0.1

        def forward(self, x):
            return Function.apply(x, self.weight)

    reverse = Reverse()
    model = seeded(place, Headed)
    domain = seeded(place, lambda: nn.Linear(16, 2))
    optimizer = sgd(nn.ModuleList([model, domain]))

    def train(pair, other):
        x, y = pair
        features = F.relu(model.body(torch.cat([x, other])))
        where = torch.zeros(len(features), dtype=torch.long, device=x.device)
        where[len(x) :].fill_(1)
        loss = F.cross_entropy(model.head(features[: len(x)]), y)
        return updated(optimizer, loss + F.cross_entropy(domain(reverse(features)), where))

    step = place.capture(train)
    losses = []
    for number, pair in enumerate(batches(place, 36)):
        reverse.weight = (0.1, 0.5, 1.0)[number // 12]
        losses.append(kept(step(pair, batch(place, 100 + number)[0])))
    return losses, state(model), state(domain)


@captured_case("Activations are checkpointed by the reentrant way, in segments.", expect=CAPTURED)
def checkpoint_in_segments(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)

    def train(pair):
        x, y = pair
        x = x.detach().requires_grad_()
        out = checkpoint_sequential(model, 2, x, use_reentrant=True, preserve_rng_state=False)
        return updated(optimizer, F.cross_entropy(out, y))

    return losses_of(place, place.capture(train), 24), state(model, optimizer)


@captured_case(
    "A module is checkpointed only in training, and only while a flag of it is set.",
    expect=CAPTURED,
)
def checkpoint_by_a_flag(place):
    class Model(Headed):
        gradient_checkpointing = False

        def forward(self, x):
            if self.gradient_checkpointing and self.training:
                run_body = functools.partial(
                    checkpoint, self.body, use_reentrant=False, preserve_rng_state=False
                )
            else:
                run_body = self.body
            return self.head(F.relu(run_body(x)))

    model = seeded(place, Model)
    step = place.capture(training_step(model, sgd(model, momentum=0.9)))

    def before(number):
        model.gradient_checkpointing = number >= 12
        if number % 8 == 7:
            model.eval()
            with torch.no_grad():
                model(batch(place, number)[0])
            model.train()

    return losses_of(place, step, 32, before=before), state(model)


@captured_case("What backward needs is kept in bfloat16 by hooks.", expect=CAPTURED)
def saved_tensors_are_packed(place):
    model = mlp(place)
    optimizer = sgd(model)

    def pack(x):
        return x.dtype, x.bfloat16() if x.is_floating_point() else x

    def unpack(packed):
        return packed[1].to(packed[0])

    def train(pair):
        x, y = pair
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = F.cross_entropy(torch.tanh(model(x)), y)
        return updated(optimizer, loss)

    return losses_of(place, place.capture(train), 24), state(model)


@captured_case("What backward needs is kept on the host meanwhile.", expect=EITHER)
def saved_tensors_on_the_host(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(pair):
        x, y = pair
        with torch.autograd.graph.save_on_cpu():
            loss = F.cross_entropy(torch.tanh(model(x)), y)
        return updated(optimizer, loss)

    return losses_of(place, place.capture(train), 20), state(model)


@captured_case(
    "Gradients of a layer are changed by a full backward hook, which is removed.",
    expect=CAPTURED,
)
def full_backward_hook(place):
    model = mlp(place)
    strength = {"value": 0.5}

    def soften(module, grad_input, grad_output):
        return tuple(None if g is None else g * strength["value"] for g in grad_input)

    handle = model[3].register_full_backward_hook(soften)

    def before(number):
        if number == 12:
            strength["value"] = 0.1
        if number == 24:
            handle.remove()

    step = place.capture(training_step(model, sgd(model, momentum=0.9)))
    return losses_of(place, step, 36, before=before), state(model)


@captured_case(
    "Two losses go backward through one graph, one of them to some inputs alone.",
    expect=CAPTURED,
)
def two_backward_passes(place):
    model = seeded(place, Headed)
    optimizer = sgd(model, momentum=0.9)

    def train(pair):
        x, y = pair
        optimizer.zero_grad()
        out = model(x)
        aux = out.square().mean()
        aux.backward(inputs=list(model.head.parameters()), retain_graph=True)
        loss = F.cross_entropy(out, y)
        torch.autograd.backward([loss, 0.1 * out.abs().mean()])
        optimizer.step()
        return loss + aux.detach()

    return losses_of(place, place.capture(train), 24), state(model, optimizer)


@captured_case(
    "Curvature by forward mode and by a Hessian is part of the loss.",
    expect=refused("forward mode"),
    devices=(GPU,),
)
def curvature(place):
    weight = nn.Parameter(torch.linspace(-1, 1, 8, device=place.torch_device))
    optimizer = torch.optim.SGD([weight], lr=0.05, momentum=0.9)

    def energy(w, x):
        return torch.tanh(x @ w).square().sum()

    def train(x):
        _, slope = jvp(lambda one: energy(weight, one), (x,), (torch.ones_like(x),))
        bend = hessian(energy)(weight, x).diagonal().sum()
        return updated(optimizer, slope.square() + 0.01 * bend)

    step = place.capture(train)
    losses = [kept(step(x)) for x, _ in batches(place, 24)]
    return losses, weight, optimizer.state_dict()


# -------------------------------------------------------------------- sequences and attention


class Attention(nn.Module):
    """Causal attention with a cache of keys and values for generation."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.head = nn.Embedding(12, 8), nn.Linear(8, 24), nn.Linear(8, 12)
        self.cache, self.angles = None, {}

    def turned(self, x, start):
        end = start + x.shape[1]
        if end not in self.angles:
            at = torch.arange(end, device=x.device, dtype=torch.float32)
            self.angles[end] = torch.outer(at, 10.0 ** -torch.arange(4, device=x.device))
        angle = self.angles[end][start:end]
        even, odd = x[..., 0::2], x[..., 1::2]
        sin, cos = angle.sin(), angle.cos()
        return torch.cat([even * cos - odd * sin, even * sin + odd * cos], -1)

    def forward(self, ids):
        start = 0 if self.cache is None else self.cache[0].shape[1]
        q, k, v = self.qkv(self.embed(ids)).chunk(3, -1)
        q, k = self.turned(q, start), self.turned(k, start)
        if self.cache is not None:
            k, v = torch.cat([self.cache[0], k], 1), torch.cat([self.cache[1], v], 1)
            self.cache = (k, v)
        mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device)
        mask = mask.tril(diagonal=k.shape[1] - q.shape[1])
        scores = (q @ k.transpose(1, 2) / math.sqrt(8)).masked_fill(~mask, float("-inf"))
        return self.head(scores.softmax(-1) @ v)

    @torch.no_grad()
    def generate(self, ids, num):
        self.eval()
        self.cache = (self.embed.weight[:0].expand(len(ids), 0, 8),) * 2
        new = ids
        for _ in range(num):
            new = self(new)[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, new], 1)
        self.cache = None
        self.train()
        return ids


def _language_model(place, num, *, before=None, length_of=lambda number: 6):
    model = seeded(place, Attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def train(ids):
        out = model(ids[:, :-1]).flatten(0, 1)
        return updated(optimizer, F.cross_entropy(out, ids[:, 1:].flatten()))

    step = place.capture(train)
    results = []
    for number in range(num):
        results.append(kept(step(tokens(place, number, length=length_of(number)))))
        if before is not None:
            results += before(number, model)
    return results, state(model, optimizer)


@captured_case(
    "Text is generated with a cache of keys and values every few steps.", expect=CAPTURED
)
def generation_in_between(place):
    def generate(number, model):
        return [model.generate(tokens(place, 90, length=2), 3)] if number % 6 == 5 else []

    return _language_model(place, 30, before=generate)


@captured_case(
    "Sequences grow by a curriculum; angles of positions are cached by length.", expect=CAPTURED
)
def lengths_grow_with_cached_angles(place):
    return _language_model(place, 36, length_of=lambda number: 5 + number // 12)


@captured_case(
    "Tokens are masked in the step as for BERT, by random numbers of the device.",
    expect=CAPTURED,
    # On a GPU the loop as written has other bits each time.
    devices=(SIMULATED,),
)
def masked_language_model(place):
    model = seeded(place, lambda: nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12)))
    optimizer = sgd(model, momentum=0.9)

    def train(ids):
        labels = ids.clone()
        is_masked = torch.bernoulli(torch.full(ids.shape, 0.4, device=ids.device)).bool()
        labels.masked_fill_(~is_masked, -100)
        replaced = torch.rand(ids.shape, device=ids.device) < 0.8
        ids = ids.masked_fill(is_masked & replaced, 0)
        others = torch.randint(1, 12, ids.shape, device=ids.device)
        ids = torch.where(is_masked & ~replaced, others, ids)
        out = model(ids).transpose(1, 2)
        return updated(optimizer, F.cross_entropy(out, labels, ignore_index=-100, reduction="sum"))

    step = place.capture(train)
    return [kept(step(tokens(place, n))) for n in range(24)], state(model, optimizer)


@captured_case(
    "TBPTT over streams of text: the last batch is smaller, and hidden states are cut to it.",
    expect=EITHER,
)
def hidden_state_is_cut(place):
    class Language(Trainer):
        hidden = None

        def train(self, pair):
            x = pair[0].unsqueeze(0)
            hidden = self.hidden
            if hidden is not None and hidden.shape[1] != x.shape[1]:
                hidden = hidden[:, : x.shape[1]].contiguous()
                hidden = None if hidden.shape[1] < x.shape[1] else hidden
            out, self.hidden = self.model(x, hidden)
            self.hidden = self.hidden.detach()
            return updated(self.optimizer, F.cross_entropy(out[0], pair[1]))

    trainer = Language(place)
    trainer.model = seeded(place, lambda: nn.GRU(8, 4))
    trainer.optimizer = sgd(trainer.model, momentum=0.9)
    step = place.capture(trainer.train)
    losses = []
    for number in range(36):
        rows = 3 if number % 9 == 8 else 6
        losses.append(kept(step(batch(place, number, rows=rows))))
    return losses, trainer.hidden, trainer.state()


@captured_case("An LSTM reads packed sequences, whose lengths are plain numbers.", expect=EITHER)
def packed_sequences(place):
    model = seeded(place, lambda: nn.LSTM(8, 4, batch_first=True))
    optimizer = sgd(model)

    def train(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        out, (h, _) = model(packed)
        out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        return updated(optimizer, out.square().sum() / sum(lengths) + h.mean())

    step = place.capture(train)
    losses = []
    for number in range(24):
        x = batch(place, number, rows=6)[0].view(2, 3, 8)
        losses.append(kept(step(x, [(3, 2), (1, 3), (3, 3)][number % 3])))
    return losses, state(model, optimizer)


@captured_case("An encoder of torch with a causal mask made in the step.", expect=EITHER)
def encoder_with_a_mask(place):
    def make():
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    model = seeded(place, make)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def train(x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        out = model(x, mask=mask, is_causal=True)
        return updated(optimizer, (out[:, :-1] - x[:, 1:]).square().mean())

    step = place.capture(train)
    losses = []
    for number in range(24):
        x = batch(place, number)[0].view(2, 3, 8)
        losses.append(kept(step(x)))
        if number % 8 == 7:
            model.eval()
            with torch.no_grad():
                losses.append(model(x))
            model.train()
    return losses, state(model, optimizer)


@captured_case("Embeddings have a padding index, whose row is set by hand once.", expect=CAPTURED)
def embedding_with_padding(place):
    model = seeded(
        place, lambda: nn.ModuleList([nn.Embedding(12, 8, padding_idx=1), nn.Linear(8, 12)])
    )
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)

    def train(ids):
        embedded = model[0](ids)
        weight = (ids != 1).unsqueeze(-1)
        mean = (embedded * weight).sum(1) / weight.sum(1).clamp(min=1)
        return updated(optimizer, F.cross_entropy(model[1](mean), ids[:, 0]))

    step = place.capture(train)
    losses = []
    for number in range(24):
        losses.append(kept(step(tokens(place, number))))
        if number == 12:
            with torch.no_grad():
                model[0].weight[1] = 0.5
    return losses, state(model, optimizer)


@captured_case("Embeddings are renormed to `max_norm` by looking them up.", expect=EITHER)
def embedding_with_a_norm(place):
    model = seeded(
        place, lambda: nn.Sequential(nn.Embedding(12, 8, max_norm=1.0), nn.Linear(8, 12))
    )
    optimizer = sgd(model)

    def train(ids):
        out = model(ids[:, :-1]).flatten(0, 1)
        return updated(optimizer, F.cross_entropy(out, ids[:, 1:].flatten()))

    step = place.capture(train)
    losses = []
    for number in range(24):
        losses.append(kept(step(tokens(place, number))))
        if number == 12:
            model[0].max_norm = 0.5
    return losses, state(model)


@captured_case(
    "Gradients of embeddings are sparse, for SparseAdam.", expect=EITHER, devices=(GPU,)
)
def sparse_gradients(place):
    embedding = seeded(place, lambda: nn.Embedding(12, 8, sparse=True))
    head = seeded(place, lambda: nn.Linear(8, 12))
    optimizers = [torch.optim.SparseAdam(embedding.parameters(), lr=1e-2), sgd(head)]

    def train(ids):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = F.cross_entropy(head(embedding(ids[:, :-1])).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    step = place.capture(train)
    losses = [kept(step(tokens(place, number))) for number in range(20)]
    return losses, embedding.weight, state(head)


# -------------------------------------------------------------------------- layers with state


@captured_case(
    "Spectral norm by a parametrization; validation, and the parametrization is removed.",
    expect=CAPTURED,
)
def spectral_norm(place):
    def make():
        first = parametrizations.spectral_norm(nn.Linear(8, 8))
        return nn.Sequential(first, nn.Tanh(), nn.Linear(8, 4))

    model = seeded(place, make)
    trainer = Trainer(place)
    trainer.model, trainer.optimizer = model, sgd(model, momentum=0.9)
    step = place.capture(trainer.train)
    results = []
    for number, pair in enumerate(batches(place, 32)):
        results += run(step, [pair])
        if number % 8 == 7:
            model.eval()
            with torch.no_grad():
                results.append(model(pair[0]))
            model.train()
        if number == 18:
            parametrize.remove_parametrizations(model[0], "weight")
            trainer.optimizer = sgd(model)
    return results, state(model)


@captured_case("Spectral norm by the older hook, which sets an attribute.", expect=EITHER)
def spectral_norm_by_a_hook(place):
    def make():
        first = nn.utils.spectral_norm(nn.Linear(8, 8))
        return nn.Sequential(first, nn.Tanh(), nn.Linear(8, 4))

    model = seeded(place, make)
    step = place.capture(training_step(model, sgd(model)))
    losses = []
    for number, pair in enumerate(batches(place, 24)):
        losses += run(step, [pair])
        if number % 8 == 7:
            losses.append(model[0].weight.detach().clone())
    return losses, state(model)


@captured_case("Batch norm averages over all batches, by a momentum of None.", expect=refused())
def batch_norm_without_momentum(place):
    model = seeded(
        place,
        lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 4)),
    )
    step = place.capture(training_step(model, sgd(model)))
    return losses_of(place, step, 20), state(model)


@captured_case(
    "The momentum of batch norm falls by epoch, and statistics are reset once.", expect=CAPTURED
)
def momentum_of_batch_norm_falls(place):
    model = seeded(
        place, lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    )

    def before(number):
        if number % 12 == 0:
            for module in model.modules():
                if isinstance(module, nn.BatchNorm1d):
                    module.momentum = 0.5 ** (1 + number // 12)
        if number == 18:
            model[1].reset_running_stats()

    step = place.capture(training_step(model, sgd(model)))
    return losses_of(place, step, 36, before=before), state(model)


@captured_case("DropPath draws on the device; its rate rises by epoch.", expect=CAPTURED)
def drop_path(place):
    class DropPath(nn.Module):
        rate = 0.1

        def forward(self, x):
            if self.rate == 0.0 or not self.training:
                return x
            keep = 1 - self.rate
            mask = x.new_empty((len(x), 1)).bernoulli_(keep)
            return x * mask.div_(keep)

    model = seeded(place, lambda: nn.Sequential(nn.Linear(8, 8), DropPath(), nn.Linear(8, 4)))

    def before(number):
        model[1].rate = (0.1, 0.2, 0.3)[number // 12]

    step = place.capture(training_step(model, sgd(model)))
    return losses_of(place, step, 36, before=before), state(model)


@captured_case(
    "Stochastic depth asks the device's generator with an `if`.",
    expect=refused(at="if torch.rand((), device=x.device) < 0.5:"),
)
def stochastic_depth_by_the_device(place):
    model = seeded(place, Headed)
    optimizer = sgd(model)

    def train(pair):
        x, y = pair
        hidden = F.relu(model.body(x))
        if torch.rand((), device=x.device) < 0.5:
            hidden = hidden * 2
        return updated(optimizer, F.cross_entropy(model.head(hidden), y))

    return losses_of(place, place.capture(train), 20), state(model)


@captured_case(
    "A VQ-VAE: straight-through codes, and a codebook of moving averages in buffers.",
    expect=CAPTURED,
)
def vector_quantisation(place):
    class Codes(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("codes", torch.randn(5, 4))
            self.register_buffer("counts", torch.ones(5))
            self.register_buffer("sums", self.codes.clone())

        def forward(self, z):
            which = F.one_hot(torch.cdist(z, self.codes).argmin(1), 5).to(z.dtype)
            chosen = which @ self.codes
            if self.training:
                with torch.no_grad():
                    self.counts.mul_(0.9).add_(which.sum(0), alpha=0.1)
                    self.sums.mul_(0.9).add_(which.t() @ z, alpha=0.1)
                    self.codes.copy_(self.sums / self.counts[:, None].clamp(min=1e-3))
            return z + (chosen - z).detach(), F.mse_loss(z, chosen.detach())

    encoder, codes = mlp(place), seeded(place, Codes)
    decoder = seeded(place, lambda: nn.Linear(4, 8))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-2)

    def train(x):
        z, commitment = codes(encoder(x))
        return updated(optimizer, F.mse_loss(decoder(z), x) + 0.25 * commitment)

    step = place.capture(train)
    results = []
    for number, (x, _) in enumerate(batches(place, 30)):
        results.append(kept(step(x)))
        if number % 10 == 9:
            codes.eval()
            with torch.no_grad():
                results.append(codes(encoder(x))[0])
                unused = codes.counts < 0.05
                codes.codes[unused] = x[0, :4]
            codes.train()
    return results, state(codes), state(encoder, optimizer)


@captured_case(
    "Experts with a fixed capacity; a bias per expert balances them in place.", expect=CAPTURED
)
def balanced_experts(place):
    gate = seeded(place, lambda: nn.Linear(8, 4))
    experts = nn.Parameter(torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(5)))
    experts = nn.Parameter(place.moved(experts.detach()))
    bias = torch.zeros(4, device=place.torch_device)
    optimizer = torch.optim.AdamW([*gate.parameters(), experts], lr=1e-2)

    def train(x):
        scores = gate(x).softmax(1)
        chosen = (scores.detach() + bias).topk(2, dim=1).indices
        mask = F.one_hot(chosen, 4).sum(1).to(x.dtype)
        weight = scores * mask
        out = torch.einsum("ne,eio,ni->no", weight, experts, x)
        loss = updated(optimizer, F.mse_loss(out, x.flip(1)))
        load = mask.mean(0)
        bias.add_(torch.sign(load.mean() - load), alpha=0.01)
        return {"loss": loss.detach(), "load": load}

    step = place.capture(train)
    return [step(x) for x, _ in batches(place, 24)], bias, state(gate, optimizer)


# ------------------------------------------------------------------------- metrics and queues


@captured_case(
    "A confusion matrix is filled in place, and set to zero by the loop each epoch.",
    expect=CAPTURED,
)
def confusion_matrix(place):
    trainer = Trainer(place)
    matrix = torch.zeros(4, 4, device=place.torch_device)

    def train(pair):
        x, y = pair
        out = trainer.model(x)
        loss = updated(trainer.optimizer, F.cross_entropy(out, y))
        matrix.add_(F.one_hot(y, 4).float().t() @ F.one_hot(out.argmax(1), 4).float())
        return loss

    step = place.capture(train)
    results = []
    for _ in range(4):
        matrix.zero_()
        results += run(step, batches(place, 7))
        results.append(matrix.diagonal() / matrix.sum(1).clamp(min=1))
    return results, matrix, trainer.state()


class Accuracy:
    """A metric as torchmetrics makes them: states by name, a count of updates, a cached value."""

    def __init__(self, device):
        self._defaults, self._update_count, self._computed = {}, 0, None
        for name in ("correct", "total"):
            self._defaults[name] = torch.zeros((), device=device)
        self.reset()

    def reset(self):
        self._update_count, self._computed = 0, None
        for name, value in self._defaults.items():
            setattr(self, name, value.detach().clone())

    def update(self, out, y):
        self._computed = None
        self._update_count += 1
        self.correct += (out.argmax(1) == y).sum()
        self.total += y.numel()

    def compute(self):
        if self._computed is None:
            self._computed = self.correct / self.total
        return self._computed


@captured_case(
    "A metric as torchmetrics makes them counts its updates.",
    expect=refused("_update_count", at="self._update_count += 1"),
)
def metric_with_a_count(place):
    trainer, metric = Trainer(place), Accuracy(place.torch_device)

    def train(pair):
        x, y = pair
        out = trainer.model(x)
        metric.update(out.detach(), y)
        return updated(trainer.optimizer, F.cross_entropy(out, y))

    step = place.capture(train)
    results = []
    for _ in range(3):
        metric.reset()
        results += run(step, batches(place, 6))
        results.append((metric.compute(), metric._update_count))
    return results, trainer.state()


@captured_case(
    "A metric whose states are tensors is reset to new tensors by the loop each epoch.",
    expect=CAPTURED,
)
def metric_is_reset_each_epoch(place):
    class Mean:
        def reset(self):
            self.total = torch.zeros((), device=place.torch_device)
            self.count = torch.zeros((), device=place.torch_device)

        def update(self, value):
            self.total = self.total + value.detach()
            self.count += 1

    trainer, mean = Trainer(place), Mean()
    mean.reset()

    def train(pair):
        loss = trainer.train(pair)
        mean.update(loss)
        return loss

    step = place.capture(train)
    results = []
    for _ in range(3):
        mean.reset()
        results += run(step, batches(place, 14))
        results.append(mean.total / mean.count)
    return results, trainer.state()


@captured_case(
    "MoCo as published: the pointer of the queue is a buffer that the step reads.",
    expect=refused(at="pointer = int(self.pointer)"),
)
def queue_as_published(place):
    class Moco(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key = nn.Linear(8, 4), nn.Linear(8, 4)
            self.key.load_state_dict(self.query.state_dict())
            self.key.requires_grad_(False)
            self.register_buffer("queue", F.normalize(torch.randn(12, 4), dim=1))
            self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

        @torch.no_grad()
        def enqueue(self, keys):
            pointer = int(self.pointer)
            self.queue[pointer : pointer + len(keys)] = keys
            self.pointer[0] = (pointer + len(keys)) % len(self.queue)

        def forward(self, x):
            q = F.normalize(self.query(x), dim=1)
            with torch.no_grad():
                for p, k in zip(self.query.parameters(), self.key.parameters(), strict=True):
                    k.data = k.data * 0.99 + p.data * 0.01
                keys = F.normalize(self.key(x + 0.1), dim=1)
            scores = torch.cat([(q * keys).sum(1, keepdim=True), q @ self.queue.clone().t()], 1)
            self.enqueue(keys)
            return F.cross_entropy(scores / 0.2, torch.zeros_like(x[:, 0]).long())

    model = seeded(place, Moco)
    optimizer = torch.optim.SGD(model.query.parameters(), lr=0.1, momentum=0.9)

    def train(x):
        return updated(optimizer, model(x))

    step = place.capture(train)
    return [kept(step(x)) for x, _ in batches(place, 18)], state(model, optimizer)


@captured_case(
    "The key encoder's average replaces `.data` in each step, as in published code.",
    expect=EITHER,
)
def average_by_replacing_data(place):
    trainer = Trainer(place)
    average = copy.deepcopy(trainer.model).requires_grad_(False)

    def train(pair):
        loss = trainer.train(pair)
        for mean, p in zip(average.parameters(), trainer.model.parameters(), strict=True):
            mean.data = mean.data * 0.9 + p.data * 0.1
        with torch.no_grad():
            return loss + average(pair[0]).mean()

    return losses_of(place, place.capture(train), 24), state(average), trainer.state()


@captured_case(
    "Prioritised replay: indices are drawn by priorities, which the step writes back.",
    expect=CAPTURED,
)
def prioritised_replay(place):
    trainer = Trainer(place)
    size = 32
    store = torch.zeros(size, 8, device=place.torch_device)
    labels = torch.zeros(size, dtype=torch.long, device=place.torch_device)
    priorities = torch.full((size,), 1e-3, device=place.torch_device)

    def train():
        shares = priorities / priorities.sum()
        chosen = torch.multinomial(shares, 6)
        losses = F.cross_entropy(trainer.model(store[chosen]), labels[chosen], reduction="none")
        weight = (size * shares[chosen]).pow(-0.4)
        updated(trainer.optimizer, (losses * weight / weight.amax()).mean())
        priorities.scatter_(0, chosen, losses.detach() + 1e-3)
        return losses.detach()

    step = place.capture(train)
    results = []
    for number, (x, y) in enumerate(batches(place, 30, rows=4)):
        start = 4 * number % size
        store[start : start + 4], labels[start : start + 4] = x, y
        priorities[start : start + 4] = priorities.amax()
        results.append(step())
    return results, priorities, trainer.state()


@captured_case(
    "The replay buffer's length, a Python number, grows until it is full.", expect=EITHER
)
def replay_buffer_fills(place):
    class Buffer:
        def __init__(self):
            self.store = torch.zeros(24, 8, device=place.torch_device)
            self.size = self.at = 0

        def push(self, x):
            self.store[self.at : self.at + len(x)] = x
            self.at = (self.at + len(x)) % 24
            self.size = min(24, self.size + len(x))

        def sample(self):
            return self.store[torch.randint(self.size, (6,), device=place.torch_device)]

    model, buffer = mlp(place, num_out=8), Buffer()
    optimizer = sgd(model)

    def train():
        x = buffer.sample()
        return updated(optimizer, F.mse_loss(model(x), x))

    step = place.capture(train)
    losses = []
    for x, _ in batches(place, 30, rows=4):
        buffer.push(x)
        losses.append(kept(step()))
    return losses, state(model)


@captured_case(
    "DQN: the target network is loaded every eighth step; acting is greedy in between.",
    expect=CAPTURED,
)
def target_network(place):
    policy, target = mlp(place), mlp(place)
    target.load_state_dict(policy.state_dict())
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-2, momentum=0.9)

    def train(x, action, after, done):
        chosen = policy(x).gather(1, action[:, None]).squeeze(1)
        with torch.no_grad():
            best = policy(after).argmax(1, keepdim=True)
            goal = x.sum(1) + 0.9 * target(after).gather(1, best).squeeze(1) * ~done
        return updated(optimizer, F.smooth_l1_loss(chosen, goal))

    step = place.capture(train)
    results = []
    for number in range(32):
        (x, action), (after, other) = batch(place, number), batch(place, 70 + number)
        with torch.no_grad():
            results.append(policy(after).argmax(1))
        results.append(kept(step(x, action, after, other == 0)))
        if number % 8 == 7:
            target.load_state_dict(policy.state_dict())
    return results, state(target), state(policy, optimizer)


@captured_case(
    "SAC: three optimizers, a learned temperature, critics frozen for the actor's turn.",
    expect=CAPTURED,
)
def soft_actor_critic(place):
    actor, critic, target = mlp(place, num_out=4), mlp(place, num_in=10, num_out=1), None
    target = copy.deepcopy(critic).requires_grad_(False)
    log_alpha = nn.Parameter(torch.zeros((), device=place.torch_device))
    of_actor, of_critic = (torch.optim.Adam(m.parameters(), lr=3e-3) for m in (actor, critic))
    of_alpha = torch.optim.Adam([log_alpha], lr=1e-2)

    def act(x):
        mean, log_std = actor(x).chunk(2, dim=1)
        std = log_std.clamp(-5, 2).exp()
        noise = torch.randn_like(mean)
        log_p = (-0.5 * noise.square() - std.log()).sum(1, keepdim=True)
        return torch.tanh(mean + std * noise), log_p

    def train(x, after):
        with torch.no_grad():
            action, log_p = act(after)
            goal = x[:, :1] + 0.9 * (
                target(torch.cat([after, action], 1)) - log_alpha.exp() * log_p
            )
        loss_q = updated(of_critic, F.mse_loss(critic(torch.cat([x, x[:, :2]], 1)), goal))
        critic.requires_grad_(False)
        action, log_p = act(x)
        score = critic(torch.cat([x, action], 1))
        loss_pi = updated(of_actor, (log_alpha.exp().detach() * log_p - score).mean())
        critic.requires_grad_(True)
        loss_a = updated(of_alpha, -(log_alpha * (log_p.detach() - 2.0)).mean())
        with torch.no_grad():
            for t, p in zip(target.parameters(), critic.parameters(), strict=True):
                t.lerp_(p, 0.05)
        return [kept(one) for one in (loss_q, loss_pi, loss_a)]

    step = place.capture(train)
    results = [step(x, batch(place, 80 + n)[0]) for n, (x, _) in enumerate(batches(place, 24))]
    return results, log_alpha, state(actor, of_actor), state(critic, of_critic), state(target)


@captured_case(
    "Observations are normalised by running statistics whose count is a float.",
    expect=refused("count", at="self.count = total"),
)
def normaliser_of_observations(place):
    class RunningMeanStd:
        def __init__(self):
            self.mean = torch.zeros(8, device=place.torch_device)
            self.var = torch.ones(8, device=place.torch_device)
            self.count = 1e-4

        def update(self, x):
            mean, var, total = x.mean(0), x.var(0), self.count + len(x)
            delta = mean - self.mean
            self.mean = self.mean + delta * len(x) / total
            self.var = (
                self.var * self.count + var * len(x) + delta.square() * self.count * len(x) / total
            ) / total
            self.count = total

    trainer, normaliser = Trainer(place), RunningMeanStd()

    def train(pair):
        x, y = pair
        normaliser.update(x)
        return trainer.train(((x - normaliser.mean) / (normaliser.var + 1e-8).sqrt(), y))

    losses = losses_of(place, place.capture(train), 20)
    return losses, normaliser.mean, normaliser.var, normaliser.count, trainer.state()


# ---------------------------------------------------------------------- data made in the loop


@captured_case(
    "A VAE: the weight of the divergence is a property of the number of the step.", expect=EITHER
)
def divergence_warms_up(place):
    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(8, 6), nn.Linear(3, 8)
            self.num_steps, self.warm_up = 0, 12

        @property
        def beta(self):
            return min(1.0, self.num_steps / self.warm_up)

        def forward(self, x):
            mean, log_var = self.encoder(x).chunk(2, dim=1)
            z = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
            kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
            return F.mse_loss(self.decoder(z), x) + self.beta * kl

    model = seeded(place, Vae)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def train(x):
        return updated(optimizer, model(x))

    step = place.capture(train)
    losses = []
    for x, _ in batches(place, 40):
        model.num_steps += 1
        losses.append(kept(step(x)))
    return losses, state(model, optimizer)


@captured_case(
    "Mixup: the loop draws the weight by numpy and passes it as a tensor.", expect=CAPTURED
)
def mixup_by_the_loop(place):
    trainer = Trainer(place)

    def train(x, y, other, weight):
        out = trainer.model(torch.lerp(x[other], x, weight))
        loss = weight * F.cross_entropy(out, y) + (1 - weight) * F.cross_entropy(out, y[other])
        return updated(trainer.optimizer, loss)

    step = place.capture(train)
    losses = []
    for x, y in batches(place, 24):
        weight = place.moved(torch.tensor(np.random.beta(0.4, 0.4), dtype=torch.float32))  # noqa: NPY002
        other = place.moved(torch.from_numpy(np.random.permutation(6)))  # noqa: NPY002
        losses.append(kept(step(x, y, other, weight)))
    return losses, trainer.state()


@captured_case("CutMix: boxes are Python numbers that the loop draws and passes.", expect=EITHER)
def cutmix_by_the_loop(place):
    model = seeded(place, lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 4)))
    optimizer = sgd(model)

    def train(x, y, box):
        left, right = box
        mixed = x.clone()
        mixed[:, :, left:right] = x.flip(0)[:, :, left:right]
        share = 1 - (right - left) / 4
        out = model(mixed)
        loss = share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y.flip(0))
        return updated(optimizer, loss)

    step = place.capture(train)
    losses = []
    for number in range(30):
        x, y = batch(place, number, rows=4, num_in=16)
        left = random.randrange(4)
        losses.append(kept(step(x.view(4, 4, 4), y, (left, min(4, left + random.randrange(3))))))
    return losses, state(model)


@captured_case(
    "Consistency training: steps of the noise and the teacher's decay change by stages.",
    expect=CAPTURED,
)
def consistency_training(place):
    student, teacher = mlp(place, num_out=8), mlp(place, num_out=8).requires_grad_(False)
    optimizer = torch.optim.RAdam(student.parameters(), lr=1e-2)
    config = {"num_scales": 4, "decay": 0.9}

    def sigmas(num):
        at = torch.linspace(0, 1, num, device=place.torch_device)
        return (0.1 + at * 2).pow(2)

    def train(x):
        levels = sigmas(config["num_scales"])
        at = torch.randint(0, config["num_scales"] - 1, (len(x), 1), device=x.device)
        noise = torch.randn_like(x)
        near = student(x + levels[at + 1] * noise)
        with torch.no_grad():
            goal = teacher(x + levels[at] * noise)
        loss = updated(optimizer, (near - goal).square().mean())
        with torch.no_grad():
            torch._foreach_lerp_(
                list(teacher.parameters()), list(student.parameters()), 1 - config["decay"]
            )
        return loss

    step = place.capture(train)
    losses = []
    for number, (x, _) in enumerate(batches(place, 36)):
        if number == 18:
            config.update(num_scales=6, decay=0.95)
        losses.append(kept(step(x)))
    return losses, state(teacher), state(student, optimizer)


@captured_case("The step seeds torch's generators itself, so that dropout repeats.", expect=EITHER)
def seeds_in_the_step(place):
    trainer = Trainer(place, dropout=0.5)

    def train(pair):
        torch.manual_seed(42)
        return trainer.train(pair)

    losses = losses_of(place, place.capture(train), 20)
    return losses, torch.rand(3), trainer.state()


@captured_case("The step augments within `fork_rng`, after it has seeded.", expect=EITHER)
def forked_generators(place):
    trainer = Trainer(place, dropout=0.5)

    def train(pair):
        x, y = pair
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(len(x))
            noise = place.moved(torch.randn(6, 8))
        return trainer.train((x + noise, y))

    return losses_of(place, place.capture(train), 20), trainer.state()


# ----------------------------------------------------------------------- what steps give back


@captured_case(
    "The step returns a distribution, which the loop samples from later.", expect=EITHER
)
def returns_a_distribution(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(pair):
        x, y = pair
        policy = torch.distributions.Categorical(logits=model(x), validate_args=False)
        updated(optimizer, -policy.log_prob(y).mean())
        return torch.distributions.Categorical(logits=policy.logits.detach(), validate_args=False)

    step = place.capture(train)
    policies = [step(pair) for pair in batches(place, 16)]
    return [one.probs for one in policies], [one.sample() for one in policies], state(model)


class Output(OrderedDict):
    """An output whose entries are attributes too, as transformers makes them."""

    def __init__(self, **entries):
        super().__init__(entries)
        for name, value in entries.items():
            object.__setattr__(self, name, value)


@captured_case("The step returns an output whose entries are attributes too.", expect=EITHER)
def returns_a_model_output(place):
    model = mlp(place)
    optimizer = sgd(model)

    def train(pair):
        x, y = pair
        out = model(x)
        loss = updated(optimizer, F.cross_entropy(out, y))
        return Output(loss=loss.detach(), logits=out.detach())

    step = place.capture(train)
    outputs = [step(pair) for pair in batches(place, 20)]
    for output in outputs:
        output["logits"].add_(1)
    attributes = [(output.loss, output.logits) for output in outputs]
    return attributes, [dict(output) for output in outputs], state(model)


@captured_case(
    "The step returns what `topk` and `max` return, and overlapping views.", expect=EITHER
)
def returns_torchs_own_tuples(place):
    trainer = Trainer(place)

    def train(pair):
        x, y = pair
        out = trainer.model(x)
        updated(trainer.optimizer, F.cross_entropy(out, y))
        scores = out.detach()
        return {
            "top": scores.topk(2),
            "max": scores.max(dim=1),
            "rows": list(scores),
            "all": scores,
        }

    step = place.capture(train)
    results = []
    for pair in batches(place, 20):
        result = step(pair)
        result["rows"][0].zero_()
        results.append(
            (result["top"].indices, result["max"].values, result["rows"], result["all"])
        )
    return results, trainer.state()


@captured_case(
    "The step returns its trainer; the loop reads the loss and outputs there.", expect=EITHER
)
def returns_the_trainer(place):
    trainer = Trainer(place)

    def train(pair):
        x, y = pair
        trainer.out = trainer.model(x)
        trainer.last = {"loss": F.cross_entropy(trainer.out, y)}
        updated(trainer.optimizer, trainer.last["loss"])
        trainer.out = trainer.out.detach()
        trainer.last["loss"] = trainer.last["loss"].detach()
        return trainer

    step = place.capture(train)
    results = []
    for pair in batches(place, 20):
        result = step(pair)
        assert result is trainer
        results.append((result.last["loss"], result.out))
    return results, trainer.state()


@captured_case(
    "The step logs tensors into a dict of the trainer's, made anew in each step.", expect=EITHER
)
def logs_tensors_into_a_new_dict(place):
    trainer = Trainer(place)
    trainer.logs = {}

    def train(pair):
        x, y = pair
        out = trainer.model(x)
        loss = updated(trainer.optimizer, F.cross_entropy(out, y))
        trainer.logs = {"loss": loss.detach(), "accuracy": (out.argmax(1) == y).float().mean()}
        return loss

    step = place.capture(train)
    logs, averages = [], []
    for number, pair in enumerate(batches(place, 24)):
        step(pair)
        logs.append(trainer.logs)
        if number % 6 == 5:
            averages.append(torch.stack([one["loss"] for one in logs[-6:]]).mean())
    return logs, averages, trainer.state()


@captured_case(
    "The step returns gradients as they stand; the loop clamps them and updates.",
    expect=EITHER,
)
def returns_gradients(place):
    trainer = Trainer(place)

    def train(pair):
        trainer.optimizer.zero_grad()
        trainer.loss(pair).backward()
        return {name: p.grad for name, p in trainer.model.named_parameters()}

    step = place.capture(train)
    last, cosines = None, []
    for pair in batches(place, 20):
        grads = step(pair)
        flat = torch.cat([g.flatten() for g in grads.values()])
        if last is not None:
            cosines.append(F.cosine_similarity(flat, last, dim=0))
        last = flat
        for g in grads.values():
            g.clamp_(-0.02, 0.02)
        trainer.optimizer.step()
    return cosines, trainer.state()


@captured_case(
    "The step returns a function that computes accuracy later, if anybody asks.", expect=EITHER
)
def returns_a_function(place):
    trainer = Trainer(place)

    def train(pair):
        x, y = pair
        out = trainer.model(x)
        loss = updated(trainer.optimizer, F.cross_entropy(out, y)).detach()
        hits = out.detach().argmax(1) == y
        return loss, lambda: hits.float().mean()

    step = place.capture(train)
    results = [step(pair) for pair in batches(place, 18)]
    return [loss for loss, _ in results], [later() for _, later in results], trainer.state()


# ---------------------------------------------------------------- what loops do between steps


@captured_case(
    "Everything is saved to bytes in the middle, trained on, and loaded again.", expect=CAPTURED
)
def saved_and_loaded(place):
    trainer = Trainer(place)
    schedule = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, 0.97)
    step = place.capture(trainer.train)
    parts = {"model": trainer.model, "optimizer": trainer.optimizer, "schedule": schedule}
    saved, losses = io.BytesIO(), []
    for number, pair in enumerate(batches(place, NUM)):
        losses += run(step, [pair])
        schedule.step()
        if number == 9:
            host = {name: _on_the_host(part.state_dict()) for name, part in parts.items()}
            torch.save(host, saved)
        if number == 19:
            saved.seek(0)
            for name, loaded in torch.load(saved, weights_only=False).items():
                parts[name].load_state_dict(loaded)
    return losses, schedule.get_last_lr(), trainer.state()


def _on_the_host(value):
    if isinstance(value, torch.Tensor):
        return value.cpu().clone()
    if isinstance(value, dict):
        return {key: _on_the_host(item) for key, item in value.items()}
    return [_on_the_host(item) for item in value] if isinstance(value, list) else value


@captured_case(
    "The best state is kept by reference, so that it goes on changing, and is loaded.",
    expect=CAPTURED,
)
def best_state_by_reference(place):
    trainer = Trainer(place)
    best = {}

    def before(number):
        if number == 8:
            best.update(model=trainer.model.state_dict(), own=trainer.optimizer.state_dict())
        if number == 18:
            trainer.model.load_state_dict(best["model"])
            trainer.optimizer.load_state_dict(best["own"])

    losses = losses_of(place, place.capture(trainer.train), NUM, before=before)
    return losses, best, trainer.state()


@captured_case(
    "A deep copy of the model becomes the model, by rebinding the name.", expect=CAPTURED
)
def copy_becomes_the_model(place):
    model = mlp(place, dropout=0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def train(pair):
        x, y = pair
        return updated(optimizer, F.cross_entropy(model(x), y))

    step = place.capture(train)
    best, losses = None, []
    for number, pair in enumerate(batches(place, 36)):
        losses += run(step, [pair])
        if number == 8:
            best = copy.deepcopy(model)
        if number == 18:
            old, model = model, best
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return losses, state(old), state(model, optimizer)


@captured_case(
    "A trainer with a captured method is pickled without it, and goes on.", expect=CAPTURED
)
def pickled_without_its_step(place):
    trainer = Picklable(place)
    trainer.step = place.capture(trainer.train)
    losses = []
    sizes = []
    for number, pair in enumerate(batches(place, 24)):
        losses += run(trainer.step, [pair])
        if number % 8 == 7:
            sizes.append(len(pickle.dumps(trainer)) > 100)
    return losses, sizes, trainer.state()


class Picklable(Trainer):
    """A trainer that leaves out its step and its weights when pickled."""

    def __getstate__(self):
        return {"groups": self.optimizer.param_groups[0]["lr"], "names": ["x"] * 100}


@captured_case(
    "A layer is re-initialised by the loop, and its momentum is forgotten.", expect=CAPTURED
)
def layer_is_reset(place):
    trainer = Trainer(place)

    def before(number):
        if number == 15:
            with torch.random.fork_rng(devices=[]):
                head = trainer.model[3]
                fresh = nn.Linear(16, 4)
                with torch.no_grad():
                    for p, new in zip(head.parameters(), fresh.parameters(), strict=True):
                        p.copy_(place.moved(new.detach()))
                        trainer.optimizer.state[p].clear()

    return losses_of(place, place.capture(trainer.train), 34, before=before), trainer.state()


@captured_case(
    "Gradients are read, scaled and logged by the loop after each step, and kept.", expect=EITHER
)
def gradients_are_logged(place):
    trainer = Trainer(place)
    trainer.optimizer.zero_grad()

    def train(pair):
        loss = trainer.loss(pair)
        loss.backward()
        trainer.optimizer.step()
        return loss

    step = place.capture(train)
    norms, held = [], []
    for number, pair in enumerate(batches(place, NUM)):
        step(pair)
        norms.append([p.grad.norm() for p in trainer.model.parameters()])
        if number % 5 == 4:
            held.append(trainer.model[0].weight.grad)
            trainer.optimizer.zero_grad(set_to_none=True)
        else:
            for p in trainer.model.parameters():
                p.grad.mul_(0.5)
    return norms, held, trainer.state()


@captured_case(
    "Validation under another name: one function trains or evaluates by an argument.",
    expect=CAPTURED,
)
def one_function_for_both(place):
    model = mlp(place, dropout=0.3)
    optimizer = sgd(model, momentum=0.9)

    def run_batch(pair, is_training):
        x, y = pair
        with torch.set_grad_enabled(is_training):
            out = model(x)
            loss = F.cross_entropy(out, y)
        if is_training:
            updated(optimizer, loss)
        return loss.detach(), (out.argmax(1) == y).sum()

    step = place.capture(run_batch)
    results = []
    for _ in range(3):
        for is_training in (True, False):
            model.train(is_training)
            results += [step(pair, is_training) for pair in batches(place, 8)]
    return results, state(model, optimizer)


@captured_case("Batches are staged on a stream of the loop's own.", expect=CAPTURED)
def staged_on_a_stream(place):
    trainer = Trainer(place)
    stream = place.stream()

    def staged(number):
        with place.on(stream):
            return batch(place, number)

    step = place.capture(trainer.train)
    losses, following = [], staged(0)
    for number in range(24):
        if stream is not None:
            place.order(place.current(), stream)
        pair = following
        for one in pair:
            place.record_stream(one, place.current())
        losses.append(kept(step(pair)))
        following = staged(number + 1)
    return losses, trainer.state()


# --------------------------------------------------------------------- ways of being captured


@captured_case("The step is a partial method, and a method chosen by type.", expect=CAPTURED)
def partial_methods(place):
    class Model(Trainer):
        def weighted(self, pair, weight):
            return updated(self.optimizer, weight * self.loss(pair))

        half = functools.partialmethod(weighted, weight=0.5)

        @functools.singledispatchmethod
        def typed(self, one):
            return self.half(one)

        @typed.register
        def _(self, one: dict):
            return self.weighted((one["x"], one["y"]), 2.0)

    trainer = Model(place)
    half, typed = place.capture(trainer.half), place.capture(trainer.typed)
    losses = []
    for x, y in batches(place, 20):
        losses += [kept(half((x, y))), kept(typed((x, y))), kept(typed({"x": x, "y": y}))]
    return losses, trainer.state()


@captured_case("The step is a `methodcaller`, given the trainer as its argument.", expect=EITHER)
def method_caller(place):
    trainer = Trainer(place)
    pair = batch(place, 0)
    step = place.capture(operator.methodcaller("train", pair))
    losses = []
    for number in range(20):
        if number == 12:
            trainer.optimizer.param_groups[0]["lr"] = 0.02
        losses.append(kept(step(trainer)))
    return losses, trainer.state()


@captured_case("A decorated step calls itself with halves of its batch.", expect=EITHER)
def calls_itself(place):
    trainer = Trainer(place)

    @place.capture
    def train(x, y, depth=0):
        if depth < 2 and len(x) > 2:
            half = len(x) // 2
            first = train(x[:half], y[:half], depth + 1)
            return first + train(x[half:], y[half:], depth=depth + 1)
        return updated(trainer.optimizer, F.cross_entropy(trainer.model(x), y)).detach()

    losses = []
    for number in range(24):
        x, y = batch(place, number, rows=(8, 2)[number % 2])
        losses.append(kept(train(x, y)))
    return losses, trainer.state()


@captured_case("Micro-batches come from a generator function within a context.", expect=CAPTURED)
def generators_and_contexts(place):
    trainer = Trainer(place)

    def parts(pair):
        for x, y in zip(pair[0].chunk(3), pair[1].chunk(3), strict=True):
            yield {"x": x, "y": y}

    @contextlib.contextmanager
    def update():
        trainer.optimizer.zero_grad()
        try:
            yield []
        finally:
            trainer.optimizer.step()

    def train(pair):
        with update() as losses, contextlib.ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for part in parts(pair):
                loss = F.cross_entropy(trainer.model(part["x"]), part["y"]) / 3
                loss.backward()
                losses.append(loss.detach())
        return torch.stack(losses)

    return losses_of(place, place.capture(train), 24), trainer.state()


# ------------------------------------------------------------------------- batches and inputs


@captured_case(
    "Training as a function: weights are arguments, which the step changes in place.",
    expect=EITHER,
)
def weights_as_arguments(place):
    model = mlp(place)
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}

    def train(weights, pair, lr=0.1):
        x, y = pair
        loss = F.cross_entropy(functional_call(model, weights, (x,)), y)
        grads = torch.autograd.grad(loss, list(weights.values()))
        with torch.no_grad():
            for weight, one in zip(weights.values(), grads, strict=True):
                weight -= lr * one
        return loss

    step = place.capture(train)
    return [kept(step(weights, pair)) for pair in batches(place, 24)], weights


@captured_case(
    "Training as a function: new weights and state are returned and given back.", expect=CAPTURED
)
def weights_go_round(place):
    model = mlp(place)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    momenta = {name: torch.zeros_like(w) for name, w in weights.items()}

    def loss_of(weights, x, y):
        return F.cross_entropy(functional_call(model, weights, (x,)), y)

    def train(weights, momenta, pair):
        grads, loss = torch.func.grad_and_value(loss_of)(weights, *pair)
        momenta = {name: 0.9 * m + grads[name] for name, m in momenta.items()}
        return {name: w - 0.1 * momenta[name] for name, w in weights.items()}, momenta, loss

    step = place.capture(train)
    losses = []
    for pair in batches(place, 24):
        weights, momenta, loss = step(weights, momenta, pair)
        losses.append(loss)
    return losses, weights, momenta


@captured_case("Batches hold complex, boolean and small integer tensors.", expect=CAPTURED)
def batches_of_many_dtypes(place):
    weight = nn.Parameter(torch.ones(5, dtype=torch.complex64, device=place.torch_device))
    optimizer = torch.optim.Adam([weight], lr=1e-2)

    def train(one):
        filtered = torch.fft.irfft(torch.fft.rfft(one["signal"]) * weight, n=8)
        signs = one["signs"].to(filtered.dtype)
        error = (filtered * signs - one["target"].real).square()
        return updated(optimizer, error.masked_fill(~one["mask"], 0.0).sum())

    step = place.capture(train)
    losses = []
    for number in range(24):
        x, y = batch(place, number, rows=8)
        one = {
            "signal": x,
            "target": torch.complex(x.flip(1), x),
            "mask": x > 0,
            "signs": (y[:, None] > 1).to(torch.int8),
        }
        losses.append(kept(step(one)))
    return losses, weight, optimizer.state_dict()


@captured_case("A batch is a UserDict with `.to` and attributes.", expect=EITHER)
def batch_is_a_user_dict(place):
    class Encoding(UserDict):
        def __getattr__(self, name):
            if name == "data":
                raise AttributeError(name)
            return self.data[name]

    trainer = Trainer(place)

    def train(one):
        one["x"] = one.x * 2
        return trainer.train((one.x, one["y"]))

    step = place.capture(train)
    results = []
    for x, y in batches(place, 20):
        one = Encoding({"x": x, "y": y, "names": ["a", "b"]})
        results.append((kept(step(one)), one["x"]))
    return results, trainer.state()


@captured_case(
    "A graph comes as a sparse matrix with the features.", expect=EITHER, devices=(GPU,)
)
def sparse_adjacency(place):
    layers = seeded(place, lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)))
    optimizer = sgd(layers)

    def train(adjacency, pair):
        x, y = pair
        hidden = F.relu(torch.sparse.mm(adjacency, layers[0](x)))
        return updated(optimizer, F.cross_entropy(layers[1](hidden), y))

    step = place.capture(train)
    losses = []
    for number, pair in enumerate(batches(place, 20)):
        dense = (pair[0] @ pair[0].t() > number % 3).float()
        losses.append(kept(step(dense.to_sparse(), pair)))
    return losses, state(layers)


@captured_case(
    "A dtype, a device, an enum-like text and a slice are among the arguments.", expect=CAPTURED
)
def odd_plain_arguments(place):
    trainer = Trainer(place)

    def train(pair, *, dtype, device, reduction="mean", rows=slice(None)):
        x, y = (one.to(device)[rows] for one in pair)
        out = trainer.model(x).to(dtype)
        return updated(trainer.optimizer, F.cross_entropy(out, y, reduction=reduction))

    step = place.capture(train)
    losses = []
    for number, pair in enumerate(batches(place, 36)):
        settings = {"dtype": torch.float64 if number % 2 else torch.float32}
        if number >= 18:
            settings |= {"reduction": "sum", "rows": slice(0, 4)}
        losses.append(kept(step(pair, device=place.torch_device, **settings)))
    return losses, trainer.state()


@captured_case(
    "Keys and values of earlier segments are given back as arguments, and grow to a limit.",
    expect=EITHER,
)
def memory_of_segments(place):
    model = seeded(place, lambda: nn.Linear(8, 8))
    optimizer = sgd(model)

    def train(x, memory):
        keys = torch.cat([memory, x]) if memory is not None else x
        out = (model(x) @ keys.t()).softmax(1) @ keys
        loss = updated(optimizer, F.mse_loss(out, x))
        return loss, keys[-12:].detach()

    step = place.capture(train)
    losses, memory, memories = [], None, []
    for number, (x, _) in enumerate(batches(place, 28, rows=4)):
        if number == 14:
            memory = None
        loss, memory = step(x, memory)
        losses.append(kept(loss))
        memories.append(memory)
    return losses, memories, state(model)


@captured_case(
    "A result is given back as an argument and changed there, while the loop keeps it.",
    expect=EITHER,
)
def result_is_given_back_and_changed(place):
    trainer = Trainer(place)

    def train(pair, sums):
        sums += trainer.model(pair[0]).detach().sum(0)
        trainer.train(pair)
        return sums

    step = place.capture(train)
    sums = torch.zeros(4, device=place.torch_device)
    first, seen, is_same = sums, [], []
    for pair in batches(place, 24):
        new = step(pair, sums)
        is_same.append(new is sums)
        sums = new
        seen.append(snapshot(place, sums))
    return first, seen, is_same, trainer.state()


@dataclass
class TrainState:
    """What some people pass through their training, with a count in it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    num_steps: int = 0


@captured_case("A state object with model, optimizer and a count is an argument.", expect=EITHER)
def state_object_as_an_argument(place):
    model = mlp(place)
    train_state = TrainState(model, sgd(model, momentum=0.9))

    def train(train_state, pair):
        x, y = pair
        train_state.num_steps += 1
        loss = updated(train_state.optimizer, F.cross_entropy(train_state.model(x), y))
        return train_state, loss

    step = place.capture(train)
    losses = []
    for pair in batches(place, 20):
        train_state, loss = step(train_state, pair)
        losses.append((kept(loss), train_state.num_steps))
    return losses, state(model, train_state.optimizer)


class OfItsPlace(nn.Module):
    """Depends on where its argument begins, as kernels do that add up in another order there."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 6)

    def forward(self, x):
        return self.head(x) * (1 + x.data_ptr() % 16 / 64)


@captured_case("Batches are slices of data on the device, with rows of 20 bytes.", expect=CAPTURED)
def batches_begin_anywhere(place):
    model = seeded(place, OfItsPlace)
    optimizer = sgd(model, momentum=0.9)
    step = place.capture(lambda pair: updated(optimizer, F.cross_entropy(model(pair[0]), pair[1])))
    data = torch.randn(3 * NUM, 5, generator=torch.Generator().manual_seed(5))
    data = data.to(place.torch_device)
    labels = torch.arange(3, device=place.torch_device)
    losses = [kept(step((data[at : at + 3], labels))) for at in range(0, 3 * NUM, 3)]
    return losses, state(model, optimizer)
