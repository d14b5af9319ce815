"""Rows of docs/cuda-graph-checklist.md that no case of `hazards` shows, on the simulated device.

Each test is a loop as the guide warns of it. With its step captured it gives what it gives as written,
bit for bit, and the step is captured, or refused with the line that is to blame.
"""

from __future__ import annotations

import inspect
import os
import random
import re

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hazards.captured_harness import CAPTURED, EITHER, HOLDS, refused
from hazards.captured_models import Trainer, batch, batches, kept, losses_of, mlp, sgd, updated
from judged import refusals_of, wrong_with


pytestmark = pytest.mark.quick_tests(12)

NUM = 14


def of_a_loss(look):
    """Return a loop whose step passes its loss through a function."""

    def loop(place):
        trainer = Trainer(place)

        def step(pair):
            return updated(trainer.optimizer, look(trainer.loss(pair)))

        return losses_of(place, place.capture(step), NUM), trainer.state()

    return loop


# ------------------------------------------------------------------------ values that are read


def moved_by_cpu(loss):
    return loss * loss.detach().cpu().item()


def moved_by_to(loss):
    return loss * loss.detach().to("cpu").item()


def moved_by_numpy(loss):
    return loss * float(loss.detach().cpu().numpy())


@pytest.mark.parametrize("look", [moved_by_cpu, moved_by_to, moved_by_numpy])
def test_copies_to_the_host(look):
    """A step that copies a value to the host and waits for it is refused with its line."""
    assert wrong_with(of_a_loss(look), refused(at=line_in(look))) == []


def the_larger_by_python(loss):
    return max(loss, loss * 0.5)


def unless_it_is_zero(loss):
    return loss if torch.is_nonzero(loss) else loss + 1.0


def unless_it_is_no_number(loss):
    return loss * 0.0 if loss.isnan() else loss


@pytest.mark.parametrize("look", [the_larger_by_python, unless_it_is_zero, unless_it_is_no_number])
def test_decisions_of_python_by_a_value(look):
    """A step in which Python decides by a value of the device is refused with its line."""
    assert wrong_with(of_a_loss(look), refused(at=line_in(look))) == []


def the_larger_on_the_device(loss):
    return torch.max(loss, loss * 0.5)


def no_number_is_replaced(loss):
    return torch.where(loss.isnan(), torch.zeros_like(loss), loss)


@pytest.mark.parametrize("look", [the_larger_on_the_device, no_number_is_replaced])
def test_decisions_on_the_device(look):
    """A step in which the device decides is captured."""
    assert wrong_with(of_a_loss(look), CAPTURED) == []


def test_slices_with_bounds_on_the_device():
    """A slice whose bounds are tensors of the device makes the host wait, and is refused."""

    def loop(place):
        trainer = Trainer(place)
        start, end = place.scalar(1, torch.int64), place.scalar(5, torch.int64)

        def step(pair):
            x, y = pair
            return trainer.train((x[start:end], y[start:end]))

        return losses_of(place, place.capture(step), NUM), trainer.state()

    assert wrong_with(loop, refused(at="x[start:end]")) == []


def rows_found(x):
    return x[torch.nonzero(x[:, 0] > 0.0)[:, 0]]


def rows_where(x):
    return x[torch.where(x[:, 0] > 0.0)[0]]


def elements_selected(x):
    return torch.masked_select(x, x > 0.0)


def values_that_differ(x):
    return torch.unique(x.round())


def rows_repeated(x):
    return torch.repeat_interleave(x, (x[:, 0] > 0.0).long() + 1, dim=0)


ROWS = [rows_found, rows_where, elements_selected, values_that_differ, rows_repeated]


def of_rows(choose):
    """Return a loop whose step adds a sum over some elements of its batch to its loss."""

    def loop(place):
        trainer = Trainer(place)

        def step(pair):
            loss = trainer.loss(pair) + choose(pair[0]).square().sum() * 0.0
            return updated(trainer.optimizer, loss)

        return losses_of(place, place.capture(step), NUM), trainer.state()

    return loop


