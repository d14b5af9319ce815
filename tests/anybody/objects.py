"""Objects of this call's tensors, and weights that are written by other ways than an optimizer.

Each form is one model and its loss, trained twice: as a captured step, and with model and optimizer captured
in place.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.distributions import (
    Bernoulli,
    Categorical,
    Independent,
    Normal,
    TransformedDistribution,
    kl_divergence,
)
from torch.distributions.transforms import TanhTransform
from torch.nn import functional as F
from torch.nn.utils import spectral_norm, weight_norm
from torch.nn.utils.parametrizations import weight_norm as parametrized_weight_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from anybody.harness import NUM, REPLAYED, Cases, Expect, or_told, replayed, told
from hazards.captured_models import batches, kept, sgd, state
from hazards.in_place_models import floats, made, tokens


if TYPE_CHECKING:
    from collections.abc import Callable


case = Cases("objects")


def in_place(place, model, loss_of, *, optimizer=None, before=None, after=None, num=NUM):
    """Train with model and optimizer captured in place."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, foreach=True)
    place.capture(model, optimizer)
    losses = []
    for x, y in batches(place, num):
        if before:
            before(model)
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if after:
            after(model)
    return losses, state(model, optimizer)


def as_step(place, model, loss_of, *, optimizer=None, before=None, after=None, num=NUM):
    """Train by a captured step, with what goes before and after within the step."""
    optimizer = optimizer or sgd(model, lr=0.05)

    def step(batch):
        if before:
            before(model)
        optimizer.zero_grad()
        loss = loss_of(model, *batch)
        loss.backward()
        optimizer.step()
        if after:
            after(model)
        return loss.detach()

    step = place.capture(step)
    return [kept(step(batch)) for batch in batches(place, num)], state(model, optimizer)


@dataclass(frozen=True)
class Form:
    """A model, its loss, what a loop does around it, and what is expected of each way of capture."""

    name: str
    sentence: str
    make: Callable[[], nn.Module]
    loss_of: Callable[..., torch.Tensor]
    before: Any = None
    after: Any = None
    step: Expect = REPLAYED
    in_place: Expect = REPLAYED


def register(form, case=case):
    """Register both ways of a form."""
    options = {"before": form.before, "after": form.after}
    for way, train in (("step", as_step), ("in_place", in_place)):

        def loop(place, train=train):
            return train(place, made(place, form.make), form.loss_of, **options)

        case.register(f"{form.name}-{way}", form.sentence, loop, getattr(form, way))


# ------------------------------------------------------------------------------ distributions


class Actor(nn.Module):
    """Keeps the distribution of its last forward pass on itself, as rsl_rl's policies do."""

    def __init__(self, validate_args=False):
        super().__init__()
        self.body, self.std = nn.Linear(8, 3), nn.Parameter(torch.ones(3))
        self.distribution, self.validate_args = None, validate_args

    def forward(self, x):
        mean = self.body(x)
        self.distribution = Normal(mean, mean * 0.0 + self.std, validate_args=self.validate_args)
        return self.distribution.sample()


def of_kept_distribution(model, x, y):
    actions = model(x)
    distribution = model.distribution
    log_prob = distribution.log_prob(actions).sum(-1)
    return (
        distribution.entropy().mean() * -0.01 - log_prob.mean() + distribution.mean.square().mean()
    )


class DiagGaussian:
    """A distribution of one's own around torch's, which a policy makes once, as stable-baselines3 does."""

    def __init__(self):
        self.distribution = None
        self.gaussian_actions = None

    def proba_distribution(self, mean, log_std):
        self.distribution = Normal(
            mean, torch.ones_like(mean) * log_std.exp(), validate_args=False
        )
        return self

    def sample(self):
        self.gaussian_actions = self.distribution.rsample()
        return torch.tanh(self.gaussian_actions)

    def log_prob(self, actions):
        log_prob = self.distribution.log_prob(self.gaussian_actions).sum(1)
        return log_prob - torch.log(1 - actions**2 + 1e-6).sum(1)


