"""Ways of writing Python that lead a step to a value past its names: found by trying to break it."""

from __future__ import annotations

import array
import collections
import ctypes
import functools
import itertools
import operator
import random
import threading
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from hazards.captured_harness import CAPTURED, EITHER, captured_case, refused
from hazards.captured_models import (
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


def weighted(place, weight, change):
    """Train with `weight()` as a weight of the loss; the loop calls `change()` once."""
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)

    def train(pair):
        x, y = pair
        return updated(optimizer, F.cross_entropy(model(x), y) * weight())

    def before(number):
        if number == 15:
            change()

    step = place.capture(train)
    return losses_of(place, step, 30, before=before), state(model, optimizer)


class Weights:
    """An object with a weight."""

    def __init__(self, weight=1.0):
        self.weight = weight


@dataclass
class Settings:
    """Settings whose fields are matched by position."""

    weight: float = 1.0
    sizes: list = field(default_factory=lambda: [1.0, 2.0])


@captured_case("`super().weight` is read, and the base class's weight changes.", expect=CAPTURED)
def attribute_by_super(place):
    class Base:
        weight = 1.0

    class Child(Base):
        weight = 5.0

        def get(self):
            return super().weight

    weight = Child().get
    return weighted(place, weight, lambda: setattr(Base, "weight", 0.2))


@captured_case(
    "A `match` statement takes settings apart by position and by name.", expect=CAPTURED
)
def class_pattern(place):
    settings = Settings()

    def weight():
        match settings:
            case Settings(number, sizes=[_, last]) if number > 0.5:
                return number * last
            case Settings(sizes=[first, _]):
                return first * 0.1

    return weighted(place, weight, lambda: setattr(settings, "weight", 0.7))


@captured_case(
    "A `match` statement reaches into a list of an object, which changes in place.",
    expect=CAPTURED,
)
def list_in_a_class_pattern(place):
    settings = Settings()

    def weight():
        match settings:
            case Settings(sizes=[_, last]):
                return last

    return weighted(place, weight, lambda: settings.sizes.__setitem__(1, 0.3))


@captured_case("`operator.attrgetter` reads an attribute of an attribute.", expect=CAPTURED)
def attribute_getter(place):
    outer, get = SimpleNamespace(inner=Weights()), operator.attrgetter("inner.weight")
    return weighted(place, lambda: get(outer), lambda: setattr(outer.inner, "weight", 0.2))


@captured_case("`max` with an `attrgetter` chooses among objects.", expect=CAPTURED)
def key_of_a_maximum(place):
    terms = [SimpleNamespace(weight=1.0, rank=1), SimpleNamespace(weight=2.0, rank=2)]
    best = operator.attrgetter("rank")
    return weighted(
        place, lambda: max(terms, key=best).weight, lambda: setattr(terms[0], "rank", 3)
    )


@captured_case("The step holds its trainer by a weak reference.", expect=CAPTURED)
def weak_reference(place):
    trainer = Weights()
    reference = weakref.ref(trainer)
    return weighted(place, lambda: reference().weight, lambda: setattr(trainer, "weight", 0.2))


@captured_case("The step holds its trainer by a weak proxy.", expect=CAPTURED)
def weak_proxy(place):
    trainer = Weights()
    proxy = weakref.proxy(trainer)
    return weighted(place, lambda: proxy.weight, lambda: setattr(trainer, "weight", 0.2))


@captured_case("A registry holds its objects weakly.", expect=CAPTURED)
def weak_values(place):
    term = Weights()
    registry = weakref.WeakValueDictionary(ce=term)
    return weighted(place, lambda: registry["ce"].weight, lambda: setattr(term, "weight", 0.2))


@captured_case("A descriptor keeps its values by weak keys.", expect=CAPTURED)
def descriptor_with_weak_keys(place):
    class Kept:
        def __init__(self):
            self.values = weakref.WeakKeyDictionary()

        def __get__(self, instance, owner=None):
            return self.values[instance]

        def __set__(self, instance, value):
            self.values[instance] = value

    class Term:
        weight = Kept()

    term = Term()
    term.weight = 1.0
    return weighted(place, lambda: term.weight, lambda: setattr(term, "weight", 0.2))


