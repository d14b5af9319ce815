"""What a watched step is seen to read and to change on the host."""

from __future__ import annotations

import argparse
import collections
import contextlib
import contextvars
import csv
import enum
import functools
import io
import itertools
import logging
import random
import sys
import threading
import time
import types
import warnings
import weakref
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gapless.graphs.reads.failed_look import Look
from gapless.graphs.reads.host_watch import HostWatch
from gapless.graphs.reads.run_profile import RunProfile
from watched_steps import change, is_cpu, is_meta, kept, names, watched


class Thing:
    def __init__(self, **parts):
        self.__dict__.update(parts)


ALPHA = 0.5
CONFIG = {"alpha": 0.5, "other": 1}
COUNT = 0
LOSSES = []
CONTEXT = contextvars.ContextVar("context", default=1)
SETTINGS = argparse.Namespace(beta=2.0, epoch=0)


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


# --- writes ---


def _count_global(batch):
    global COUNT
    COUNT += 1
    return batch.sum()


def _append_global(batch):
    LOSSES.append(1)
    return batch.sum()


def _store_item(batch):
    CONFIG["other"] += 1
    return batch.sum()


def _store_context(batch):
    CONTEXT.set(CONTEXT.get() + 1)
    return batch.sum()


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (_count_global, "COUNT"),
        (_append_global, "LOSSES"),
        (_store_item, "CONFIG['other']"),
        (_store_context, "CONTEXT"),
    ],
)
def test_a_write_to_a_global_is_named_with_its_line(step, name):
    _, run = watched(step)
    assert names(run) == [name]
    first = step.__code__.co_firstlineno
    file, line = run.writes[0].site.split(":")
    assert file == "test_host_watch.py"
    assert first < int(line) <= first + 4


def _attribute(thing):
    thing.value += 1


def _by_setattr(thing):
    setattr(thing, "value", thing.value + 1)  # noqa: B010


def _deleted(thing):
    thing.value = None if thing.value else 1


def _nested(thing):
    thing.inner.value += 1


def _set(thing):
    thing.members.add(len(thing.members))


def _counter(thing):
    thing.counter["steps"] += 1


def _deque(thing):
    thing.recent.append(thing.value)
    thing.value  # noqa: B018


def _nested_list(thing):
    thing.table["list"].append(1)


@pytest.mark.parametrize(
    ("act", "name"),
    [
        (_attribute, "thing.value"),
        (_by_setattr, "thing.value"),
        (_deleted, "thing.value"),
        (_nested, "thing.inner.value"),
        (_set, "thing.members"),
        (_counter, "thing.counter['steps']"),
        (_deque, "thing.recent"),
        (_nested_list, "thing.table['list']"),
    ],
)
def test_a_write_to_an_object_is_found_in_functions_that_the_step_calls(act, name):
    thing = Thing(
        value=0, inner=Thing(value=0), members=set(), counter=collections.Counter(),
        recent=collections.deque(), table={"list": []},
    )  # fmt: skip

    def step(batch):
        act(thing)
        return batch.sum()

    _, run = watched(step)
    assert names(run) == [name]
    assert run.writes[0].site.startswith("test_host_watch.py:")


class Slots:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


def test_a_slot_that_changes_is_named():
    slots = Slots()

    def step(batch):
        slots.count += 1
        return batch.sum()

    _, run = watched(step)
    assert names(run) == ["slots.count"]


class Static:
    total = 0
    scale = 1.0


def _generator():
    number = 0
    while True:
        yield number
        number += 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: iter([1, 2, 3, 4]),
        lambda: iter(range(9)),
        itertools.count,
        lambda: itertools.cycle([1, 2]),
        _generator,
        lambda: enumerate([1, 2, 3, 4]),
        lambda: zip([1, 2, 3], [1, 2, 3], strict=True),
        lambda: map(abs, iter([1, 2, 3])),
    ],
)
def test_an_iterator_that_moves_on_is_not_followed(make):
    source = make()

    def step(batch):
        next(source)
        return batch.sum()

    _, run = watched(step)
    assert [type(source).__name__ in read.name for read in run.odd] == [True]


def test_what_a_step_prints_or_writes_to_a_file_is_a_write(tmp_path, capsys):
    with (tmp_path / "log").open("w") as file:

        def step(batch):
            print("step")
            file.write("step")
            return batch.sum()

        _, run = watched(step)
    assert names(run) == ["file.write", "print"]