class Squashed(nn.Module):
    """Stable-baselines3's SAC actor."""

    def __init__(self):
        super().__init__()
        self.mu, self.log_std = nn.Linear(8, 3), nn.Linear(8, 3)
        self.action_dist = DiagGaussian()

    def forward(self, x):
        return self.action_dist.proba_distribution(
            self.mu(x), self.log_std(x).clamp(-2, 1)
        ).sample()


class Returns(nn.Module):
    """Returns whatever is made of two heads' outputs."""

    def __init__(self, make):
        super().__init__()
        self.first, self.second = nn.Linear(8, 4), nn.Linear(8, 4)
        self.make = make

    def forward(self, x):
        return self.make(self.first(x), self.second(x))


def normal(mean, log_std):
    return Normal(mean, log_std.exp(), validate_args=False)


def tanh_normal(mean, log_std):
    base = Independent(normal(mean, log_std), 1, validate_args=False)
    return TransformedDistribution(base, [TanhTransform(cache_size=1)], validate_args=False)


def prior_and_posterior(mean, log_std):
    zeros = torch.zeros_like(mean)
    return {"posterior": normal(mean, log_std), "prior": normal(zeros, zeros)}


def of_tanh_normal(model, x, y):
    distribution = model(x)
    actions = distribution.rsample()
    return distribution.log_prob(actions).mean() + actions.square().mean()


def of_kl(model, x, y):
    both = model(x)
    drawn = both["posterior"].rsample()
    return kl_divergence(both["posterior"], both["prior"]).mean() + F.cross_entropy(drawn, y)


DISTRIBUTIONS = [
    Form(
        "normal_on_self",
        "A policy keeps its Normal on itself; the loop asks it for log-probabilities.",
        Actor,
        of_kept_distribution,
    ),
    Form(
        "normal_that_validates",
        "The same with torch's checks of arguments, which read the device.",
        lambda: Actor(validate_args=True),
        of_kept_distribution,
        step=or_told("validate_args=False"),
        in_place=or_told("validate_args=False", of=("model",)),
    ),
    Form(
        "squashed_on_self",
        "A policy's own distribution object gets new tensors in each forward pass.",
        Squashed,
        lambda model, x, y: (
            model.action_dist.log_prob(actions := model(x)).mean() + actions.square().mean()
        ),
    ),
    Form(
        "categorical_returned",
        "A forward pass returns a Categorical.",
        lambda: Returns(lambda logits, _: Categorical(logits=logits, validate_args=False)),
        lambda model, x, y: -(d := model(x)).log_prob(y).mean() - 0.01 * d.entropy().mean(),
    ),
    Form(
        "bernoulli_and_value",
        "A forward pass returns a distribution and a value.",
        lambda: Returns(lambda a, b: (Bernoulli(logits=a, validate_args=False), b.mean(1))),
        lambda model, x, y: (
            (out := model(x))[1].square().mean()
            - out[0].log_prob((x[:, :4] > 0).float()).sum(1).mean()
        ),
    ),
    Form(
        "tanh_normal_returned",
        "A transformed, independent Normal is returned, with a transform that caches.",
        lambda: Returns(tanh_normal),
        of_tanh_normal,
    ),
    Form(
        "two_distributions_in_a_dict",
        "Prior and posterior of a world model are returned in a dict.",
        lambda: Returns(prior_and_posterior),
        of_kl,
    ),
]


# ------------------------------------------------------------------------------ output objects


@dataclass
class Output:
    logits: torch.Tensor
    aux: torch.Tensor | None = None
    name: str = "output"


@dataclass(frozen=True, kw_only=True)
class Frozen:
    logits: torch.Tensor
    inner: Output
    parts: list = field(default_factory=list)