@pytest.mark.parametrize("choose", ROWS)
def test_results_of_unknown_size(choose):
    """A step whose tensors have sizes that only the device knows is refused with its line."""
    assert wrong_with(of_rows(choose), refused(at=line_in(choose))) == []


def rows_zeroed(x):
    return torch.where(x > 0.0, x, torch.zeros_like(x))


def rows_filled(x):
    return x.masked_fill(x > 0.0, 0.0)


def rows_repeated_to_a_size(x):
    repeats = torch.ones_like(x[:, 0]).long() * 2
    return torch.repeat_interleave(x, repeats, dim=0, output_size=2 * len(x))


@pytest.mark.parametrize("choose", [rows_zeroed, rows_filled, rows_repeated_to_a_size])
def test_results_of_known_size(choose):
    """The same with sizes that the host knows is captured."""
    assert wrong_with(of_rows(choose), CAPTURED) == []


def line_in(function):
    """Return the last line of a function."""
    (*_, last) = inspect.getsource(function).strip().splitlines()
    return last.strip()


# ------------------------------------------------------------------------- networks that decide


def test_early_exits():
    """A network that leaves early when it is sure is refused with the line that reads."""

    def loop(place):
        trainer, head = Trainer(place), mlp(place).requires_grad_(False)

        def step(pair):
            x, y = pair
            confidence = head(x).softmax(-1).max()
            if confidence.item() > 0.9:
                return confidence
            return trainer.train((x, y))

        return losses_of(place, place.capture(step), NUM), trainer.state()

    assert wrong_with(loop, refused(at="confidence.item()")) == []


def test_experts_of_dynamic_sizes():
    """A mixture of experts that picks each expert's rows by a mask is refused with that line."""

    def loop(place):
        experts, gate = [mlp(place), mlp(place)], mlp(place, num_out=2)
        optimizer = sgd(torch.nn.ModuleList([*experts, gate]))

        def step(pair):
            x, y = pair
            chosen, loss = gate(x).argmax(-1), gate(x).square().mean()
            for number, expert in enumerate(experts):
                rows = x[chosen == number]  # of this expert
                if len(rows):
                    loss = loss + expert(rows).square().mean()
            return updated(optimizer, loss + 0.0 * y.sum())

        return losses_of(place, place.capture(step), NUM), gate.state_dict()

    assert wrong_with(loop, refused(at="rows = x[chosen == number]")) == []


def test_experts_of_fixed_sizes():
    """A mixture in which each expert sees all rows, weighted on the device, is captured."""

    def loop(place):
        experts, gate = [mlp(place), mlp(place)], mlp(place, num_out=2)
        optimizer = sgd(torch.nn.ModuleList([*experts, gate]))

        def step(pair):
            x, y = pair
            weights = gate(x).softmax(-1)
            parts = [weights[:, number, None] * experts[number](x) for number in range(2)]
            return updated(optimizer, F.cross_entropy(sum(parts), y))

        return losses_of(place, place.capture(step), NUM), gate.state_dict()

    assert wrong_with(loop, CAPTURED) == []


def test_static_parts_captured_alone():
    """Where routing is dynamic, the static part before it can be a captured step of its own."""

    def loop(place):
        body, head = mlp(place, num_out=8).requires_grad_(False), Trainer(place)
        features = place.capture(torch.no_grad()(lambda x: body(x)))
        losses = []
        for x, y in batches(place, NUM):
            found = features(x)
            chosen = found[:, 0] > found[:, 0].mean()
            losses.append(kept(head.train((found[chosen], y[chosen]))))
        return losses, head.state()

    assert wrong_with(loop, CAPTURED) == []


# ----------------------------------------------------------------------- memory that a graph uses


