"""What a loop calls of a captured module: other methods than `forward`, children, or nothing at all."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import nn
from torch.distributions import Categorical, Normal
from torch.func import functional_call
from torch.nn import functional as F

import gapless
from anybody.harness import NUM, Cases, or_told, replayed, told
from hazards.captured_models import batches, sgd, state
from hazards.in_place_models import floats, made


case = Cases("methods")

MODEL = replayed("model")


def trained(place, model, loss_of, *, optimizer=None, num=NUM):
    """Train in the plainest loop, with model and optimizer captured."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, foreach=True)
    place.capture(model, optimizer)
    losses = []
    for x, y in batches(place, num):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


# ------------------------------------------------------------------------------ CleanRL's agents


def tower(num_out):
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, num_out))


class Agent(nn.Module):
    """An agent of discrete actions, which has no `forward`."""

    def __init__(self, validate_args=False):
        super().__init__()
        self.critic, self.actor, self.validate_args = tower(1), tower(4), validate_args

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x), validate_args=self.validate_args)
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


class Continuous(nn.Module):
    """An agent of continuous actions, with a weight of its own besides its towers."""

    def __init__(self):
        super().__init__()
        self.critic, self.actor_mean = tower(1), tower(3)
        self.actor_logstd = nn.Parameter(torch.zeros(1, 3))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        mean = self.actor_mean(x)
        probs = Normal(mean, self.actor_logstd.expand_as(mean).exp(), validate_args=False)
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action).sum(1), probs.entropy().sum(1), self.critic(x)


def ppo(place, agent, *, num=8):
    """Play and learn as CleanRL does: rollouts without gradients, then two minibatches."""
    optimizer = torch.optim.SGD(agent.parameters(), lr=0.05, foreach=True)
    place.capture(agent, optimizer)
    losses = []
    for update in range(num):
        played = []
        for step in range(3):
            obs = floats(place, 10 * update + step, 6, 8)
            with torch.no_grad():
                action, log_prob, _, value = agent.get_action_and_value(obs)
            played.append((obs, action, log_prob, value.flatten()))
        with torch.no_grad():
            last = agent.get_value(floats(place, 10 * update + 9, 6, 8)).flatten()
        for obs, action, old, value in played:
            _, new, entropy, value_now = agent.get_action_and_value(obs, action)
            ratio = (new - old).exp()
            advantage = last - value
            loss = -(advantage * ratio.clamp(0.8, 1.2)).mean() - 0.01 * entropy.mean()
            loss = loss + (value_now.flatten() - last).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
    return losses, state(agent, optimizer)


@case("The loop calls `get_action_and_value` and `get_value`, never the agent: PPO.")
def ppo_of_discrete_actions(place):
    return ppo(place, made(place, Agent))


@case("The same with continuous actions and a weight of the agent's own.")
def ppo_of_continuous_actions(place):
    return ppo(place, made(place, Continuous))


@case(
    "The same as published: the distribution checks its arguments, which reads the device.",
    expect=or_told(r"validate_args=False"),
)
def ppo_that_validates(place):
    return ppo(place, made(place, lambda: Agent(validate_args=True)))


@case("The loop calls the agent's children: `agent.actor(x)`, `agent.critic(x)`.")
def children_are_called(place):
    def loss_of(agent, x, y):
        values = agent.critic(x).flatten()
        return F.cross_entropy(agent.actor(x), y) + (values - 1).square().mean()

    return trained(place, made(place, Agent), loss_of)


class Actor(nn.Module):
    """SAC's actor: the loop calls `get_action`, which calls the module itself."""

    def __init__(self):
        super().__init__()
        self.body, self.mean, self.log_std = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 3)
        self.register_buffer("scale", torch.full((3,), 2.0))

    def forward(self, x):
        h = F.relu(self.body(x))
        return self.mean(h), -5 + 3.5 * (torch.tanh(self.log_std(h)) + 1)

    def get_action(self, x):
        mean, log_std = self(x)
        normal = Normal(mean, log_std.exp(), validate_args=False)
        drawn = normal.rsample()
        action = torch.tanh(drawn)
        log_prob = normal.log_prob(drawn) - torch.log(self.scale * (1 - action**2) + 1e-6)
        return action * self.scale, log_prob.sum(1, keepdim=True), torch.tanh(mean)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(11, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x, action):
        return self.net(torch.cat([x, action], 1))


@case("Two objects: an actor called by `get_action`, and a critic called plainly: SAC.")
def sac(place):
    actor, critic = made(place, Actor), made(place, Critic)
    target = made(place, Critic)
    optimizers = [
        torch.optim.SGD(one.parameters(), lr=0.02, foreach=True) for one in (actor, critic)
    ]
    place.capture(actor, critic, *optimizers)
    losses = []
    for number in range(NUM):
        x, following = floats(place, number, 6, 8), floats(place, number + 300, 6, 8)
        with torch.no_grad():
            action, log_prob, _ = actor.get_action(following)
            aim = 0.9 * (target(following, action) - 0.2 * log_prob)
        loss = F.mse_loss(critic(x, action), aim)
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        action, log_prob, _ = actor.get_action(x)
        actor_loss = (0.2 * log_prob - critic(x, action)).mean()
        optimizers[0].zero_grad()
        actor_loss.backward()
        optimizers[0].step()
        losses += [loss.item(), actor_loss.item()]
    return losses, state(actor), state(critic)


