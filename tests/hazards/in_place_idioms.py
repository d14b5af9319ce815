"""Objects captured in place, in loops of other libraries' idioms: tracing, wrappers, updates by `.data`."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import fx, nn
from torch.nn import functional as F

import gapless
from hazards.captured_models import Headed, batches, sgd, state
from hazards.harness import GPU, SIMULATED
from hazards.in_place_harness import HOLDS, captured, either, in_place_case, refused
from hazards.in_place_models import NUM, fit, made, update


# ------------------------------------------------------------------------------------ outputs


class LastMoment(nn.Module):
    """Returns a slice of what its layers give: the scores of the last moment of a sequence."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.head = nn.Linear(12, 6)

    def forward(self, x):
        return self.head(self.lstm(x)[0])[:, -1, :4]


@in_place_case("A slice is returned, whose rows have gaps between them: `out[:, -1]`.")
def slice_is_returned(place):
    model = place.capture(made(place, LastMoment))
    optimizer = sgd(model)
    losses, strides = [], []
    for x, y in batches(place, NUM):
        scores = model(x.view(6, 2, 4).repeat(1, 1, 2))
        strides.append(scores.stride())
        losses.append(update(optimizer, F.cross_entropy(scores, y)))
    return losses, strides, state(model, optimizer)


# ----------------------------------------------------------------------------------- optimizers


class Lookahead(torch.optim.Optimizer):
    """Slow weights follow an optimizer's; it never calls the `__init__` of torch's class."""

    def __init__(self, base, k=5, alpha=0.5):
        self.optimizer, self.k, self.alpha = base, k, alpha
        self.param_groups, self.defaults = base.param_groups, base.defaults
        self.state = defaultdict(dict)
        for group in self.param_groups:
            group["counter"] = 0

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        for group in self.param_groups:
            if group["counter"] == 0:
                for weight in group["params"]:
                    self.follow(self.state[weight], weight.data)
            group["counter"] = (group["counter"] + 1) % self.k  # in turns
        return loss

    def follow(self, state, fast):
        if "slow" not in state:
            state["slow"] = fast.clone()
        state["slow"].add_(fast - state["slow"], alpha=self.alpha)
        fast.copy_(state["slow"])


def _looked_ahead(place, capture):
    model = place.capture(made(place, Headed))
    base = sgd(model, momentum=0.9)
    optimizer = Lookahead(base)
    capture({"inside": base, "outside": optimizer})
    losses = [update(optimizer, F.cross_entropy(model(x), y)) for x, y in batches(place, NUM)]
    return losses, state(model, base), [optimizer.state[one] for one in model.parameters()]


@in_place_case(
    "Lookahead that has no `super().__init__()` is captured.",
    expect=refused("counter", at="in turns"),
)
def lookahead_without_torchs_init(place):
    return _looked_ahead(place, lambda known: place.capture(known["outside"]))


@in_place_case("The optimizer within Lookahead is captured.")
def optimizer_within_lookahead(place):
    return _looked_ahead(place, lambda known: place.capture(known["inside"]))


# -------------------------------------------------------------------------------------- tracing


def _with_tanh(traced):
    """Let a traced module call tanh in place of relu, as passes over a graph do."""
    for node in traced.graph.nodes:
        if node.target is F.relu:
            node.target, node.kwargs = torch.tanh, {}
    traced.recompile()


@in_place_case("The code of a captured module that torch.fx traced is written anew in the middle.")
def traced_model_is_recompiled(place):
    model = place.capture(fx.symbolic_trace(made(place, Headed)))
    optimizer = sgd(model)
    losses = fit(place, model, optimizer)
    _with_tanh(model)
    losses += fit(place, model, optimizer, start=NUM)
    return losses, state(model, optimizer)


def _scripted(place):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3))).to(
            place.torch_device
        )