@captured_case("Settings are a ChainMap of overrides and defaults.", expect=CAPTURED)
def chain_of_maps(place):
    overrides = {}
    settings = collections.ChainMap(overrides, {"weight": 1.0})
    return weighted(place, lambda: settings["weight"], lambda: overrides.update(weight=0.2))


@captured_case("A weight stands in an `array.array`.", expect=CAPTURED)
def array_of_python(place):
    weights = array.array("d", [1.0, 2.0])
    return weighted(place, lambda: weights[1], lambda: weights.__setitem__(1, 0.2))


@captured_case("A mask is a bytearray.", expect=CAPTURED)
def byte_array(place):
    mask = bytearray([1, 1, 0])
    return weighted(place, lambda: sum(mask), lambda: mask.__setitem__(2, 1))


@captured_case("A number is shared with code in C.", expect=CAPTURED)
def number_of_c(place):
    number = ctypes.c_double(1.0)
    return weighted(place, lambda: number.value, lambda: setattr(number, "value", 0.2))


@captured_case("The step asks an event of `threading`, which the loop sets.", expect=CAPTURED)
def event_is_asked(place):
    cooled = threading.Event()
    return weighted(place, lambda: 0.2 if cooled.is_set() else 1.0, cooled.set)


@captured_case("An object gets another class, and so other methods.", expect=CAPTURED)
def object_gets_another_class(place):
    class Early:
        def weight(self):
            return 1.0

    class Late:
        def weight(self):
            return 0.2

    phase = Early()
    return weighted(place, lambda: phase.weight(), lambda: setattr(phase, "__class__", Late))


@captured_case("A class takes a number from its metaclass.", expect=CAPTURED)
def attribute_of_a_metaclass(place):
    class Meta(type):
        weight = 1.0

    class Terms(metaclass=Meta):
        pass

    return weighted(place, lambda: Terms.weight, lambda: setattr(Meta, "weight", 0.2))


@captured_case(
    "A number on the host is filled through `.data`, which moves no version.", expect=CAPTURED
)
def host_tensor_by_data(place):
    number = torch.tensor(1.0)
    return weighted(place, lambda: number, lambda: number.data.fill_(0.2))


@captured_case(
    "A tensor on the host is written through the array of numpy that it shares.", expect=CAPTURED
)
def host_tensor_by_numpy(place):
    numbers = torch.ones(3)
    shared = numbers.numpy()
    return weighted(place, lambda: float(numbers[0]), lambda: shared.__setitem__(0, 0.2))


@captured_case("`eval` of a text reads an attribute of a variable.", expect=CAPTURED)
def text_is_evaluated(place):
    term = Weights()

    def weight():
        own = term  # noqa: F841
        return eval("own.weight")

    return weighted(place, weight, lambda: setattr(term, "weight", 0.2))


@captured_case("Terms of the loss are given on as `*terms` and `**terms`.", expect=CAPTURED)
def objects_as_star_arguments(place):
    terms = [Weights(1.0), Weights(2.0)]
    named = {"other": Weights(3.0)}

    def total(*given, **others):
        return sum(term.weight for term in (*given, *others.values()))

    def change():
        terms[1].weight = 0.2
        named["other"].weight = 0.1

    return weighted(place, lambda: total(*terms, **named), change)


@captured_case(
    "A function for another type is registered late with `singledispatch`.", expect=CAPTURED
)
def dispatch_by_type(place):
    @functools.singledispatch
    def weight_of(value):
        return 1.0

    def change():
        weight_of.register(int, lambda value: 0.2)

    return weighted(place, lambda: weight_of(3), change)


@captured_case("The scale of a distribution of torch is replaced.", expect=CAPTURED)
def prior_is_changed(place):
    ones = torch.ones(4, device=place.torch_device)
    prior = torch.distributions.Normal(0 * ones, ones, validate_args=False)
    return weighted(
        place,
        lambda: -prior.log_prob(ones).mean(),
        lambda: setattr(prior, "scale", prior.scale * 0.5),
    )