# ------------------------------------------------------------------ methods of other libraries


class System(nn.Module):
    """The shape of a LightningModule: `training_step` is called, which calls a part."""

    def __init__(self):
        super().__init__()
        self.net, self.logged = tower(4), {}

    def configure_optimizers(self):
        return sgd(self, lr=0.05)

    def shared_step(self, batch):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def training_step(self, batch, batch_idx):
        loss = self.shared_step(batch)
        return {"loss": loss, "batch_idx": batch_idx}

    @torch.no_grad()
    def validation_step(self, batch, batch_idx):
        return self.shared_step(batch)


@case("A LightningModule's `training_step` calls its net, and is not `forward`.", expect=MODEL)
def training_step(place):
    system = made(place, System)
    optimizer = system.configure_optimizers()
    place.capture(system, optimizer)
    losses = []
    for number, batch in enumerate(batches(place, NUM)):
        optimizer.zero_grad()
        loss = system.training_step(batch, number)["loss"]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if number % 8 == 7:
            losses.append(system.validation_step(batch, number).item())
    return losses, state(system, optimizer)


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.mu, self.logvar = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 3)
        self.dec = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 8))

    def encode(self, x):
        h = F.relu(self.enc(x))
        return self.mu(h), self.logvar(h)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def decode(self, z):
        return self.dec(z)


def of_vae(model, x, y):
    mu, logvar = model.encode(x)
    found = model.decode(model.reparameterize(mu, logvar))
    return F.mse_loss(found, x) - 0.05 * (1 + logvar - mu.square() - logvar.exp()).mean()


@case("A VAE is called by `encode`, `reparameterize` and `decode`.", expect=MODEL)
def encode_and_decode(place):
    return trained(place, made(place, Vae), of_vae)


class Loss(nn.Module):
    """A method makes the loss, by keyword."""

    def __init__(self):
        super().__init__()
        self.net, self.pos = tower(4), nn.Parameter(torch.zeros(8))

    def compute_loss(self, x, *, target, weight=1.0):
        return F.cross_entropy(self.net(x + self.pos), target) * weight


@case("The loop calls `model.compute_loss(x, target=y)`.", expect=MODEL)
def loss_by_a_method(place):
    return trained(
        place, made(place, Loss), lambda model, x, y: model.compute_loss(x, target=y, weight=0.5)
    )