@pytest.mark.parametrize(
    ("name", "change_plans"),
    [
        ("clear", lambda plans: plans.clear()),
        ("max_size", lambda plans: setattr(plans, "max_size", 4)),
    ],
)
def test_a_change_of_the_plans_of_cufft_is_a_write(name, change_plans):
    """A replay without the plans that it was captured with ends the process."""
    plans = torch.backends.cuda.cuFFTPlanCache(0)

    def step(batch):
        with contextlib.suppress(RuntimeError):  # without a GPU
            change_plans(plans)
        return batch.sum()

    _, run = watched(step)
    (write,) = run.writes
    assert write.name == f"torch.backends.cuda.cufft_plan_cache.{name}"
    assert write.site.startswith("test_host_watch.py:")
    assert write.advice.startswith("do it before training")


def test_clocks_and_logging_are_writes():
    logger = logging.getLogger("test_host_watch")

    def step(batch):
        start = time.perf_counter()
        logger.warning("took %f", time.time() - start)
        return batch.sum()

    _, run = watched(step)
    assert {"time.perf_counter", "time.time"} <= set(names(run))


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (lambda: random.random(), "random"),
        (lambda: random.choice([1, 2]), "random"),
        (lambda: np.random.rand(), "numpy.random"),  # noqa: NPY002
    ],
)
def test_random_numbers_of_the_host_are_a_write(draw, name):
    def step(batch):
        return batch.sum() * draw()

    _, run = watched(step)
    assert names(run) == [name]


def test_random_numbers_of_torch_on_the_host_are_a_write():
    def step(batch):
        return batch.sum() * torch.rand(())

    watch = HostWatch(step, on_device=is_meta)
    for _ in range(2):
        with watch.watch((torch.zeros(3, device="meta"),), {}) as run:
            step(torch.zeros(3, device="meta"))
    assert names(run) == ["torch"]
    assert run.writes[0].site.startswith("test_host_watch.py:")


@pytest.mark.parametrize("make", [lambda: random.Random(0), lambda: np.random.default_rng(0)])
def test_a_generator_of_ones_own_is_a_write(make):
    rng = make()

    def step(batch):
        return batch.sum() * rng.random()

    _, run = watched(step)
    assert names(run) == ["rng"]


def test_a_tensor_of_the_host_that_changes_is_a_write():
    total = torch.zeros(())

    def step(batch):
        total.add_(1)
        return batch.sum()

    _, run = watched(step, on_device=is_meta, batch=lambda: (torch.zeros(3, device="meta"),))
    assert names(run) == ["total"]


def test_a_table_that_is_filled_and_thrown_away_is_a_write_and_may_be_emptied():
    """As DeepXDE keeps derivatives for the length of a step."""
    thing = Thing()
    thing.table = {}

    def step(batch):
        thing.table["x"] = batch
        thing.table = {}

    _, run = watched(step)

    advice = {write.name: write.advice for write in run.writes}
    assert advice["thing.table"] == "empty the one that there is, by `clear()`"


def test_memory_of_a_device_tensor_that_is_replaced_is_a_write():
    weight = nn.Parameter(torch.zeros(3))

    def step(batch):
        weight.data = batch.sum(0)[:3].clone()
        return weight

    _, run = watched(step)
    assert names(run) == ["weight"]