def test_tensors_of_a_function_that_returned():
    """What a step reads stays alive with its graph, although nobody else holds it any more."""

    def loop(place):
        def make_step():
            model, shift = mlp(place).requires_grad_(False), place.moved(torch.ones(8) * 2.0)
            return place.capture(lambda x: model(x + shift))

        step, found = make_step(), []
        for number in range(NUM):
            x, _ = batch(place, number)
            found.append(kept(step(x)))
            other = torch.full((8,), 1e9, device=place.torch_device)
            del other
        return found

    assert wrong_with(loop, CAPTURED) == []


def test_checkpoints_that_enter_autograd_again():
    """Reentrant checkpoints, which `make_graphed_callables` cannot take, are captured."""

    def loop(place):
        trainer = Trainer(place)

        def step(pair):
            x, y = pair
            hidden = trainer.model[0](x)
            scores = checkpoint(
                trainer.model[1:], hidden, use_reentrant=True, preserve_rng_state=False
            )
            return updated(trainer.optimizer, F.cross_entropy(scores, y))

        return losses_of(place, place.capture(step), NUM), trainer.state()

    assert wrong_with(loop, CAPTURED) == []


# ------------------------------------------------------------------------------ what it launches


def test_one_graph_for_a_step():
    """Forward, backward and update of a kind of batch are one graph, however many operations."""

    def loop(place):
        trainer = Trainer(place, dropout=0.3)
        step = place.capture(trainer.train)
        losses_of(place, step, NUM)
        if not place.is_plain:
            assert [report.num_graphs for report in place.reports()] == [1]

    assert wrong_with(loop, HOLDS) == []


def test_the_environment_is_left_alone():
    """Variables that NCCL and the allocator read are nobody's but the user's."""

    def loop(place):
        before = dict(os.environ)
        losses_of(place, place.capture(Trainer(place).train), NUM)
        assert before == dict(os.environ)

    assert wrong_with(loop, HOLDS) == []


def test_clipping_without_a_wait():
    """Clipping that keeps its norm on the device is captured, whatever it clips."""

    def loop(place):
        trainer = Trainer(place)

        def step(pair):
            loss = trainer.loss(pair)
            trainer.optimizer.zero_grad()
            loss.backward()
            gradients = [weight.grad for weight in trainer.model.parameters()]
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            for gradient in gradients:
                gradient.mul_((0.5 / (norm + 1e-6)).clamp(max=1.0))
            trainer.optimizer.step()
            return loss

        return losses_of(place, place.capture(step), NUM), trainer.state()

    assert wrong_with(loop, CAPTURED) == []


def test_copies_to_the_host_that_do_not_wait():
    """A copy to the host without a wait gives what it gives as written, or is refused."""

    def loop(place):
        trainer = Trainer(place)

        def step(pair):
            loss = trainer.train(pair)
            return loss, loss.detach().to("cpu", non_blocking=True)

        step, found = place.capture(step), []
        for pair in batches(place, NUM):
            loss, on_the_host = step(pair)
            place.settle()
            found.append((kept(loss), on_the_host.clone()))
        return found, trainer.state()

    assert wrong_with(loop, EITHER) == []


# ---------------------------------------------------------------------------- what refusals say


class Counting(Trainer):
    def __init__(self, place):
        super().__init__(place)
        self.seen = 0

    def step(self, pair):
        self.seen += 1
        return self.train(pair)


class Printing(Trainer):
    def step(self, pair):
        print("step")
        return self.train(pair)


class Drawing(Trainer):
    def step(self, pair):
        x, y = pair
        return self.train((x * random.random(), y))


class Reading(Trainer):
    def step(self, pair):
        return updated(self.optimizer, self.loss(pair) / self.loss(pair).item())


class Annealing(Trainer):
    weight = 1.0

    def step(self, pair):
        return updated(self.optimizer, self.loss(pair) * self.weight)

    def before(self, number):
        self.weight = number + 1.5


