"""Training idioms in the combinations in which people use them: found by trying to break a capture."""

from __future__ import annotations

import contextlib
import functools
import io
import math
from collections import UserDict

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


# -------------------------------------------------- models that are frozen, grown and replaced


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
