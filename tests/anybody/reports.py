"""What public reports showed, in forms that they do not show: each of one class, with its right end."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from torch.distributions import Beta, Dirichlet
from torch.nn import functional as F
from torch.nn.utils import prune, weight_norm
from torch.optim.swa_utils import AveragedModel, update_bn

from anybody.harness import NUM, Cases, or_told, replayed, told
from anybody.objects import Form, as_step, in_place, of_classes, register
from hazards.captured_models import batches, kept, mlp, sgd, state
from hazards.in_place_models import floats, made


case = Cases("reports")


# ---------------------------------------------- A4: weights that are made anew in each forward pass


class Weighed(nn.Linear):
    """A linear layer whose weight is made of two others before each call, by a hook of the user's."""

    def __init__(self):
        super().__init__(8, 4)
        self.long = nn.Parameter(self.weight.detach().norm(dim=1, keepdim=True))
        self.wide = nn.Parameter(self.weight.detach().clone())
        del self._parameters["weight"]
        self.weight = None
        self.register_forward_pre_hook(_weigh)


def _weigh(module, inputs):
    module.weight = module.long * F.normalize(module.wide, dim=1)


def _pruned():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    prune.l1_unstructured(model[0], "weight", amount=0.3)
    return model


class Codec(nn.Module):
    """Old weight_norm deep within, by a function that wraps every convolution of it."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Conv1d(1, 2, 3, padding=1), nn.Conv1d(2, 1, 3, padding=1)])
        self.head = nn.Linear(8, 4)
        self.blocks.apply(lambda one: weight_norm(one) if isinstance(one, nn.Conv1d) else one)

    def forward(self, x):
        x = x.unsqueeze(1)
        for block in self.blocks:
            x = F.leaky_relu(block(x))
        return self.head(x.squeeze(1))


# The part that makes it so is named, not a line of torch.
_OF_PARTS = or_told(r"\bpart\b|hook|parametriz|prune")

for form in [
    Form(
        "weight_of_a_hook",
        "A hook of the user's makes the weight anew of two parameters.",
        Weighed,
        of_classes,
        in_place=or_told(r"\bself\.weight\b", "copy_"),
    ),
    Form(
        "pruned",
        "torch's pruning masks the weight in a hook.",
        _pruned,
        of_classes,
        step=_OF_PARTS,
        in_place=_OF_PARTS,
    ),
    Form(
        "codec",
        "Old weight_norm is put on all convolutions by `apply`.",
        Codec,
        of_classes,
        step=or_told(r"torch\.nn\.utils\.parametrizations"),
        in_place=or_told(r"torch\.nn\.utils\.parametrizations"),
    ),
]:
    register(form, case)


# --------------------------------------------------- A6: other numbers of optimizers on a schedule


def _scheduled(place, make, change):
    model = made(place, lambda: nn.Linear(8, 4))
    optimizer, numbers = make(model.parameters()), iter(range(NUM))
    groups = optimizer.param_groups

    def before(model):
        change(groups[0], next(numbers))

    return in_place(place, model, of_classes, optimizer=optimizer, before=before)


def _momentum(group, number):
    group["momentum"] = 0.5 + 0.01 * number


def _dampening(group, number):
    group["dampening"] = 0.1 + 0.01 * number


def _betas(group, number):
    group["betas"] = (0.9 - 0.01 * number, 0.999)


def _eps(group, number):
    group["eps"] = 1e-8 * (number + 1)


def _looped_sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, dampening=0.1, foreach=False)


def _fused_adam(params):
    return torch.optim.Adam(params, lr=0.01, fused=True)


for _name, _make, _change, _word in [
    ("momentum", _looped_sgd, _momentum, "momentum"),
    ("dampening", _looped_sgd, _dampening, "dampening"),
    ("betas", _fused_adam, _betas, "betas"),
    ("eps", _fused_adam, _eps, "eps"),
]:
    case.register(
        f"scheduled_{_name}",
        "A number of an optimizer changes before each update in place.",
        lambda place, make=_make, change=_change: _scheduled(place, make, change),
        or_told(_word, "foreach=True|whole step", of=("optimizer",)),
    )


# ------------------------------------------------------------ A7: averages that ask the device


def _averaged(place, make):
    model = mlp(place)
    average = make(model)
    ended = as_step(place, model, of_classes, after=lambda model: average.update_parameters(model))
    return ended, state(average)


_AFTER = or_told("AveragedModel|update_parameters", "after the step")


@case("A plain average, of SWA, is updated within the step.", expect=_AFTER)
def plain_average_within_the_step(place):
    return _averaged(place, AveragedModel)


@case("An average by a function of the user's is updated within the step.", expect=_AFTER)
def average_by_a_function_within_the_step(place):
    def mean(average, weight, num):
        return average * 0.9 + weight * 0.1

    return _averaged(place, lambda model: AveragedModel(model, avg_fn=mean))


@case("The average is updated by a method of a trainer, which the step calls.", expect=_AFTER)
def average_of_a_trainer(place):
    class Trainer:
        def __init__(self):
            self.model = mlp(place)
            self.optimizer, self.ema = sgd(self.model), AveragedModel(self.model)

        def follow(self):
            self.ema.update_parameters(self.model)

        def train(self, batch):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(batch[0]), batch[1])
            loss.backward()
            self.optimizer.step()
            self.follow()
            return loss.detach()

    trainer = Trainer()
    step = place.capture(trainer.train)
    losses = [kept(step(batch)) for batch in batches(place, NUM)]
    return losses, state(trainer.model, trainer.optimizer), state(trainer.ema)


@case("Statistics of a batch norm are made anew by `update_bn` between captured steps.")
def batch_norm_of_an_average(place):
    def make():
        return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    model = made(place, make)
    average = AveragedModel(model)

    def follow(model):
        average.update_parameters(model)
        update_bn([floats(place, 3, 6, 8), floats(place, 4, 6, 8)], average)

    return in_place(place, model, of_classes, after=follow), state(average)


# ----------------------------------------------- A8: something is put into what a module is given


class Puts(nn.Module):
    """Puts its result into what it is given."""

    def __init__(self, put):
        super().__init__()
        self.net, self.put = nn.Linear(8, 4), put

    def forward(self, data):
        return self.put(data, self.net)


def by_update(data, net):
    data.update(feats=net(data["x"]))
    return data["feats"]


def by_setdefault(data, net):
    return data.setdefault("feats", net(data["x"]))


def by_append(data, net):
    data.append(net(data[0]))
    return data[-1]


def as_attribute(data, net):
    data.feats = net(data.x)
    return data.feats


def deep_within(data, net):
    data["out"]["feats"] = net(data["x"])
    return data["out"]["feats"]


GIVEN = {
    by_update: lambda x: {"x": x},
    by_setdefault: lambda x: {"x": x},
    by_append: lambda x: [x],
    as_attribute: lambda x: SimpleNamespace(x=x),
    deep_within: lambda x: {"x": x, "out": {}},
}

for _put, _given in GIVEN.items():

    def _loss(model, x, y, given=_given):
        return F.cross_entropy(model(given(x)), y)

    register(
        Form(
            f"puts_{_put.__name__}",
            "A module puts its result into what it is given.",
            lambda put=_put: Puts(put),
            _loss,
            in_place=or_told(r"reports\.py:\d+", "return"),
        ),
        case,
    )


# ------------------------------------------------------ A9: arguments that are new in each call


def _few(place, step, calls):
    step = place.capture(step)
    return [kept(step(*args, **kwargs)) for args, kwargs in calls]


def _new(argument, kind):
    return told(f"argument {argument}", kind, "new in each call")


@case("A number by keyword is new in each of ten calls.", expect=_new("'n'", "int"))
def number_by_keyword(place):
    calls = [((floats(place, n, 3),), {"n": n}) for n in range(10)]
    return _few(place, lambda x, *, n: x.sum() * n, calls)


@case("A weight that falls is new in each of ten calls.", expect=_new("'beta'", "float"))
def falling_weight(place):
    calls = [((floats(place, n, 3), 1 / (n + 1)), {}) for n in range(10)]
    return _few(place, lambda x, beta: x.sum() * beta, calls)


@case("A name of a file is new in each of ten calls.", expect=_new("'name'", "str"))
def names_of_files(place):
    calls = [((floats(place, n, 3), f"{n}.png"), {}) for n in range(10)]
    return _few(place, lambda x, name: x.sum() * len(name), calls)


@case("The number stands in the batch.", expect=told(r"batch\[1\]", "int", "new in each call"))
def number_in_a_batch(place):
    calls = [(((floats(place, n, 3), n),), {}) for n in range(10)]
    return _few(place, lambda batch: batch[0].sum() * batch[1], calls)


@case("A model in place gets the time as an int.", expect=_new("'t'", "int"))
def time_of_a_model(place):
    class Timed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(8, 4)

        def forward(self, x, t):
            return self.net(x) * t

    model = made(place, Timed)
    place.capture(model)
    losses = []
    for n in range(10):
        loss = model(floats(place, n, 6, 8), n).square().mean()
        loss.backward()
        losses.append(loss.item())
    return losses, state(model)


# ------------------------------------------- C: checks of distributions, hand-written optimizers


class Checked(nn.Module):
    """A policy on an interval, or a mixture, whose distribution checks what it is made of."""

    def __init__(self, make):
        super().__init__()
        self.net, self.make = nn.Linear(8, 4), make

    def forward(self, x):
        return self.make(F.softplus(self.net(x)) + 1.0).rsample()


_CHECKED = or_told(r"validate_args=False")
for _name, _make in {
    "beta": lambda out: Beta(out[:, :2], out[:, 2:], validate_args=True),
    "dirichlet": lambda out: Dirichlet(out, validate_args=True),
}.items():
    register(
        Form(
            f"{_name}_that_validates",
            "A distribution of another kind checks its arguments, which reads the device.",
            lambda make=_make: Checked(make),
            lambda model, x, y: model(x).square().mean(),
            step=_CHECKED,
            in_place=_CHECKED,
        ),
        case,
    )


class Signs(torch.optim.Optimizer):
    """Sign descent with a rate that warms up inside the optimizer, as schedule-free ones have it."""

    def __init__(self, params, lr=0.01, warmup=10):
        super().__init__(params, {"lr": lr, "warmup": warmup, "k": 0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            rate = group["lr"] * min(1.0, (group["k"] + 1) / group["warmup"])
            for p in group["params"]:
                p.add_(p.grad.sign(), alpha=-rate)
            group["k"] += 1


@case(
    "An optimizer by hand counts in its own group: the step is refused, the model is not.",
    expect=or_told(r"gapless\.capture\((model|module)|capture the (model|module)"),
)
def own_count_as_a_step(place):
    model = mlp(place)
    return as_step(place, model, of_classes, optimizer=Signs(model.parameters()))


@case("The same in place: the model is captured.", expect=replayed("model"))
def own_count_in_place(place):
    model = mlp(place)
    return in_place(place, model, of_classes, optimizer=Signs(model.parameters()))
