"""Objects captured in place, in loops of other libraries' idioms: tracing, wrappers, updates by `.data`."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

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


class HasTraced(nn.Module):
    """A part of it was traced by torch.fx."""

    def __init__(self):
        super().__init__()
        self.traced = fx.symbolic_trace(Headed())

    def forward(self, x):
        return self.traced(x)


def _with_tanh(traced):
    """Let a traced module call tanh in place of relu, as passes over a graph do."""
    for node in traced.graph.nodes:
        if node.target is F.relu:
            node.target, node.kwargs = torch.tanh, {}
    traced.recompile()


@in_place_case("The code of a part that torch.fx traced is written anew in the middle.")
def traced_part_is_recompiled(place):
    model = place.capture(made(place, HasTraced))
    optimizer = sgd(model)
    losses = fit(place, model, optimizer)
    _with_tanh(model.traced)
    losses += fit(place, model, optimizer, start=NUM)
    return losses, state(model, optimizer)


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


@in_place_case("A part of the model is one of torch.jit, and goes into eval mode in the middle.")
def scripted_part(place):
    model = made(place, nn.Sequential, _scripted(place), nn.ReLU(), nn.Linear(8, 4))
    place.capture(model)
    optimizer = sgd(model)
    losses = fit(place, model, optimizer)
    model[0].eval()
    losses += fit(place, model, optimizer, start=NUM)
    return losses, state(model, optimizer)


def _tanh(module, x):
    del module
    return torch.tanh(x)


@in_place_case("`forward` of torch's own class is patched by the loop for a while, and put back.")
def class_of_torch_is_patched(place):
    model = place.capture(
        made(place, nn.Sequential, nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    )
    optimizer = sgd(model)
    losses = fit(place, model, optimizer)
    own = nn.GELU.forward
    nn.GELU.forward = _tanh
    try:
        losses += fit(place, model, optimizer, start=NUM)
    finally:
        nn.GELU.forward = own
    losses += fit(place, model, optimizer, start=2 * NUM)
    return losses, state(model, optimizer)


# ------------------------------------------------------- where tensors begin in memory
#
# A GPU's kernels add up in another order where a tensor does not begin at a multiple of 16 bytes. No such
# kernel runs here, so these modules multiply by what depends on it.


def _place_of(tensor):
    # The address itself would be refused.
    return 1 + tensor.storage_offset() * tensor.element_size() % 16 / 64


class _ByPlace(torch.autograd.Function):
    """The identity, whose gradient depends on where the given one begins."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * _place_of(gradient)


class OfPlaces(nn.Module):
    """Depends on where its argument begins, and returns what begins somewhere within a row."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 5)

    def forward(self, x):
        return self.head(x * _place_of(x))[1:]


class OfPlacesBackward(nn.Module):
    """Its backward pass depends on where the gradient that it is given begins."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 5)

    def forward(self, x):
        return _ByPlace.apply(self.head(x))


def _rows_of_five(place, num):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(3 * num, 5, generator=generator).to(place.torch_device)


@in_place_case(
    "Batches are slices of data on the device, with rows of 20 bytes.", expect=captured()
)
def batches_begin_anywhere(place):
    model = place.capture(made(place, OfPlaces))
    optimizer = sgd(model)
    data, losses = _rows_of_five(place, 2 * NUM), []
    for number in range(2 * NUM):
        scores = model(data[3 * number : 3 * number + 3])
        losses.append(update(optimizer, (scores * _place_of(scores)).square().mean()))
    return losses, state(model, optimizer)


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


@in_place_case("The gradient that comes back is a slice of another one.", expect=captured())
def gradient_begins_anywhere(place):
    model = place.capture(made(place, OfPlacesBackward))
    optimizer = sgd(model)
    data, losses = _rows_of_five(place, NUM), []
    for number in range(NUM):
        x = data[3 * number : 3 * number + 3].clone()
        both = torch.cat([x, model(x)])
        losses.append(update(optimizer, both.square().sum()))
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
    "Weights are moved by `.data` between two backward passes of one forward.", **_SAYS_SO
)
def weights_by_data_between_two_backward_passes(place):
    def change(model, optimizer, x):
        del optimizer, x
        for weight in model.parameters():
            weight.data.add_(weight.grad, alpha=-0.1)

    _changed_between(place, change, sgd)