class Pair(NamedTuple):
    logits: torch.Tensor
    aux: torch.Tensor
    scale: float = 1.0


class Result:
    """A plain class, with a property and a method of its tensors."""

    def __init__(self, logits, aux):
        self.logits, self.aux, self.parent = logits, aux, None

    @property
    def probabilities(self):
        return self.logits.softmax(-1)

    def loss(self, y):
        return (
            F.cross_entropy(self.logits, y)
            + self.probabilities.square().mean()
            + penalty(self.aux)
        )


class Slotted:
    __slots__ = ("aux", "logits")

    def __init__(self, logits, aux):
        self.logits, self.aux = logits, aux


class AttrDict(dict):
    __getattr__ = dict.__getitem__


def penalty(aux):
    return 0.1 * aux.square().mean()


def of_fields(model, x, y):
    out = model(x)
    return F.cross_entropy(out.logits, y) + penalty(out.aux)


def of_frozen(model, x, y):
    out = model(x)
    return F.cross_entropy(out.logits, y) + penalty(out.inner.aux + out.parts[1])


def of_model_output(model, x, y):
    out = model(x)
    return F.cross_entropy(out.logits, y) + penalty(out["hidden_states"][0]) + penalty(out[0])


def of_ordered_dict(model, x, y):
    out = model(x)
    return F.cross_entropy(out["out"], y) + penalty(out["aux"])


def model_output(logits, aux):
    """Return what a model of transformers returns."""
    outputs = pytest.importorskip("transformers.modeling_outputs")
    return outputs.SequenceClassifierOutput(logits=logits, hidden_states=(aux,))


class LeavesOnSelf(nn.Module):
    """Leaves what it computed on itself, in some form."""

    def __init__(self, leave):
        super().__init__()
        self.first, self.second, self.leave = nn.Linear(8, 4), nn.Linear(8, 4), leave
        self.last, self.attentions, self.losses = None, [], {}

    def forward(self, x):
        logits, aux = self.first(x), self.second(x)
        self.leave(self, logits, aux)
        return logits


def _replace_list(model, logits, aux):
    model.attentions = []
    model.attentions.append(aux.softmax(-1))


def of_left(read):
    def loss_of(model, x, y):
        logits = model(x)
        return F.cross_entropy(logits, y) + penalty(read(model))

    return loss_of


OUTPUTS = [
    Form(name, sentence, lambda make=make: Returns(make), loss_of)
    for name, sentence, make, loss_of in [
        ("dataclass", "A dataclass with text in it is returned.", Output, of_fields),
        (
            "frozen_dataclass",
            "A frozen dataclass with another one within is returned.",
            lambda a, b: Frozen(logits=a, inner=Output(a * 2, b), parts=[b.exp(), b * 2]),
            of_frozen,
        ),
        ("named_tuple", "A named tuple is returned.", Pair, of_fields),
        (
            "model_output",
            "A ModelOutput of transformers is returned, and read by name, key and place.",
            model_output,
            of_model_output,
        ),
        (
            "plain_object",
            "An object of a plain class is returned, whose methods make the loss.",
            Result,
            lambda model, x, y: model(x).loss(y),
        ),
        ("slotted", "An object with slots is returned.", Slotted, of_fields),
        (
            "namespace",
            "A simple namespace is returned.",
            lambda a, b: SimpleNamespace(logits=a, aux=b),
            of_fields,
        ),
        (
            "attr_dict",
            "A dict is returned whose items are attributes.",
            lambda a, b: AttrDict(logits=a, aux=b),
            of_fields,
        ),
        (
            "ordered_dict",
            "An OrderedDict is returned, as torchvision's segmentation models do.",
            lambda a, b: OrderedDict(out=a, aux=b),
            of_ordered_dict,
        ),
    ]
]