@captured_case("A global is read by `globals()`, and an attribute by `vars()`.", expect=CAPTURED)
def global_by_its_name(place):
    globals()["WEIGHT"], term = 1.0, Weights()

    def change():
        globals()["WEIGHT"] = 0.2
        term.weight = 0.3

    return weighted(place, lambda: globals()["WEIGHT"] * vars(term)["weight"], change)


@captured_case("Objects come through `chain`, `zip` and `reversed`.", expect=CAPTURED)
def objects_through_itertools(place):
    first, second = [Weights(1.0)], (Weights(2.0),)

    def weight():
        pairs = zip(itertools.chain(first, second), reversed([*second, *first]), strict=True)
        return sum(one.weight * other.weight for one, other in pairs)

    return weighted(place, weight, lambda: setattr(second[0], "weight", 0.2))


@captured_case(
    "The loop goes on with the graph of gradients of a result, after the step's own backward pass.",
    expect=refused("still needs its backward pass"),
)
def graph_of_a_result_is_used(place):
    generator, critic = mlp(place, num_out=8), mlp(place, num_out=1)
    of_generator, of_critic = sgd(generator), sgd(critic)

    def train_critic(pair):
        fake = generator(pair[0])
        loss = critic(fake.detach()).mean() - critic(pair[0]).mean()
        return updated(of_critic, loss), fake

    step = place.capture(train_critic)
    losses = []
    for pair in batches(place, 12):
        loss, fake = step(pair)
        losses += [kept(loss), kept(updated(of_generator, -critic(fake).mean()))]
    return losses, state(generator, of_generator), state(critic, of_critic)


@captured_case(
    "Some steps run under anomaly detection, and one of them raises.",
    expect=refused("set_detect_anomaly"),
)
def anomalies_are_detected_for_a_while(place):
    model = mlp(place)
    step = place.capture(training_step(model, sgd(model)))
    results = []
    for number, (x, y) in enumerate(batches(place, 20)):
        if number == 12:
            x[0, 0] = float("nan")
        with torch.autograd.set_detect_anomaly(number in range(9, 13)):
            try:
                results.append(kept(step((x, y))))
            except RuntimeError as error:
                results.append(type(error).__name__)
    return results


@captured_case(
    "Operations of some steps are counted by a mode of the user.", expect=refused("Counting")
)
def operations_are_counted(place):
    seen = []

    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function.__name__)
            return function(*args, **(kwargs or {}))

    model = mlp(place)
    step = place.capture(training_step(model, sgd(model)))
    losses = run(step, batches(place, 10))
    with Counting():
        losses += [step(pair) for pair in batches(place, 4)]
    return [kept(loss) for loss in losses], seen.count("cross_entropy")