@in_place_case("The input is changed by `.data` between two backward passes.", **_SAYS_SO)
def input_by_data_between_two_backward_passes(place):
    _changed_between(place, lambda model, optimizer, x: x.data.mul_(2.0), sgd)


@in_place_case(
    "A fused update, which counts no version, comes between two backward passes.", **_SAYS_SO
)
def fused_update_between_two_backward_passes(place):
    _changed_between(place, lambda model, optimizer, x: optimizer.step(), _fused)


@in_place_case(
    "A captured fused update comes between two backward passes of one forward.", **_SAYS_SO
)
def captured_update_between_two_backward_passes(place):
    _changed_between(
        place,
        lambda model, optimizer, x: optimizer.step(),
        lambda model: place.capture(_fused(model)),
    )


@in_place_case(
    "A fused update and a later forward come between two backward passes of one forward.",
    **_SAYS_SO,
)
def fused_update_and_a_later_forward_between(place):
    def change(model, optimizer, x):
        optimizer.step()
        F.cross_entropy(model(x + 0.5), torch.zeros_like(x[:, 0], dtype=torch.long)).backward()

    _changed_between(place, change, _fused)


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


@in_place_case(
    "Each step moves weights by `.data` between two backward passes: old GANs.",
    expect=refused("second backward"),
)
def weights_by_data_in_each_step(place):
    model = place.capture(made(place, Headed))
    optimizer = sgd(model)
    losses = []
    for x, y in batches(place, NUM):
        optimizer.zero_grad()
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        loss.backward(retain_graph=True)
        for weight in model.parameters():
            weight.data.add_(weight.grad, alpha=-0.1)
        scores.square().mean().backward()
        optimizer.step()
        losses.append(loss.item())
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


# ------------------------------------------------------------------------- what wraps a forward


class Scaled(nn.Module):
    """Wraps a module; halves what it returns, unless somebody gives it another `forward`."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * 0.5


@in_place_case(
    "Another module has the model's `forward` as its own: `outer.forward = model.forward`."
)
def forward_is_given_to_another_module(place):
    model = place.capture(made(place, Headed))
    outer = Scaled(model)
    outer.forward = model.forward
    return fit(place, outer, sgd(model))


class Doubling(TorchFunctionMode):
    """Doubles each mean."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        del types
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.Tensor.mean else result


@in_place_case(
    "The model is called within a mode of torch functions, in a block of autocast that goes on after it.",
    expect=either("Doubling"),
)
def mode_ends_within_a_block_of_autocast(place):
    model = place.capture(made(place, Headed))
    optimizer = sgd(model)
    losses = []
    for x, _ in batches(place, NUM):
        with torch.autocast(place.torch_device.type, dtype=torch.bfloat16):
            with Doubling():
                scores = model(x)
            loss = scores.square().mean()
        losses.append(update(optimizer, loss))
    return losses, state(model, optimizer)


@in_place_case("Two models share blocks of autocast, and one of them begins late.")
def another_model_begins_late_in_autocast(place):
    first = place.capture(made(place, Headed), name="first")
    late = place.capture(made(place, Headed), name="late")
    optimizer = torch.optim.SGD([*first.parameters(), *late.parameters()], lr=0.1)
    losses = []
    for number, (x, y) in enumerate(batches(place, 40)):
        with torch.autocast(place.torch_device.type, dtype=torch.bfloat16):
            scores = late(x) if number >= 12 else 0
            loss = F.cross_entropy(first(x) + scores, y)
        losses.append(update(optimizer, loss))
    if not place.is_plain:
        assert not _is_captured_anew(place, first)
    return losses, state(first, optimizer), state(late, optimizer)


def _is_captured_anew(place, model):
    """Return whether a report says that modes of torch functions have changed."""
    return "modes of torch" in str(place.report(model))