class Image(nn.Module):
    """A model of timm's shape."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward_features(self, x):
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward_head(self, x, pre_logits=False):
        return x if pre_logits else self.head(x)


@case("`forward_features` and `forward_head` are called apart.", expect=MODEL)
def features_and_head(place):
    def loss_of(model, x, y):
        features = model.forward_features(x)
        return F.cross_entropy(model.forward_head(features), y) + 0.1 * features.square().mean()

    return trained(place, made(place, Image), loss_of)


@case("The loop walks through the blocks of a model itself.", expect=MODEL)
def blocks_in_the_loop(place):
    def loss_of(model, x, y):
        for block in model.blocks:
            x = x + block(x)
        return F.cross_entropy(model.head(model.norm(x)), y)

    return trained(place, made(place, Image), loss_of)


@case("A model is called plainly in training, and by a method between.", expect=MODEL)
def a_method_between(place):
    class Both(Image):
        def forward(self, x):
            return self.forward_head(self.forward_features(x))

    model = made(place, Both)
    found = trained(place, model, lambda model, x, y: F.cross_entropy(model(x), y))
    with torch.no_grad():
        return found, [model.forward_features(floats(place, number, 6, 8)) for number in range(8)]


@case("The loop calls the model by functional_call, with weights of its own.", expect=MODEL)
def functional_calls(place):
    def loss_of(model, x, y):
        return F.cross_entropy(functional_call(model, dict(model.named_parameters()), (x,)), y)

    return trained(place, made(place, lambda: tower(4)), loss_of)


@case("Each net of a ModuleDict is called by its name.", expect=MODEL)
def nets_of_a_dict(place):
    model = made(place, lambda: nn.ModuleDict({"encoder": tower(8), "decoder": tower(8)}))
    return trained(
        place, model, lambda model, x, y: F.mse_loss(model["decoder"](model["encoder"](x)), x)
    )


# ------------------------------------------------------------------------ nothing is called


def said_while(place, model, call, *, weights=None, num=130):
    """Train without a call that could be captured; one warning must come after a hundred steps."""
    optimizer = torch.optim.SGD(weights or model.parameters(), lr=0.01, foreach=True)
    place.capture(model, optimizer)
    said = []
    for number, (x, y) in enumerate(batches(place, num)):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            optimizer.zero_grad()
            F.cross_entropy(call(model, x), y).backward()
            optimizer.step()
        for one in warned:
            said += [number] * issubclass(one.category, gapless.CaptureWarning)
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    if not place.is_plain:
        assert len(said) == 1, f"{len(said)} warnings"
        assert 99 <= said[0] <= num, said
    return state(model, optimizer)


@case(
    "The weights are used by functions of torch alone; the model itself is never called.",
    expect=told("Linear", "not called|never called|nothing", "capture"),
)
def weights_alone_are_used(place):
    model = made(place, lambda: nn.Linear(8, 4))
    return said_while(place, model, lambda model, x: F.linear(x, model.weight, model.bias))


@case(
    "The loop trains a copy that was made before the capture.",
    expect=told("Sequential", "not called|never called|nothing", "capture"),
)
def a_copy_is_called(place):
    model = made(place, lambda: tower(4))
    twin = copy.deepcopy(model)
    return said_while(place, model, lambda _, x: twin(x), weights=list(twin.parameters()))


# ------------------------------------------------- a refusal says which child could be captured


class ReadsBetween(nn.Module):
    """Reads the device between an encoder and a head."""

    def __init__(self, between):
        super().__init__()
        self.backbone, self.head, self.between = tower(8), nn.Linear(8, 4), between

    def forward(self, x):
        return self.head(self.between(self.backbone(x)))


def of_classes(model, x, y):
    return F.cross_entropy(model(x), y)


def branching(h):
    return h * 2 if h.sum().item() > 0 else h


def dense(h):
    return h[h.abs().sum(1) > 0]


def printed(h):
    assert not torch.isnan(h).any()
    return h


for _name, _between in {"a_branch": branching, "a_mask": dense, "a_check": printed}.items():
    case.register(
        f"child_behind_{_name}",
        "A forward pass reads the device between its backbone and its head.",
        lambda place, between=_between: trained(
            place, made(place, lambda: ReadsBetween(between)), of_classes
        ),
        told(r"\bbackbone\b", "capture"),
    )


@case(
    "A part has a hook of the user's, which a replay would not call; the other could be captured.",
    expect=told(r"\bbackbone\b", "capture"),
)
def child_beside_a_hook(place):
    model, seen = made(place, lambda: ReadsBetween(torch.relu)), []
    model.head.register_forward_hook(lambda module, args, output: seen.append(len(seen)))
    return trained(place, model, of_classes), seen


@case("The child that a refusal names is captured.", expect=MODEL)
def child_that_is_named(place):
    model = made(place, lambda: ReadsBetween(branching))
    place.capture(model.backbone)
    optimizer, losses = sgd(model), []
    for x, y in batches(place, NUM):
        optimizer.zero_grad()
        loss = of_classes(model, x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(model, optimizer)


# ------------------------------------------------------------------- gradients of gradients


def _residual(place, net, number):
    x = floats(place, number, 12, 8).requires_grad_()
    u = net(x)
    (du,) = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)
    (ddu,) = torch.autograd.grad(du, x, torch.ones_like(du), create_graph=True)
    return (ddu + u).square().mean()


@case(
    "A physics-informed net is captured in place; its gradients are differentiated.",
    expect=or_told("create_graph", r"whole step|captured step|as a step"),
)
def pinn_in_place(place):
    net = made(place, lambda: tower(1))
    optimizer, losses = sgd(net), []
    place.capture(net)
    for number in range(NUM):
        optimizer.zero_grad()
        loss = _residual(place, net, number)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, state(net, optimizer)


@case("The whole step of a physics-informed net is captured.", expect=replayed("step"))
def pinn_as_a_step(place):
    net = made(place, lambda: tower(1))
    optimizer = sgd(net)

    def step(x):
        optimizer.zero_grad()
        x = x.detach().requires_grad_()
        (du,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        loss = (du.sum(1) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = place.capture(step)
    losses = [step(floats(place, number, 12, 8)).clone() for number in range(NUM)]
    return losses, state(net, optimizer)


class InAList(nn.Module):
    """Its layers stand in a plain list, and their weights in a list of parameters, as of N-BEATS."""

    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(8, 16), nn.Linear(16, 4)]
        self.held = nn.ParameterList([one for layer in self.layers for one in layer.parameters()])

    def forward(self, x):
        first, last = self.layers
        return last(torch.tanh(first(x)))


@case("Layers in a plain list are no part of the module", expect=told("ModuleList"))
def layers_in_a_list(place):
    model = InAList().to(place.torch_device)
    for layer in model.layers:
        layer.to(place.torch_device)
    return trained(
        place, model, lambda model, x, y: F.cross_entropy(model(x), y), optimizer=sgd(model)
    )