LEFT = [
    Form(name, sentence, lambda leave=leave: LeavesOnSelf(leave), of_left(read))
    for name, sentence, leave, read in [
        (
            "object_left_on_self",
            "A plain object of this call is left on the model and read by the loop.",
            lambda model, a, b: setattr(model, "last", Result(a, b)),
            lambda model: model.last.aux,
        ),
        (
            "namespace_left_on_self",
            "A namespace that stays gets new tensors as its attributes.",
            lambda model, a, b: model.losses.update(last=SimpleNamespace(aux=b)),
            lambda model: model.losses["last"].aux,
        ),
        (
            "attention_maps_on_self",
            "A new list of attention maps is left on the model in each call.",
            _replace_list,
            lambda model: model.attentions[0],
        ),
        (
            "losses_in_a_dict_on_self",
            "Losses of routers are left in a dict on the model.",
            lambda model, a, b: model.losses.update(balance=penalty(b), z=b.logsumexp(1)),
            lambda model: model.losses["balance"] + model.losses["z"].mean(),
        ),
        (
            "dataclass_on_self",
            "A dataclass of this call is left on the model.",
            lambda model, a, b: setattr(model, "last", Output(a, b)),
            lambda model: model.last.aux,
        ),
    ]
]


# ------------------------------------------------------------------- weights written otherwise


class Momentum(nn.Module):
    """A net and its slow copy, which has no gradients: MoCo, BYOL, DINO."""

    def __init__(self):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.register_buffer("center", torch.zeros(1, 4))

    def forward(self, x):
        with torch.no_grad():
            target = self.k(x + 0.1) - self.center
        return self.q(x), target


def of_momentum(model, x, y):
    out, target = model(x)
    return F.mse_loss(F.normalize(out, dim=-1), F.normalize(target, dim=-1))


def _pairs(model):
    return zip(model.q.parameters(), model.k.parameters(), strict=True)


@torch.no_grad()
def moco(model):
    for q, k in _pairs(model):
        k.data = k.data * 0.9 + q.data * 0.1


def byol(model):
    def average(old, new):
        return old * 0.9 + (1 - 0.9) * new

    for q, k in _pairs(model):
        old, new = k.data, q.data
        k.data = average(old, new)


@torch.no_grad()
def in_memory(model):
    for q, k in _pairs(model):
        k.data.mul_(0.9).add_((1 - 0.9) * q.detach().data)


@torch.no_grad()
def centred(model):
    batch_center = model.q[0].weight.mean() + model.center.mean()
    model.center = model.center * 0.9 + batch_center * 0.1


@torch.no_grad()
def polyak_by_copy(model):
    for q, k in _pairs(model):
        k.data.copy_(0.05 * q.data + 0.95 * k.data)