class Rounding(TorchDispatchMode):
    """Products in low precision, emulated."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            return found.to(torch.bfloat16).to(torch.float32)
        return found


@captured_case(
    "From some step on, a mode of operators rounds all products.", expect=refused("Rounding")
)
def products_are_rounded(place):
    model = mlp(place)
    optimizer = sgd(model, momentum=0.9)
    step = place.capture(training_step(model, optimizer))
    losses = run(step, batches(place, 10))
    with Rounding():
        losses += [kept(step(pair)) for pair in batches(place, 6)]
    return losses + run(step, batches(place, 6)), state(model, optimizer)


@captured_case("Torch counts the operations of some steps.", expect=refused("FlopCounterMode"))
def torch_counts_operations(place):
    model = mlp(place)
    step = place.capture(training_step(model, sgd(model)))
    losses, counts = run(step, batches(place, 10)), []
    for pair in batches(place, 5):
        with FlopCounterMode(display=False) as counter:
            losses.append(kept(step(pair)))
        counts.append(counter.get_total_flops())
    return losses, counts


@captured_case(
    "Groups of an optimizer are edited by hand: a rate, their order, and a weight that leaves.",
    expect=CAPTURED,
)
def groups_are_edited(place):
    model = mlp(place)
    first, *others = model.parameters()
    groups = [{"params": [first]}, {"params": others, "lr": 0.05}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    def before(number):
        if number == 10:
            optimizer.param_groups[1]["lr"] *= 0.3
        if number == 18:
            optimizer.param_groups.reverse()
        if number == 24:
            optimizer.param_groups[0]["params"].pop()

    step = place.capture(training_step(model, optimizer))
    return losses_of(place, step, 40, before=before), state(model)


@captured_case(
    "The step asks whether a file exists.",
    expect=refused("os.stat", at="if flag.exists()"),
)
def file_is_asked_for(place):
    flag = Path("no-such-file-of-a-test")

    def weight():
        if flag.exists():
            return 0.2
        return 1.0

    return weighted(place, weight, lambda: None)


class Sized:
    """A trainer that notes the number of rows of each batch, and uses it if told to."""

    def __init__(self, place, *, uses=False):
        self.model = mlp(place)
        self.optimizer = sgd(self.model)
        self.num_rows = 0
        self.uses = uses

    def train(self, pair):
        x, y = pair
        self.num_rows = x.shape[0]
        loss = F.cross_entropy(self.model(x), y)
        return updated(self.optimizer, loss / self.num_rows if self.uses else loss)


def noted(place, trainer, *, num=60, turn=10, before=None):
    """Train on batches of 4 and 8 rows in turns; return losses and what was noted after each."""
    step = place.capture(trainer.train)
    found = []
    for number in range(num):
        if before is not None:
            before(number)
        loss = kept(step(batch(place, number, rows=8 if number // turn % 2 else 4)))
        found.append((loss, trainer.num_rows))
    return found


@captured_case("The step notes the number of rows at `self`; the loop reads it.", expect=CAPTURED)
def a_note_for_the_loop(place):
    return noted(place, Sized(place))


@captured_case("Batches of two sizes take turns, and the step notes which.", expect=CAPTURED)
def a_note_in_turns(place):
    return noted(place, Sized(place), turn=1)


@captured_case("The step notes the number of rows, and divides by it.", expect=CAPTURED)
def a_note_that_is_used(place):
    return noted(place, Sized(place, uses=True), turn=1)


@captured_case("The loop clears before each step what the step notes.", expect=CAPTURED)
def a_note_that_is_cleared(place):
    trainer = Sized(place)
    return noted(place, trainer, before=lambda _: setattr(trainer, "num_rows", None), turn=60)


@captured_case("The loop clears now and then what the step notes.", expect=EITHER)
def a_note_that_is_cleared_late(place):
    trainer = Sized(place, uses=True)

    def before(number):
        if number % 20 == 19:
            trainer.num_rows = None

    return noted(place, trainer, before=before)


@captured_case("The step flips a switch, and trains otherwise each second time.", expect=EITHER)
def a_switch_that_is_flipped(place):
    trainer = Sized(place)
    trainer.is_odd = False

    def train(pair):
        x, y = pair
        trainer.is_odd = not trainer.is_odd
        loss = F.cross_entropy(trainer.model(x), y)
        return updated(trainer.optimizer, loss * 2 if trainer.is_odd else loss)

    step = place.capture(train)
    return [(kept(step(batch(place, number))), trainer.is_odd) for number in range(40)]


@captured_case(
    "The step notes a number for some batches only; the loop writes too.", expect=EITHER
)
def a_note_by_two(place):
    trainer = Sized(place)

    def train(pair):
        x, y = pair
        if x.shape[0] == 8:
            trainer.num_rows = 8
        return updated(trainer.optimizer, F.cross_entropy(trainer.model(x), y))

    trainer.train = train

    def before(number):
        if number % 20 == 15:
            trainer.num_rows = number

    return noted(place, trainer, before=before)


def with_kept_gradients(place, keep, *, zeroes_outside=False):
    """Train; the loop keeps something of each gradient until after the next step."""
    model = mlp(place)
    optimizer = sgd(model)

    def train(pair):
        x, y = pair
        if not zeroes_outside:
            optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step = place.capture(train)
    found, last = [], []
    for number in range(30):
        if zeroes_outside:
            optimizer.zero_grad()
        found.append(kept(step(batch(place, number))))
        found.append([kept(gradient) for gradient in last])
        last = [keep(parameter.grad) for parameter in model.parameters()]
    return found, state(model, optimizer)


@captured_case("The loop keeps `.grad.data` of each weight for the next step.", expect=EITHER)
def gradients_data_is_kept(place):
    return with_kept_gradients(place, lambda gradient: gradient.data)


@captured_case("It keeps `.grad.detach()`, and sets gradients to None itself.", expect=EITHER)
def detached_gradients_are_kept(place):
    return with_kept_gradients(place, lambda gradient: gradient.detach(), zeroes_outside=True)


@captured_case("The loop keeps the gradients of all weights as flat views.", expect=EITHER)
def flat_gradients_are_kept(place):
    return with_kept_gradients(place, lambda gradient: gradient.view(-1))


@captured_case("The loop keeps the first row of each gradient, once in a while.", expect=CAPTURED)
def rows_of_gradients_are_kept_at_times(place):
    numbers = itertools.count()

    def keep(gradient):
        is_chosen = next(numbers) // 4 % 15 == 7
        return gradient[:1] if is_chosen else gradient.clone()

    return with_kept_gradients(place, keep)


@captured_case("Gradients are kept as they are, and as copies on the host.", expect=CAPTURED)
def gradients_are_kept_as_they_are(place):
    return with_kept_gradients(place, lambda gradient: gradient)


class Scaled(torch.autograd.Function):
    """The identity, whose gradient is scaled by what a trainer says, and told to it."""

    @staticmethod
    def forward(ctx, x, trainer):
        ctx.trainer = trainer
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        trainer = ctx.trainer
        trainer.told()
        return gradient * trainer.scale, None


class Reversed:
    """A trainer of domain-adversarial kind: a layer scales the gradients that pass through it."""

    def __init__(self, place):
        self.model = mlp(place)
        self.optimizer = sgd(self.model)
        self.scale = 1.0
        self.count = 0
        self.told = self.nothing

    def nothing(self):
        pass

    def counted(self):
        self.count += 1

    def train(self, pair):
        x, y = pair
        hidden = Scaled.apply(self.model[0](x), self)
        return updated(self.optimizer, F.cross_entropy(self.model[1:](hidden), y))


@captured_case("A backward function reads a number that changes once.", expect=CAPTURED)
def backward_function_reads_a_number(place):
    trainer = Reversed(place)
    step = place.capture(trainer.train)

    def before(number):
        if number == 20:
            trainer.scale = -0.5

    return losses_of(place, step, 40, before=before), state(trainer.model)


@captured_case("A backward function counts its calls.", expect=refused("count"))
def backward_function_counts(place):
    trainer = Reversed(place)
    trainer.told = trainer.counted
    step = place.capture(trainer.train)
    return losses_of(place, step, 30), trainer.count, state(trainer.model)


@captured_case("A hook on an activation writes to a log of the user's.", expect=refused("lines"))
def hook_writes_to_a_log(place):
    model = mlp(place)
    optimizer = sgd(model)
    lines = []

    class Log:
        def write(self, text):
            lines.append(text)

    log = Log()

    def hook(gradient):
        log.write("backward")

    def train(pair):
        x, y = pair
        hidden = model[0](x)
        hidden.register_hook(hook)
        return updated(optimizer, F.cross_entropy(model[1:](hidden), y))

    step = place.capture(train)
    return losses_of(place, step, 30), lines


@captured_case(
    "A hook on a weight, set before, prints in every backward pass.", expect=refused("print")
)
def hook_of_a_weight_prints(place):
    model = mlp(place)
    optimizer = sgd(model)
    model[0].weight.register_hook(lambda gradient: print("backward"))
    step = place.capture(training_step(model, optimizer))
    return losses_of(place, step, 30), state(model)


@captured_case("A hook clips gradients to a bound that the loop changes once.", expect=CAPTURED)
def hook_clips_to_a_bound(place):
    model = mlp(place)
    optimizer = sgd(model)
    settings = SimpleNamespace(bound=0.05)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-settings.bound, settings.bound))
    step = place.capture(training_step(model, optimizer))

    def before(number):
        if number == 20:
            settings.bound = 0.01

    return losses_of(place, step, 40, before=before), state(model)


@captured_case("A hook draws a number of Python's generator.", expect=refused("random"))
def hook_draws_on_the_host(place):
    model = mlp(place)
    optimizer = sgd(model)
    model[0].weight.register_hook(lambda gradient: gradient * random.random())
    step = place.capture(training_step(model, optimizer))
    random.seed(5)
    return losses_of(place, step, 30), state(model)


class Scaling:
    """A number that the loop changes, which the step finds behind what it makes for itself."""

    def __init__(self):
        self.scale = 1.0


class Weigher:
    """Made in each step."""

    def __init__(self, settings):
        self.settings = settings

    def weighed(self, loss):
        return loss * self.settings.scale


@dataclass
class Situation:
    """What is handed from function to function in a step."""

    settings: object
    index: int = 0


class Pair(NamedTuple):
    """The same as a tuple."""

    settings: object
    index: int


class Slotted:
    """The same with slots."""

    __slots__ = ("settings",)

    def __init__(self, settings):
        self.settings = settings


def weighed(situation, loss):
    return loss * situation.settings.scale


def weighed_in_part(namespace, loss):
    return loss * namespace.inner.parts[0].settings.scale


def made_in_a_namespace(settings, loss):
    namespace = SimpleNamespace(settings=settings)
    return loss * namespace.settings.scale


def made_and_filled(settings, loss):
    situation = Situation(None)
    situation.settings = settings
    return loss * situation.settings.scale


def made_in_place(settings, loss):
    return loss * Weigher(Situation(settings)).settings.settings.scale


WAYS_TO_SETTINGS = {
    "a_helper": lambda settings, loss: Weigher(settings).weighed(loss),
    "a_dataclass": lambda settings, loss: weighed(Situation(settings), loss),
    "a_named_tuple": lambda settings, loss: weighed(Pair(settings, 0), loss),
    "slots": lambda settings, loss: weighed(Slotted(settings), loss),
    "a_namespace": lambda settings, loss: weighed(SimpleNamespace(settings=settings), loss),
    "parts_of_parts": lambda settings, loss: weighed_in_part(
        SimpleNamespace(inner=SimpleNamespace(parts=[Situation(settings)])), loss
    ),
    "a_local_namespace": made_in_a_namespace,
    "a_local_that_is_filled": made_and_filled,
    "no_name": made_in_place,
}


def _add_ways_to_settings():
    for name, way in WAYS_TO_SETTINGS.items():

        def loop(place, way=way):
            settings = Scaling()
            model = mlp(place)
            optimizer = sgd(model)
            holder = {"settings": settings}

            def train(pair):
                x, y = pair
                loss = F.cross_entropy(model(x), y)
                return updated(optimizer, way(holder["settings"], loss))

            step = place.capture(train)

            def before(number):
                if number == 15:
                    settings.scale = 2.0

            return losses_of(place, step, 30, before=before), state(model)

        loop.__name__ = f"settings_behind_{name}"
        sentence = f"A number is found behind {name.replace('_', ' ')} made in the step."
        captured_case(sentence, expect=CAPTURED)(loop)


_add_ways_to_settings()


@captured_case("An object that each step makes counts in the settings.", expect=refused("count"))
def count_behind_an_object_of_the_step(place):
    settings = Scaling()
    settings.count = 0
    model = mlp(place)
    optimizer = sgd(model)

    class Counter:
        def __init__(self, settings):
            self.settings = settings

        def note(self):
            self.settings.count += 1

    def train(pair):
        x, y = pair
        Counter(settings).note()
        return updated(optimizer, F.cross_entropy(model(x), y))

    step = place.capture(train)
    return losses_of(place, step, 30), settings.count, state(model)