@in_place_case("A module of torch.jit is captured, and released.", expect=refused("torch.jit"))
def scripted_model(place):
    model = place.capture(_scripted(place))
    optimizer = place.capture(sgd(model))
    losses = fit(place, model, optimizer)
    if not place.is_plain:
        gapless.release(model)
        gapless.capture(model, device=place.device)
    model.eval()
    return losses, fit(place, model, optimizer, start=NUM), state(model, optimizer)


# ------------------------------------------------------- where tensors begin in memory
#
# A GPU's kernels add up in another order where a tensor does not begin at a multiple of 16 bytes. No such
# kernel runs here, so these modules multiply by what depends on it.


def _rows_of_five(place, num):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(3 * num, 5, generator=generator).to(place.torch_device)


@in_place_case("Windows slide over a series on the device, one number further each time.")
def windows_slide(place):
    def make():
        return nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 16), nn.GELU(), nn.Linear(16, 1))

    model = place.capture(made(place, make))
    optimizer = sgd(model)
    series = _rows_of_five(place, 64).flatten()
    losses = []
    for at in range(3 * NUM):
        x, y = series[at : at + 512].view(8, 64), series[at + 512 : at + 520]
        losses.append(update(optimizer, F.mse_loss(model(x).squeeze(1), y)))
    return losses, state(model, optimizer)


# ------------------------------------------------------------ changes that torch does not count


def _changed_between(place, change, optimizer_of):
    """Change something between two backward passes of one forward, late and until that is refused."""
    model = place.capture(made(place, Headed))
    optimizer = optimizer_of(model)
    errors = []
    for number, (x, y) in enumerate(batches(place, NUM)):
        optimizer.zero_grad()
        scores = model(x)
        is_late = number >= 10 and not errors
        loss = F.cross_entropy(scores, y)
        loss.backward(retain_graph=is_late)
        loss.item()
        if is_late:
            change(model, optimizer, x)
            try:
                scores.square().mean().backward()
            except RuntimeError as error:
                errors.append(str(error))
        optimizer.step()
    assert len(errors) == 1, errors
    assert "modified in a way that torch does not count" in errors[0], errors


def _fused(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


_SAYS_SO = {"expect": HOLDS, "devices": (SIMULATED, GPU), "plainly": False}


@in_place_case(
    "A fused update, which counts no version, comes between two backward passes.", **_SAYS_SO
)
def fused_update_between_two_backward_passes(place):
    _changed_between(place, lambda model, optimizer, x: optimizer.step(), _fused)


@in_place_case(
    "A later forward comes between two backward passes of one forward, and nothing is changed.",
    expect=either(),
)
def a_later_forward_between(place):
    model = place.capture(made(place, Headed))
    optimizer = sgd(model)
    losses = []
    for number, (x, y) in enumerate(batches(place, NUM)):
        optimizer.zero_grad()
        scores = model(x)
        F.cross_entropy(scores, y).backward(retain_graph=number >= 10)
        if number >= 10:
            F.cross_entropy(model(x + 0.5), y).backward()
            scores.square().mean().backward()
        optimizer.step()
        losses.append(scores.detach().sum().item())
    return losses, state(model, optimizer)


class Towers(nn.Module):
    """An actor and a critic that share nothing."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic = Headed(), Headed()

    def forward(self, x):
        return self.actor(x), self.critic(x)


@in_place_case(
    "Two towers go backward together, and from step 10 on apart, each before its fused update.",
    expect=captured("actor", "critic"),
)
def towers_with_fused_updates(place):
    model = place.capture(made(place, Towers))
    actor, critic = _fused(model.actor), _fused(model.critic)
    place.capture(actor, name="actor")
    place.capture(critic, name="critic")
    losses = []
    for number, (x, y) in enumerate(batches(place, NUM)):
        scores, values = model(x)
        loss, error = F.cross_entropy(scores, y), values.square().mean()
        actor.zero_grad()
        critic.zero_grad()
        if number < 10:
            (loss + error).backward()
            critic.step()
        else:
            error.backward()
            critic.step()
            loss.backward()
        actor.step()
        losses += [loss.item(), error.item()]
    return losses, state(model, actor, critic)