class CountingOptimizer(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                p.data.add_(p.grad, alpha=-group["lr"] / state["step"])


def test_a_counter_in_the_state_of_a_users_optimizer_is_a_write():
    weight = nn.Parameter(torch.ones(4))
    optimizer = CountingOptimizer([weight])

    def step(batch):
        (batch * weight).sum().backward()
        optimizer.step()

    _, run = watched(step)
    assert [name for name in names(run) if "step" in name]


def test_texts_in_memory_warnings_and_tables_are_writes(monkeypatch):
    text, table = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    rows = csv.writer(table)

    def step(batch):
        text.write("c")
        sys.stderr.write(".")
        rows.writerow([1])
        warnings.warn("odd", stacklevel=1)
        return batch.sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, run = watched(step)
    lines = {int(write.site.partition(":")[2]) for write in run.writes}
    first = step.__code__.co_firstlineno
    assert lines == {first + number for number in (1, 2, 3, 4)}


def test_what_is_stored_again_and_again_is_guarded():
    thing = Thing(phase="train", table={"phase": "train"})

    def step(batch):
        thing.phase = "train"
        thing.table["phase"] = "train"
        return batch.sum()

    _, run = watched(step)
    assert run.writes == []
    first = change(step, lambda: setattr(thing, "phase", "validate"))
    assert (first.name, first.after) == ("thing.phase", "'validate'")
    first = change(step, lambda: thing.table.update(phase="validate"))
    assert first.name == "thing.table['phase']"


def test_a_generator_whose_send_is_the_step_is_not_followed():
    def training():
        number = 0
        while True:
            yield number
            number += 1

    running = training()
    next(running)
    _, run = watched(running.send)
    assert ["generator" in read.name for read in run.odd] == [True]


def test_a_cache_that_misses_every_time_is_a_write():
    @functools.lru_cache
    def looked_up(number):
        return number

    number = itertools.count()

    def step(batch):
        return batch.sum() * looked_up(next(number))

    _, run = watched(step)
    assert "looked_up" in names(run)


# --- what is no write ---


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 1)
        self.scale = 2.0

    def forward(self, x):
        x = checkpoint(self.inner, x, use_reentrant=False)
        return self.head(self.norm(x)) * self.scale


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_ordinary_step_writes_nothing(name):
    model = Net()
    optimizer = OPTIMIZERS[name](model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    def step(batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(batch).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    watch, run = watched(step)
    assert run.writes == []
    assert run.kept == []
    assert run.is_complete
    guards = watch.guards()
    assert guards.holds(), guards.first_changed()
    step(torch.randn(3, 4))
    scheduler.step()
    assert guards.holds(), guards.first_changed()
    assert {id(p) for p in model.parameters()} <= {id(t) for t in guards.tensors}


def test_recurrent_and_attention_modules_write_nothing():
    lstm = nn.LSTM(4, 8, batch_first=True)
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)

    def step(batch):
        out, _ = lstm(batch[None])
        layer(out).sum().backward()

    watch, run = watched(step)
    assert run.writes == []
    assert watch.guards().holds()


def test_weights_that_torch_computes_for_each_run_are_no_write():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    spectral = nn.utils.spectral_norm(nn.Linear(4, 4))

    def step(batch):
        spectral(layer(batch)).sum().backward()

    _, run = watched(step)
    assert run.writes == []
    assert run.kept == []


def test_what_the_step_makes_for_itself_is_no_write():
    def step(batch):
        found = {}
        for index in range(3):
            found[index] = batch * index
        thing = Thing(total=0)
        thing.total += 1
        parts = [value.sum() for value in found.values()]
        rows = iter(parts)
        next(rows)
        text = f"{len(parts):d}"
        return sum(parts) * len(text)

    _, run = watched(step)
    assert run.writes == []
    assert run.kept == []


def test_a_value_that_is_set_to_what_it_was_is_no_write():
    thing = Thing(mode="train", shape=(3, 4), options={"a": 1}, hook=None)

    def step(batch):
        thing.mode = "".join(["tr", "ain"])
        thing.shape = tuple(batch.shape)
        thing.options = {"a": 1}
        return batch.sum()

    _, run = watched(step)
    assert run.writes == []


def test_a_cache_for_each_size_is_filled_and_no_write():
    masks = {}

    @functools.lru_cache
    def looked_up(number):
        return number

    def step(batch):
        size = len(batch)
        if size not in masks:
            masks[size] = torch.ones_like(batch)
        return (batch * masks[size]).sum() * looked_up(size)

    watch = HostWatch(step, on_device=is_cpu, torch_random=False)
    for size in (3, 3, 5, 5, 3):
        batch = torch.zeros(size)
        with watch.watch((batch,), {}) as run:
            step(batch)
        assert run.writes == []
        assert run.is_complete


# --- kept tensors ---


def test_a_tensor_kept_at_an_attribute():
    thing = Thing(h=torch.zeros(4), last=None)

    def step(batch):
        thing.h = (thing.h + batch.sum(0)).detach()
        loss = thing.h.sum()
        thing.last = loss
        return loss

    _, run = watched(step)
    assert run.writes == []
    assert kept(run) == ["thing.h", "thing.last"]
    path = next(path for path in run.kept if path.name == "thing.h")
    assert path.get() is thing.h
    path.set(None)
    assert thing.h is None
    assert path.site.startswith("test_host_watch.py:")


@dataclass
class Hidden:
    h: torch.Tensor
    c: torch.Tensor


@pytest.mark.parametrize(
    "make",
    [
        lambda x: (x, x + 1),
        lambda x: [x, (x, x)],
        lambda x: {"h": x, "c": [x]},
        lambda x: Hidden(x, x),
        lambda x: (x, 3),
    ],
)
def test_a_tree_of_tensors_kept_at_an_attribute(make):
    thing = Thing(state=make(torch.zeros(4)))

    def step(batch):
        thing.state = make(batch.sum(0))
        return batch.sum()

    _, run = watched(step)
    assert run.writes == []
    assert kept(run) == ["thing.state"]


def test_a_plain_value_that_every_run_leaves_is_kept_and_what_it_reads_first_is_guarded():
    """A note that nobody reads is not guarded; one that is read is, as it stood before the run."""
    thing = Thing(noted=None, used=None, count=0)

    def step(batch):
        thing.noted = len(batch)
        thing.used = thing.used or "last"
        thing.count += 1
        return batch.sum()

    watch = HostWatch(step, on_device=is_cpu, torch_random=False)
    for _ in range(2):
        thing.noted = thing.used = None
        with watch.watch((torch.zeros(3),), {}) as run:
            step(torch.zeros(3))
    assert kept(run) == ["thing.noted", "thing.used"]
    assert names(run) == ["thing.count"]
    guards = watch.guards(carried=run.kept)
    assert (thing.noted, thing.used) == (3, "last")
    assert guards.first_changed().name == "thing.used"
    thing.noted, thing.used = 7, None
    assert guards.holds()


def test_a_tensor_kept_in_a_closure_an_item_and_a_buffer():
    hidden = torch.zeros(4)
    table = {"h": torch.zeros(4)}
    pair = [torch.zeros(4), torch.zeros(4)]
    module = nn.Module()
    module.register_buffer("mean", torch.zeros(4))

    def step(batch):
        nonlocal hidden
        hidden = hidden + batch.sum(0)
        table["h"] = table["h"] + hidden
        pair[0] = pair[1] + 1
        module.mean = module.mean * 0.9 + batch.mean(0)
        return batch.sum()

    _, run = watched(step)
    assert run.writes == []
    assert kept(run) == ["hidden", "module.mean", "pair[0]", "table['h']"]
    for path in run.kept:
        new = torch.ones(4)
        path.set(new)
        assert path.get() is new


def test_a_dictionary_that_grows_by_a_tensor_each_step_is_a_write():
    table = {}

    def step(batch):
        table[len(table)] = batch.sum()

    _, run = watched(step)
    assert len(run.writes) == 1
    assert run.kept == []


# --- guards ---


def _read_global(batch):
    return batch.sum() * ALPHA


def test_a_global_that_changes_is_named_with_both_values(monkeypatch):
    first = change(_read_global, lambda: monkeypatch.setitem(globals(), "ALPHA", 0.25))
    assert (first.name, first.before, first.after) == ("ALPHA", "0.5", "0.25")
    assert not first.is_memory
    assert first.site == f"test_host_watch.py:{_read_global.__code__.co_firstlineno + 1}"


class Trainer:
    factor = 1.0

    def __init__(self):
        self.config = types.SimpleNamespace(model=types.SimpleNamespace(alpha=0.5), epoch=0)
        self.weights = {"a": 1.0, "b": 2.0}
        self.layers = [Thing(scale=1.0, seen=0), Thing(scale=2.0, seen=0)]
        self.mode = Mode.FAST
        self.dtype = torch.float32
        self.epoch = 0
        self.betas = [0.9, 0.99]
        self.function = _double
        self.cells = Thing(inner=Thing(deep=3))
        self.beta = 2.0
        self.sizes = {1}

    @property
    def temperature(self):
        return 1.0 / (1.0 + self.config.epoch)

    def loss(self, x, *, margin=0.5):
        total = x.sum() * self.config.model.alpha + margin
        for name, weight in self.weights.items():
            total = total + len(name) * weight
        for layer in self.layers:
            total = total * layer.scale
        if self.mode is Mode.FAST:
            total = total.to(self.dtype) * self.factor
        config = self.cells
        total = total + config.inner.deep
        total = total + sum(beta for beta in self.betas)
        total = self.function(total) * getattr(self, "beta")  # noqa: B009
        return total * len(self.sizes)

    def step(self, batch):
        return self.loss(batch)


def _double(x):
    return x * 2


def _triple(x):
    return x * 3


CHANGES = {
    "self.config.model.alpha": lambda t: setattr(t.config.model, "alpha", 0.75),
    "self.config.model": lambda t: setattr(t.config, "model", types.SimpleNamespace(alpha=0.5)),
    "self.weights['b']": lambda t: t.weights.update(b=3.0),
    "self.weights": lambda t: t.weights.update(c=3.0),
    "self.layers[1].scale": lambda t: setattr(t.layers[1], "scale", 3.0),
    "self.layers": lambda t: t.layers.append(Thing(scale=1.0)),
    "self.mode": lambda t: setattr(t, "mode", Mode.SLOW),
    "self.dtype": lambda t: setattr(t, "dtype", torch.float64),
    "self.betas[1]": lambda t: t.betas.__setitem__(1, 0.5),
    "self.function": lambda t: setattr(t, "function", _triple),
    "self.beta": lambda t: setattr(t, "beta", 2),
    "self.cells.inner.deep": lambda t: setattr(t.cells.inner, "deep", 4),
    "self.sizes": lambda t: t.sizes.add(2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_method_reads_is_guarded(name):
    trainer = Trainer()
    first = change(trainer.step, lambda: CHANGES[name](trainer))
    assert first is not None
    if name == "self.layers[1].scale":
        assert first.name in {name, "layer.scale", "self.layers[...].scale"}
    elif name == "self.cells.inner.deep":
        assert first.name.endswith("inner.deep")
    else:
        assert first.name == name


def test_what_a_method_does_not_read_is_not_guarded():
    trainer = Trainer()

    def do():
        trainer.epoch += 1
        trainer.config.epoch += 1
        trainer.layers[0].seen += 1
        trainer.new = 3

    assert change(trainer.step, do) is None


def test_a_class_attribute_a_default_and_code_are_guarded(monkeypatch):
    trainer = Trainer()
    first = change(trainer.step, lambda: monkeypatch.setattr(Trainer, "factor", 2.0))
    assert first.name == "self.factor"
    first = change(
        trainer.step,
        lambda: monkeypatch.setattr(Trainer.loss, "__kwdefaults__", {"margin": 0.75}),
    )
    assert first is not None
    first = change(
        trainer.step, lambda: monkeypatch.setattr(_double, "__code__", _triple.__code__)
    )
    assert first is not None


def test_an_attribute_that_hides_the_classs_is_seen():
    trainer = Trainer()
    first = change(trainer.step, lambda: setattr(trainer, "factor", 2.0))
    assert (first.name, first.before, first.after) == ("self.factor", "nothing", "2.0")
    trainer = Trainer()
    assert change(trainer.step, lambda: setattr(trainer, "loss", _double)) is not None
    static = Static()  # has no attribute of its own yet

    def step(batch):
        return batch.sum() * static.scale

    assert change(step, lambda: setattr(static, "scale", 2.0)) is not None


def test_a_cached_property_is_no_write():
    class Owner:
        base = 2.0

        @functools.cached_property
        def weight(self):
            return self.base / 4

        def step(self, batch):
            return batch.sum() * self.weight

    owner = Owner()
    _, run = watched(owner.step)
    assert run.writes == []
    assert change(owner.step, lambda: vars(owner).pop("weight")).name == "self.weight"


class Attributes(dict):
    def __getattr__(self, name):
        return self[name]


class Registry:
    known = {"smoothing": 0.1}  # noqa: RUF012

    @classmethod
    def get(cls, name):
        return cls.known[name]


def test_settings_behind_functions_and_special_objects_are_guarded():
    config = Attributes(loss=Attributes(weight=1.0))
    variable = contextvars.ContextVar("variable", default=1.0)
    local = threading.local()
    local.weight = 1.0

    def step(batch):
        return batch.sum() * (
            config.loss.weight + Registry.get("smoothing") + variable.get() + local.weight
        )

    assert change(step, lambda: config.loss.update(weight=0.5)).name == "config.loss.weight"
    assert change(step, lambda: Registry.known.update(smoothing=0.5)) is not None
    assert change(step, lambda: variable.set(0.5)).name == "variable"
    assert change(step, lambda: setattr(local, "weight", 0.5)).name == "local.weight"
    Registry.known.update(smoothing=0.1)


def test_a_property_is_not_called_but_what_it_reads_is_guarded():
    calls = []

    class Owner:
        def __init__(self):
            self.epoch = 0

        @property
        def rate(self):
            calls.append(1)
            return self.epoch + 1

        def step(self, batch):
            return batch.sum() * self.rate

    owner = Owner()
    watch, _ = watched(owner.step)
    before = len(calls)
    guards = watch.guards(carried=())
    calls_after = len(calls)
    assert before == calls_after
    owner.epoch = 2
    assert guards.first_changed() is not None


def test_floats_are_compared_by_their_bits():
    thing = Thing(value=0.0)

    def step(batch):
        return batch.sum() * thing.value

    assert change(step, lambda: setattr(thing, "value", -0.0)) is not None
    thing.value = float("nan")
    assert change(step, lambda: setattr(thing, "value", float("nan"))) is None
    thing.value = 1
    assert change(step, lambda: setattr(thing, "value", 1.0)) is not None


def test_modules_are_guarded():
    model = Net()

    def step(batch):
        return model(batch).sum()

    changes = [
        lambda: model.eval(),
        lambda: setattr(model.inner[3], "p", 0.5),
        lambda: setattr(model.inner[1], "momentum", 0.5),
        lambda: setattr(model.norm, "eps", 0.5),
        lambda: setattr(model, "scale", 3.0),
        lambda: setattr(model, "head", nn.Linear(8, 1)),
        lambda: setattr(model.head, "weight", nn.Parameter(torch.zeros(1, 8))),
        lambda: setattr(model.head.bias, "data", torch.zeros(1)),
        lambda: model.head.weight.requires_grad_(False),
        lambda: model.inner.append(nn.Tanh()),
        lambda: model.norm.register_forward_hook(lambda *_: None),
        lambda: model.norm.weight.register_hook(lambda grad: grad),
        lambda: model.load_state_dict(Net().state_dict(), assign=True),
    ]
    found = [change(step, do) for do in changes]
    assert [number for number, first in enumerate(found) if first is None] == []
    state = Net().state_dict()
    assert change(step, lambda: model.inner.load_state_dict(model.inner.state_dict())) is None
    del state


def test_modes_of_torch_are_guarded():
    def step(batch):
        return batch.sum()

    watch, _ = watched(step)
    guards = watch.guards()
    with torch.no_grad():
        assert not guards.holds()
        assert guards.first_changed().name == "torch.is_grad_enabled()"
    assert guards.holds()
    torch.use_deterministic_algorithms(mode=True)
    assert not guards.holds()
    torch.use_deterministic_algorithms(mode=False)
    assert guards.holds()


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * SETTINGS.beta


def test_what_a_backward_function_reads_is_guarded(monkeypatch):
    weight = nn.Parameter(torch.ones(4))

    def step(batch):
        Double.apply(weight * batch).sum()  # its backward would run in another thread

    first = change(step, lambda: monkeypatch.setattr(SETTINGS, "beta", 5.0))
    assert first.name == "SETTINGS.beta"


def test_a_function_defined_in_the_step_reads_what_is_around_it():
    thing = Thing(alpha=1.0)

    def step(batch):
        def closure(x):
            return x * thing.alpha

        return sum(closure(x) for x in [batch.sum()])

    assert change(step, lambda: setattr(thing, "alpha", 2.0)).name == "thing.alpha"


def test_environment_variables_that_are_read_are_guarded(monkeypatch):
    import os

    monkeypatch.setenv("SCALE", "1")

    def step(batch):
        return batch.sum() * int(os.environ["SCALE"])

    assert change(step, lambda: monkeypatch.setenv("SCALE", "2")).name == "os.environ"


def test_a_device_tensor_is_guarded_by_identity_and_address():
    thing = Thing(mask=torch.ones(4))

    def step(batch):
        return (batch * thing.mask).sum()

    assert change(step, lambda: thing.mask.zero_()) is None
    first = change(step, lambda: setattr(thing, "mask", torch.ones(4)))
    assert first.name == "thing.mask"
    assert first.is_memory
    first = change(step, lambda: setattr(thing.mask, "data", torch.ones(4)))
    assert first.is_memory


def test_a_tensor_of_the_host_is_guarded_by_content():
    thing = Thing(scale=torch.ones(()))

    def step(batch):
        return (batch * thing.scale).sum()

    first = change(
        step,
        lambda: thing.scale.mul_(2),
        on_device=is_meta,
        batch=lambda: (torch.zeros(3, device="meta"),),
    )
    assert first.name == "thing.scale"


def test_nothing_of_a_run_is_kept_alive():
    import gc
    import weakref

    seen = []

    class Output:
        def __init__(self, logits):
            self.logits = logits

    def head(out):
        return out.logits.sum()

    def step(batch):
        logits = batch * 2
        out = Output(logits)
        seen.append(weakref.ref(out))
        return head(out)

    watch, _ = watched(step)
    watch.guards()
    gc.collect()
    assert all(ref() is None for ref in seen)


def test_a_profiler_that_is_there_goes_on():
    calls = []

    def profile(frame, event, arg):
        calls.append(event)

    def step(batch):
        return batch.sum()

    sys.setprofile(profile)
    try:
        watched(step)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert "c_call" in calls


def test_an_error_of_the_step_passes_through():
    def step(batch):
        raise ValueError("mine")

    watch = HostWatch(step, on_device=is_cpu)
    with pytest.raises(ValueError, match="mine"), watch.watch((1,), {}):
        step(1)
    assert sys.getprofile() is None


@pytest.mark.parametrize("make", [lambda: torch.Stream("cpu"), lambda: torch.Event("cpu")])
def test_streams_and_events_are_not_referred_to_weakly(make):
    """Torch leaves weak references to those of CUDA behind that crash the process."""
    found = make()

    def use(handle):
        return handle.device

    def step(batch):
        handle = passed_on(found)
        return use(handle), use(found)

    def passed_on(handle):
        return handle

    watch, _ = watched(step)

    assert weakref.getweakrefcount(found) == 0
    assert watch.guards().holds()


DERIVATIVES = {
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1],
    "jacfwd": lambda x: torch.func.jacfwd(torch.sin)(x),
    "hessian": lambda x: torch.func.hessian(lambda one: one.sin().sum())(x),
    "dual level": lambda x: _by_dual_numbers(x),
    "jacfwd made before": torch.func.jacfwd(torch.sin),
    "hessian made before": torch.func.hessian(lambda one: one.sin().sum()),
    "vmap of jvp": torch.func.vmap(
        lambda one: torch.func.jvp(torch.sin, (one,), (torch.ones_like(one),))[1]
    ),
    "autograd.functional": lambda x: torch.autograd.functional.jacobian(
        torch.sin, x, vectorize=True, strategy="forward-mode"
    ),
}


def _by_dual_numbers(x):
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        return torch.autograd.forward_ad.unpack_dual(dual.sin()).tangent


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_in_forward_mode_are_seen_with_their_line(name):
    derivative = DERIVATIVES[name]

    def step(batch):
        return derivative(batch[0]).sum()

    _, run = watched(step)
    assert run.forward_modes
    assert all(site.startswith("test_host_watch.py:") for site in run.forward_modes)


def test_derivatives_in_reverse_mode_are_none_in_forward_mode():
    def step(batch):
        return torch.func.jacrev(torch.sin)(batch[0]).sum()

    _, run = watched(step)
    assert run.forward_modes == []


def test_once_torch_compiles_backward_passes_are_not_seen_either():
    """They run on a thread of their own, and go on with what is compiled: its code is none of the step's."""
    profile = RunProfile({}, 1, batch=set(), look=Look(None))
    profile.is_complete = False
    found = []

    def backward():
        sys.setprofile(profile.note)
        is_cpu(torch.ones(1))
        found.append(sys.getprofile())

    thread = threading.Thread(target=backward)
    thread.start()
    thread.join()

    assert found == [None]
    assert not profile.host