class Codes(nn.Module):
    """A vector quantizer whose averages are new parameters in each forward pass."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 4), nn.Linear(4, 4)
        self.codes = nn.Embedding(6, 4)
        self.register_buffer("size", torch.ones(6))
        self.ema_w = nn.Parameter(torch.randn(6, 4))

    def forward(self, x):
        z = self.first(x)
        one_hot = F.one_hot(torch.cdist(z, self.codes.weight).argmin(1), 6).float()
        quantized = one_hot @ self.codes.weight
        if self.training:
            self.size = self.size * 0.9 + 0.1 * one_hot.sum(0)
            self.ema_w = nn.Parameter(self.ema_w * 0.9 + 0.1 * one_hot.t() @ z)
            self.codes.weight = nn.Parameter(self.ema_w / (self.size + 1e-3).unsqueeze(1))
        return self.head(z + (quantized - z).detach()), F.mse_loss(z, quantized.detach())


class Pix2Pix(nn.Module):
    """A generator and a discriminator whose `requires_grad` a step takes away and puts back."""

    def __init__(self, by="set_requires_grad"):
        super().__init__()
        self.g, self.d, self.by = nn.Linear(8, 8), nn.Linear(8, 1), by

    def forward(self, x):
        return self.d(self.g(x))


def set_requires_grad(nets, requires_grad=False):
    for net in nets:
        for one in net.parameters():
            one.requires_grad = requires_grad


def of_pix2pix(model, x, y):
    set_requires_grad([model.d], False)
    loss = F.softplus(-model(x)).mean()
    set_requires_grad([model.d], True)
    return loss


def of_spinning_up(model, x, y):
    for one in model.d.parameters():
        one.requires_grad = False
    loss = -model(x).mean() + 0.1 * model.g(x).square().mean()
    for one in model.d.parameters():
        one.requires_grad = True
    return loss + F.softplus(model.d(x)).mean()


def of_method(model, x, y):
    model.d.requires_grad_(False)
    loss = F.softplus(-model(x)).mean()
    model.d.requires_grad_(True)
    return loss


def _vocoder(norm):
    def make():
        return nn.Sequential(
            nn.Unflatten(1, (2, 4)),
            norm(nn.Conv1d(2, 4, 3, padding=1)),
            nn.LeakyReLU(),
            norm(nn.Conv1d(4, 1, 3, padding=1)),
            nn.Flatten(),
        )

    return make


_OLD_NORM = or_told(r"torch\.nn\.utils\.parametrizations")


def of_classes(model, x, y):
    return F.cross_entropy(model(x), y)


WEIGHTS = [
    Form(
        "moco_data",
        "The key encoder's `.data` is set to a new tensor in each step: MoCo.",
        Momentum,
        of_momentum,
        before=moco,
        step=or_told(r"\.data|copy_", r"mul_|copy_|lerp_"),
        in_place=or_told(r"\.data|copy_", r"mul_|copy_|lerp_"),
    ),
    Form(
        "byol_data",
        "The target's `.data` is set by a function of old and new: BYOL.",
        Momentum,
        of_momentum,
        after=byol,
        step=or_told(r"\.data|copy_", r"mul_|copy_|lerp_"),
        in_place=or_told(r"\.data|copy_", r"mul_|copy_|lerp_"),
    ),
    Form(
        "momentum_in_memory",
        "The slow weights are multiplied and added to in place: MoCo v3, DINO.",
        Momentum,
        of_momentum,
        after=in_memory,
    ),
    Form(
        "polyak_by_copy",
        "Target networks follow by `.data.copy_`: TD3, SAC.",
        Momentum,
        of_momentum,
        after=polyak_by_copy,
    ),
    Form(
        "center_is_rebound",
        "A buffer is set to a new tensor behind each step: DINO's centre.",
        Momentum,
        of_momentum,
        after=centred,
        step=or_told("center", "copy_"),
        in_place=or_told("center", "copy_"),
    ),
    Form(
        "codes_are_rebound",
        "Parameters and a buffer are made anew in each forward pass: VQ-VAE with averages.",
        Codes,
        lambda model, x, y: F.cross_entropy((out := model(x))[0], y) + out[1],
        step=or_told("ema_w|codes|size", "copy_"),
        in_place=or_told("ema_w|codes|size", "copy_"),
    ),
    Form(
        "pix2pix",
        "A step takes `requires_grad` away from the discriminator and puts it back.",
        Pix2Pix,
        of_pix2pix,
        in_place=or_told("requires_grad"),
    ),
    Form(
        "spinning_up",
        "The critic is frozen for the actor's loss, and thawed for its own.",
        Pix2Pix,
        of_spinning_up,
        in_place=or_told("requires_grad|forward pass"),
    ),
    Form(
        "requires_grad_method",
        "The same by the module's `requires_grad_`.",
        Pix2Pix,
        of_method,
        in_place=or_told("requires_grad"),
    ),
    Form(
        "old_weight_norm",
        "Convolutions with torch's old weight_norm: vocoders and codecs.",
        _vocoder(weight_norm),
        of_classes,
        step=_OLD_NORM,
        in_place=_OLD_NORM,
    ),
    Form(
        "old_weight_norm_of_linear",
        "DINO's last layer: the old weight_norm, with its lengths frozen.",
        lambda: nn.Sequential(nn.Linear(8, 6), nn.GELU(), _dino_head()),
        of_classes,
        step=_OLD_NORM,
        in_place=_OLD_NORM,
    ),
    Form(
        "old_spectral_norm",
        "A discriminator with torch's old spectral_norm, which iterates in each forward pass.",
        _vocoder(spectral_norm),
        of_classes,
        step=_OLD_NORM,
        in_place=_OLD_NORM,
    ),
    Form(
        "parametrized_weight_norm",
        "The same by torch's parametrization.",
        _vocoder(parametrized_weight_norm),
        of_classes,
    ),
]


def _dino_head():
    head = weight_norm(nn.Linear(6, 4, bias=False))
    head.weight_g.data.fill_(1)
    head.weight_g.requires_grad = False
    return head


for form in [*DISTRIBUTIONS, *OUTPUTS, *LEFT, *WEIGHTS]:
    register(form)


# ---------------------------------------------------------------------------- averaged models


def _small():
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def _average(model, **options):
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), **options)


@case("An average is updated after each captured step.")
def average_after_the_step(place):
    model = made(place, _small)
    average, optimizer = _average(model, use_buffers=True), sgd(model)

    def step(batch):
        optimizer.zero_grad()
        loss = of_classes(model, *batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step, losses = place.capture(step), []
    for batch in batches(place, NUM):
        losses.append(kept(step(batch)))
        average.update_parameters(model)
    return losses, state(model, optimizer), state(average)


@case("Averages of both kinds follow a model that is captured in place.")
def average_of_a_model_in_place(place):
    model = made(place, _small)
    averages = [AveragedModel(model), _average(model)]

    def follow(model):
        for one in averages:
            one.update_parameters(model)

    return in_place(place, model, of_classes, after=follow), [state(one) for one in averages]


@case(
    "An average is updated within the step, where it asks the device how often it was.",
    expect=or_told("AveragedModel|update_parameters", "after the step"),
)
def average_within_the_step(place):
    model = made(place, _small)
    average = _average(model)
    ended = as_step(place, model, of_classes, after=lambda model: average.update_parameters(model))
    return ended, state(average)


# ------------------------------------------------------------------------------ hidden states


class WordModel(nn.Module):
    """A word-level language model that takes and gives its state."""

    def __init__(self, cell=nn.LSTM, keeps=False):
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(11, 8), cell(8, 8, 2)
        self.decoder, self.keeps, self.hidden = nn.Linear(8, 11), keeps, None

    def forward(self, ids, hidden=None):
        if self.keeps:
            hidden = repackage(self.hidden)
        out, hidden = self.rnn(self.encoder(ids), hidden)
        if self.keeps:
            self.hidden = hidden
            return self.decoder(out).view(-1, 11)
        return self.decoder(out).view(-1, 11), hidden


def repackage(hidden):
    if hidden is None or isinstance(hidden, torch.Tensor):
        return hidden if hidden is None else hidden.detach()
    return tuple(repackage(one) for one in hidden)


def zeros(place, cell):
    first = place.moved(torch.zeros(2, 3, 8))
    return (first, first.clone()) if cell is nn.LSTM else first


def windows(place, num=NUM):
    for number in range(num):
        yield tokens(place, number, 5, 3), tokens(place, number + 500, 15)


def _clipped_update(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for one in model.parameters():
        one.data.add_(one.grad, alpha=-0.5)


def _word_model_in_place(place, cell):
    model, hidden = made(place, WordModel, cell), zeros(place, cell)
    place.capture(model)
    losses = []
    for ids, targets in windows(place):
        model.zero_grad()
        hidden = repackage(hidden)
        out, hidden = model(ids, hidden)
        loss = F.cross_entropy(out, targets)
        loss.backward()
        _clipped_update(model)
        losses.append(loss.item())
    return losses, state(model)


def _word_model_as_step(place, cell, *, inside):
    model, hidden = made(place, WordModel, cell), zeros(place, cell)

    def step(ids, targets, hidden):
        model.zero_grad()
        out, hidden = model(ids, repackage(hidden) if inside else hidden)
        loss = F.cross_entropy(out, targets)
        loss.backward()
        _clipped_update(model)
        return loss.detach(), hidden

    step, losses = place.capture(step), []
    for ids, targets in windows(place):
        loss, hidden = step(ids, targets, hidden if inside else repackage(hidden))
        losses.append(kept(loss))
    return losses, state(model)


_DETACHED = or_told("requires gradients|history", "detach")
for _cell in (nn.LSTM, nn.GRU):
    _name = _cell.__name__.lower()
    case.register(
        f"word_model_{_name}-in_place",
        "A word-level language model repackages its state before each window.",
        lambda place, cell=_cell: _word_model_in_place(place, cell),
        replayed("model"),
    )
    case.register(
        f"word_model_{_name}-step",
        "The state is repackaged in the loop, and is an argument and a result of the step.",
        lambda place, cell=_cell: _word_model_as_step(place, cell, inside=False),
        _DETACHED,
    )
    case.register(
        f"word_model_{_name}-step_that_repackages",
        "The step itself repackages the state that it gets, which has a history.",
        lambda place, cell=_cell: _word_model_as_step(place, cell, inside=True),
        _DETACHED,
    )


@case(
    "The state stays on the model, with its history, and is detached in the next forward pass.",
    expect=or_told(r"self\.hidden", "return it|argument"),
)
def state_on_self(place):
    model = made(place, WordModel, keeps=True)
    place.capture(model)
    optimizer, losses = sgd(model), []
    for ids, targets in windows(place):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


@case(
    "The state is carried with its history over three windows, which get one backward pass.",
    expect=or_told("backward", "step|detach"),
)
def state_with_history(place):
    model, hidden = made(place, WordModel), zeros(place, nn.LSTM)
    place.capture(model)
    optimizer, losses = sgd(model), []
    total = 0.0
    for number, (ids, targets) in enumerate(windows(place)):
        out, hidden = model(ids, hidden)
        total = total + F.cross_entropy(out, targets)
        if number % 3 == 2:
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            losses.append(total.item())
            total, hidden = 0.0, repackage(hidden)
    return losses, state(model, optimizer)


# ---------------------------------------------------------------------- what a refusal must say


class Pooled(nn.Module):
    """Adds an entry to the dict that it is given."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 4)

    def forward(self, data):
        data["feats"] = self.net(data["attrs"])
        return data["feats"]


@case(
    "A module adds an entry to the dict that it is given.",
    expect=or_told(r"objects\.py:\d+", r"feats", "return"),
)
def entry_of_a_given_dict(place):
    model = made(place, Pooled)
    return in_place(place, model, lambda model, x, y: F.cross_entropy(model({"attrs": x}), y))


@case(
    "Ten steps get the number of the step as an int; the report says why none is captured.",
    expect=told("argument 'n'", "int", "new in each call"),
)
def number_is_an_argument(place):
    step = place.capture(lambda x, n: x.sum() * n)
    return [kept(step(floats(place, number, 3), number)) for number in range(10)]


@case(
    "The decay of SGD with momentum, one weight at a time, is scheduled.",
    expect=or_told("weight_decay", "foreach=True|whole step", of=("optimizer",)),
)
def scheduled_decay(place):
    model = made(place, _small)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    numbers = iter(range(NUM))

    def decay(model):
        optimizer.param_groups[0]["weight_decay"] = 0.1 + 0.01 * next(numbers)

    return in_place(place, model, of_classes, optimizer=optimizer, before=decay)
