"""Training idioms in the combinations in which people use them: found by trying to break a capture."""

from __future__ import annotations

import contextlib
import functools
import io
import math
from collections import OrderedDict, UserDict

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from hazards.captured_harness import (
    CAPTURED,
    EITHER,
    GPU,
    captured_case,
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


# -------------------------------------------------- models that are frozen, grown and replaced


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


# ---------------------------------------------------------------- optimizers and schedulers


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


# ------------------------------------------------------------------------------------ losses


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
    # Nothing is captured until the order of sums was the same in eight calls with the penalty.
    for number in range(72):
        real, fake = batch(place, number)[0], batch(place, 200 + number)[0]
        losses.append(kept(step(real, fake, penalised=number % 4 == 0)))
    return losses, state(critic, optimizer)


# ---------------------------------------------------------------------------------- autograd


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


# ---------------------------------------------------------------------- data made in the loop


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


# ----------------------------------------------------------------------- what steps give back


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


# ------------------------------------------------------------------------- batches and inputs


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