class Renewing(Trainer):
    weights = None

    def step(self, pair):
        return updated(self.optimizer, self.loss(pair) + self.weights.sum())

    def before(self, number):
        self.weights = torch.ones(4, device=self.model[0].weight.device)
        del number


class Scheduling(Trainer):
    def __init__(self, place):
        super().__init__(place)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 7)

    def step(self, pair):
        loss = self.train(pair)
        self.scheduler.step()
        return loss


class InsideAutocast(Trainer):
    def step(self, pair):
        return self.train(pair)


class Scaling(Trainer):
    def __init__(self, place):
        super().__init__(place)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scaler = torch.amp.GradScaler(place.torch_device.type, init_scale=4.0)

    def step(self, pair):
        self.optimizer.zero_grad()
        loss = self.loss(pair)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss


class OnTheHost(Trainer):
    def step(self, three):
        x, y, scale = three
        return self.train((x * scale.to(x.device), y))


class ReturningToTheHost(Trainer):
    def step(self, pair):
        return self.train(pair).detach().to("cpu", non_blocking=True)


def words_of(trainer_of):
    """Return the refusals of a trainer's step, with `train.py:12` for each line."""

    def loop(place):
        trainer = trainer_of(place)
        step, before = place.capture(trainer.step), getattr(trainer, "before", lambda number: None)
        kind, is_inside = place.torch_device.type, trainer_of is InsideAutocast
        with torch.autocast(kind, torch.bfloat16, enabled=is_inside):
            for number, pair in enumerate(batches(place, 2 * NUM)):
                before(number)
                extra = (torch.ones(8),) if trainer_of is OnTheHost else ()
                step((*pair, *extra))

    return [re.sub(r"\w+\.py:\d+", "train.py:12", text) for text in refusals_of(loop)]


WORDS = {
    Reading: "train.py:12 makes the host wait for the device",
    Counting: (
        "train.py:12: self.seen changes on the host, from 1 to 2, which a replay would "
        "skip; change it in `on_host`, or outside the step"
    ),
    Printing: (
        "train.py:12: print is work of the host, which a replay would skip; let it stand "
        "in `on_host`, or leave it out of the step"
    ),
    Drawing: (
        "train.py:12: random is work of the host, which a replay would skip; draw random "
        "numbers on the device, or in `on_host`"
    ),
    Annealing: (
        "self.weight (train.py:12) changed from 5.5 to 6.5 (changes so far: 4 times), and"
        " a graph keeps what it was captured with; pass it to the step as a tensor on the"
        " device, or keep it in one that is filled in place"
    ),
    Renewing: (
        "self.weights (train.py:12) changed (changes so far: 4 times), and a graph keeps "
        "what it was captured with; write new values into what is there, into a tensor by"
        " `copy_()`"
    ),
    Scheduling: (
        "train.py:12: StepLR.step is work of the host, which a replay would skip; let it "
        "stand in `on_host`, or leave it out of the step"
    ),
    Scaling: (
        "train.py:12 makes the host wait for the device; GradScaler reads for an "
        "optimizer that is not fused; give it fused=True"
    ),
    InsideAutocast: (
        "the step is called inside autocast, whose cached casts of weights a graph does "
        "not renew; enter autocast within the step, call a captured optimizer behind it, "
        "or give it cache_enabled=False"
    ),
    OnTheHost: (
        "a batch holds a tensor on cpu (torch.float32, shape (8,)), whose values a graph "
        "would keep; move it to the device, or make it a plain value"
    ),
    ReturningToTheHost: (
        "the step returns a tensor that is not on the device, which each replay would "
        "overwrite; return the tensor on the device, and read it late, such as by "
        "gapless.DeferredLoss"
    ),
}


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("trainer_of", WORDS)
def test_refusals_name_the_line_and_what_to_do(trainer_of):
    """Each kind of refusal has its words, with `train.py:12` for the line."""
    (first, *_) = words_of(trainer_of)

    assert first == WORDS[trainer_of]
