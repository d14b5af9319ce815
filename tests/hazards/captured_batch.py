"""Batches that the step changes, or that are of a peculiar kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from hazards.captured_harness import CAPTURED, EITHER, captured_case, refused
from hazards.captured_models import (
    Trainer,
    batch,
    batches,
    host_batch,
    is_capturing,
    kept,
    losses_of,
    mlp,
    sgd,
    state,
    updated,
)


NUM = 16


def dicts(place, num, **sizes):
    """Yield batches as dicts of features and classes."""
    for x, y in batches(place, num, **sizes):
        yield {"x": x, "y": y}


def losses_over(step, made):
    """Call the step with each of these batches, and return its results."""
    return [kept(step(one)) for one in made]


# ------------------------------------------------------------------- the step changes its batch


@captured_case("The step puts normalised features into its batch.", expect=CAPTURED)
def features_assigned(place):
    trainer = Trainer(place)

    def step(pair):
        pair["x"] = pair["x"] / 2 + 1
        return trainer.train((pair["x"], pair["y"]))

    return losses_over(place.capture(step), dicts(place, NUM)), trainer.state()


@captured_case(
    "The step puts features into its batch, which the loop reads after it.", expect=EITHER
)
def features_assigned_and_read(place):
    trainer, seen, losses = Trainer(place), [], []

    def step(pair):
        pair["x"] = pair["x"] / 2 + 1
        return trainer.train((pair["x"], pair["y"]))

    step = place.capture(step)
    for pair in dicts(place, NUM):
        losses.append(kept(step(pair)))
        seen.append(pair)
    return losses, seen, trainer.state()


@captured_case("The step pops the classes out of its batch.", expect=CAPTURED)
def classes_popped(place):
    trainer = Trainer(place)

    def step(pair):
        y = pair.pop("y")
        return trainer.train((pair["x"], y))

    return losses_over(place.capture(step), dicts(place, NUM)), trainer.state()


@captured_case(
    "The step empties its batch, and the loop looks whether it is empty.", expect=EITHER
)
def batch_emptied(place):
    trainer, sizes, losses = Trainer(place), [], []

    def step(pair):
        x, y = pair["x"], pair["y"]
        pair.clear()
        return trainer.train((x, y))

    step = place.capture(step)
    for pair in dicts(place, NUM):
        losses.append(kept(step(pair)))
        sizes.append(len(pair))
    return losses, sizes, trainer.state()


@captured_case("The step normalises features in place.", expect=CAPTURED)
def normalised_in_place(place):
    trainer = Trainer(place)

    def step(pair):
        x, y = pair
        x.sub_(x.mean()).mul_(0.5)
        return trainer.train((x, y))

    return losses_of(place, place.capture(step), NUM), trainer.state()


@captured_case("The step normalises features in place, and the loop keeps them.", expect=EITHER)
def normalised_in_place_and_kept(place):
    trainer, seen, losses = Trainer(place), [], []

    def step(pair):
        x, y = pair
        x.sub_(x.mean()).mul_(0.5)
        return trainer.train((x, y))

    step = place.capture(step)
    for pair in batches(place, NUM):
        losses.append(kept(step(pair)))
        seen.append(pair[0])
    return losses, seen, trainer.state()


@captured_case("Data that stays on the device is masked in place in every epoch.", expect=EITHER)
def data_on_the_device_is_masked(place):
    trainer, losses = Trainer(place), []
    data = list(batches(place, 6))

    def step(pair):
        x, y = pair
        x.mul_((torch.rand_like(x) > 0.2).float())
        return trainer.train((x, y))

    step = place.capture(step)
    for _ in range(5):
        losses += losses_over(step, data)
    return losses, data, trainer.state()


@captured_case("The step appends derived features to its batch, which is a list.", expect=CAPTURED)
def features_appended(place):
    trainer = Trainer(place)

    def step(pair):
        pair.append(pair[0] * 2)
        return trainer.train((pair[0] + pair[-1], pair[1]))

    made = (list(pair) for pair in batches(place, NUM))
    return losses_over(place.capture(step), made), trainer.state()


@captured_case(
    "One list is the batch of all steps, and each of them appends to it.", expect=EITHER
)
def one_list_grows(place):
    trainer, losses, pair = Trainer(place), [], []

    def step(pair):
        pair.append(pair[0] * len(pair))
        return trainer.train((sum(pair[2:]), pair[1]))

    step = place.capture(step)
    for x, y in batches(place, NUM):
        pair[:2] = [x, y]
        losses.append(kept(step(pair)))
    return losses, len(pair), trainer.state()


@captured_case("The step writes its loss into the batch, as some frameworks do.", expect=EITHER)
def loss_written_into_the_batch(place):
    trainer, losses = Trainer(place), []

    def step(pair):
        pair["loss"] = trainer.train((pair["x"], pair["y"]))
        return pair

    step = place.capture(step)
    for pair in dicts(place, NUM):
        out = step(pair)
        losses.append((kept(out["loss"]), kept(pair["loss"])))
    return losses, trainer.state()


@captured_case("The step changes a dict within its batch.", expect=CAPTURED)
def nested_dict_changed(place):
    trainer = Trainer(place)

    def step(pair):
        pair["inputs"]["mask"] = (pair["inputs"]["x"] > 0).float()
        del pair["meta"]
        return trainer.train((pair["inputs"]["x"] * pair["inputs"]["mask"], pair["y"]))

    made = ({"inputs": {"x": x}, "y": y, "meta": {"source": "a"}} for x, y in batches(place, NUM))
    return losses_over(place.capture(step), made), trainer.state()


@captured_case(
    "The step returns the batch's tensor, and the loop changes it afterwards.", expect=EITHER
)
def returns_its_input(place):
    trainer, results = Trainer(place), []

    def step(pair):
        return trainer.train(pair), pair[0]

    step = place.capture(step)
    for pair in batches(place, NUM):
        loss, x = step(pair)
        pair[0].add_(1)
        results.append((kept(loss), x))
    return results, trainer.state()


@captured_case(
    "The step keeps the features of the last batch, and compares with them.", expect=EITHER
)
def last_batch_is_kept(place):
    class Contrasting(Trainer):
        def step(self, pair):
            x = pair[0]
            loss = self.loss(pair) + (x - self.last).square().mean()
            self.last = x
            return updated(self.optimizer, loss)

    trainer = Contrasting(place)
    trainer.last = torch.zeros(6, 8, device=place.torch_device)
    losses = losses_of(place, place.capture(trainer.step), NUM)
    return losses, trainer.last, trainer.state()


# ----------------------------------------------------------------------- what is in a batch


@captured_case("Names and paths, other ones in each batch, come with the tensors.", expect=EITHER)
def names_in_the_batch(place):
    trainer = Trainer(place)

    def step(pair):
        return trainer.train((pair["x"], pair["y"]))

    made = (
        {**pair, "paths": [f"{number}/{row}.png" for row in range(6)]}
        for number, pair in enumerate(dicts(place, 20))
    )
    return losses_over(place.capture(step), made), trainer.state()


@captured_case(
    "An array of numpy with ids comes with the tensors, and is not used.", expect=EITHER
)
def numpy_in_the_batch(place):
    trainer = Trainer(place)

    def step(pair):
        return trainer.train((pair["x"], pair["y"]))

    made = (
        {**pair, "ids": np.arange(6) + 6 * number} for number, pair in enumerate(dicts(place, 20))
    )
    return losses_over(place.capture(step), made), trainer.state()


@captured_case("The step makes its tensors from arrays of numpy in the batch.", expect=EITHER)
def tensors_from_numpy(place):
    trainer = Trainer(place)

    def step(pair):
        x = torch.from_numpy(pair["x"]).to(place.torch_device)
        return trainer.train((x, pair["y"].to(place.torch_device)))

    made = ({"x": x.numpy(), "y": y} for x, y in (host_batch(number) for number in range(NUM)))
    return losses_over(place.capture(step), made), trainer.state()


@captured_case("A mask is None in every batch.", expect=CAPTURED)
def none_in_the_batch(place):
    trainer = Trainer(place)

    def step(three):
        x, y, mask = three
        return trainer.train((x if mask is None else x * mask, y))

    made = ((x, y, None) for x, y in batches(place, NUM))
    return losses_over(place.capture(step), made), trainer.state()


@captured_case("A mask is now None and now a tensor.", expect=CAPTURED)
def none_or_a_tensor(place):
    trainer = Trainer(place)

    def step(three):
        x, y, mask = three
        return trainer.train((x if mask is None else x * mask, y))

    made = (
        (x, y, None if number % 2 else (x > 0).float())
        for number, (x, y) in enumerate(batches(place, 40))
    )
    return losses_over(place.capture(step), made), trainer.state()


@captured_case("The batch is a list of samples, of one length.", expect=CAPTURED)
def list_of_samples(place):
    trainer = Trainer(place)

    def step(samples):
        x, y = (torch.stack([sample[part] for sample in samples]) for part in range(2))
        return trainer.train((x, y))

    made = (list(zip(*pair, strict=True)) for pair in batches(place, NUM))
    return losses_over(place.capture(step), made), trainer.state()


@captured_case("The batch is a list of samples, four or six of them.", expect=CAPTURED)
def lists_of_two_lengths(place):
    trainer = Trainer(place)

    def step(samples):
        x, y = (torch.stack([sample[part] for sample in samples]) for part in range(2))
        return trainer.train((x, y))

    made = (
        list(zip(*batch(place, number, rows=4 + 2 * (number % 2)), strict=True))
        for number in range(40)
    )
    return losses_over(place.capture(step), made), trainer.state()


@captured_case("Three sizes of batches follow each other.", expect=CAPTURED)
def three_sizes(place):
    trainer = Trainer(place, dropout=0.2)
    made = (batch(place, number, rows=(4, 6, 9)[number % 3]) for number in range(48))
    return losses_over(place.capture(trainer.train), made), trainer.state()


@captured_case("Nearly every batch has a size of its own.", expect=EITHER)
def many_sizes(place):
    trainer = Trainer(place, dropout=0.2)
    made = (batch(place, number, rows=2 + number * 7 % 19) for number in range(40))
    return losses_over(place.capture(trainer.train), made), trainer.state()


@captured_case("The last batch of each epoch is smaller.", expect=CAPTURED)
def last_batch_is_smaller(place):
    trainer, losses = Trainer(place), []
    step = place.capture(trainer.train)
    for epoch in range(4):
        for number in range(9):
            rows = 6 if number < 8 else 2
            losses.append(kept(step(batch(place, 9 * epoch + number, rows=rows))))
    return losses, trainer.state()


@captured_case(
    "The mean is over rows that the step counts by `len`, of two sizes.", expect=CAPTURED
)
def length_of_the_batch_is_used(place):
    trainer = Trainer(place)

    def step(pair):
        x, y = pair
        loss = F.cross_entropy(trainer.model(x), y, reduction="sum") / len(x)
        return updated(trainer.optimizer, loss * (2.0 if len(x) > 5 else 1.0))

    made = (batch(place, number, rows=(4, 6)[number % 2]) for number in range(40))
    return losses_over(place.capture(step), made), trainer.state()


@captured_case("A batch without rows comes in between.", expect=EITHER)
def empty_batch(place):
    trainer = Trainer(place)

    def step(pair):
        x, y = pair
        return updated(
            trainer.optimizer, F.cross_entropy(trainer.model(x), y, reduction="sum") / 6
        )

    made = (batch(place, number, rows=0 if number in (3, 9) else 6) for number in range(20))
    return losses_over(place.capture(step), made), trainer.state()


@captured_case("A plain number in the batch is another one each time.", expect=EITHER)
def number_of_its_own(place):
    trainer = Trainer(place)

    def step(pair):
        return trainer.train((pair["x"] * pair["sigma"], pair["y"]))

    made = ({**pair, "sigma": 1 / (number + 1)} for number, pair in enumerate(dicts(place, 24)))
    return losses_over(place.capture(step), made), trainer.state()


@captured_case("A flag in the batch is now True and now False.", expect=CAPTURED)
def flag_in_the_batch(place):
    trainer = Trainer(place)

    def step(pair):
        x = pair["x"].flip(1) if pair["is_flipped"] else pair["x"]
        return trainer.train((x, pair["y"]))

    made = (
        {**pair, "is_flipped": number % 3 == 0} for number, pair in enumerate(dicts(place, 45))
    )
    return losses_over(place.capture(step), made), trainer.state()


@captured_case(
    "True, 1 and 1.0 stand in the batch in turns, and are not the same.", expect=CAPTURED
)
def equal_plain_values(place):
    def step(pair):
        return pair["y"] * pair["scale"]

    made = (
        {**pair, "scale": (True, 1, 1.0)[number % 3]}
        for number, pair in enumerate(dicts(place, 60))
    )
    return losses_over(place.capture(step), made)


@captured_case(
    "The order of keys differs from batch to batch, and the step goes through them.",
    expect=CAPTURED,
)
def order_of_keys(place):
    trainer = Trainer(place)

    def step(pair):
        weight, loss = 1.0, 0.0
        for name, part in pair.items():
            if name != "y":
                loss = loss + weight * F.cross_entropy(trainer.model(part), pair["y"])
                weight /= 2
        return updated(trainer.optimizer, loss)

    made = (
        {"a": x, "b": x * 2, "y": y} if number % 2 else {"b": x * 2, "a": x, "y": y}
        for number, (x, y) in enumerate(batches(place, 40))
    )
    return losses_over(place.capture(step), made), trainer.state()


class Pair(NamedTuple):
    """A batch as a named tuple."""

    x: Any
    y: Any


@captured_case("The batch is a named tuple that the step replaces a part of.", expect=CAPTURED)
def named_tuple(place):
    trainer = Trainer(place)

    def step(pair):
        return trainer.train(pair._replace(x=pair.x * 2))

    made = (Pair(*pair) for pair in batches(place, NUM))
    return losses_over(place.capture(step), made), trainer.state()


@dataclass
class Sample:
    """A batch as a dataclass."""

    x: Any
    y: Any
    weight: float = 1.0


@captured_case("The batch is a dataclass whose field the step changes.", expect=CAPTURED)
def dataclass_is_changed(place):
    trainer = Trainer(place)

    def step(pair):
        pair.x = pair.x * pair.weight
        pair = replace(pair, weight=2.0)
        return trainer.train((pair.x, pair.y))

    made = (Sample(*pair, weight=0.5) for pair in batches(place, NUM))
    return losses_over(place.capture(step), made), trainer.state()


class Graph:
    """A batch of a class of the user's own, without `to`."""

    def __init__(self, x, y):
        self.x, self.y = x, y


@captured_case("The batch is an object of a class of the user's own.", expect=EITHER)
def object_of_a_class(place):
    trainer = Trainer(place)

    def step(graph):
        return trainer.train((graph.x, graph.y))

    made = (Graph(*pair) for pair in batches(place, NUM))
    return losses_over(place.capture(step), made), trainer.state()


@captured_case("One object is filled anew for each step.", expect=EITHER)
def one_object_is_filled(place):
    trainer, graph, losses = Trainer(place), Graph(None, None), []

    def step(graph):
        return trainer.train((graph.x, graph.y))

    step = place.capture(step)
    for graph.x, graph.y in batches(place, NUM):
        losses.append(kept(step(graph)))
    return losses, trainer.state()


# ------------------------------------------------------------------ whose memory a batch has


@captured_case("The same two tensors are filled anew and passed each time.", expect=CAPTURED)
def same_tensors_filled_anew(place):
    trainer, losses = Trainer(place), []
    held = batch(place, 0)
    step = place.capture(trainer.train)
    for pair in batches(place, NUM):
        for kept_part, part in zip(held, pair, strict=True):
            kept_part.copy_(part)
        losses.append(kept(step(held)))
    return losses, trainer.state()


@captured_case("The same dict is passed each time, with other tensors in it.", expect=CAPTURED)
def same_dict_with_other_tensors(place):
    trainer, losses, held = Trainer(place), [], {}

    def step(pair):
        return trainer.train((pair["x"], pair["y"]))

    step = place.capture(step)
    for held["x"], held["y"] in batches(place, NUM):
        losses.append(kept(step(held)))
    return losses, trainer.state()


@captured_case(
    "The batch is ignored: features stand in an attribute that the loop sets.", expect=EITHER
)
def features_past_the_arguments(place):
    trainer, losses = Trainer(place), []

    def step(number):
        del number
        return trainer.train(trainer.pair)

    step = place.capture(step)
    for trainer.pair in batches(place, 20):
        losses.append(kept(step(None)))
    return losses, trainer.state()


@captured_case(
    "The step takes nothing and asks an iterator for its batch.",
    expect=refused(at="pair = next(data)"),
)
def batch_from_an_iterator(place):
    trainer, data = Trainer(place), batches(place, NUM + 1)

    def step():
        pair = next(data)
        return trainer.train(pair)

    step = place.capture(step)
    losses = [kept(step()) for _ in range(NUM)]
    return losses, next(data), trainer.state()


@captured_case("One tensor is passed twice, and only read.", expect=CAPTURED)
def one_tensor_twice(place):
    trainer = Trainer(place)

    def step(three):
        first, second, y = three
        return trainer.train((first + second.flip(0), y))

    made = ((x, x, y) for x, y in batches(place, NUM))
    return losses_over(place.capture(step), made), trainer.state()


@captured_case(
    "One tensor is passed twice, or two of them, and the step writes into the first.",
    expect=EITHER,
)
def one_tensor_twice_written(place):
    trainer = Trainer(place)

    def step(three):
        first, second, y = three
        first.mul_(2)
        return trainer.train((first + second, y))

    made = (
        (x, x.clone() if number % 4 == 3 else x, y)
        for number, (x, y) in enumerate(batches(place, 32))
    )
    return losses_over(place.capture(step), made), trainer.state()


@captured_case(
    "Two views of one tensor overlap, and the step writes into one of them.", expect=EITHER
)
def overlapping_views_written(place):
    def step(pair):
        left, right = pair
        left.add_(1)
        return left.sum() * 3 + right.square().sum()

    made = ((x[:, :5], x[:, 3:]) for x, _ in batches(place, NUM))
    return losses_over(place.capture(step), made)


@captured_case("A batch is a slice of data that stays on the device.", expect=CAPTURED)
def slices_of_data_on_the_device(place):
    trainer, losses = Trainer(place), []
    x, y = batch(place, 0, rows=24)
    step = place.capture(trainer.train)
    for _ in range(4):
        losses += [kept(step((x[at : at + 6], y[at : at + 6]))) for at in range(0, 24, 6)]
    return losses, trainer.state()


@captured_case("Input and target are one token apart in one tensor.", expect=CAPTURED)
def input_and_target_overlap(place):
    trainer = Trainer(place)

    def step(pair):
        x, target = pair
        return updated(trainer.optimizer, F.mse_loss(trainer.model(x), target[:, :4]))

    made = ((x[:-1], x[1:]) for x, _ in batches(place, NUM, rows=7))
    return losses_over(place.capture(step), made), trainer.state()


@captured_case("Features are a transposed view.", expect=CAPTURED)
def transposed(place):
    trainer = Trainer(place)

    def step(pair):
        return trainer.train(pair), pair[0] * 2

    step, results = place.capture(step), []
    for x, y in batches(place, NUM):
        loss, doubled = step((x.view(8, 6).t(), y))
        results.append((kept(loss), kept(doubled)))
    return results, trainer.state()


@captured_case("Features of one shape are contiguous or transposed, in turns.", expect=CAPTURED)
def contiguous_or_transposed(place):
    trainer = Trainer(place)

    def step(pair):
        return trainer.train(pair), pair[0] * 2

    step, results = place.capture(step), []
    for number, (x, y) in enumerate(batches(place, 40)):
        loss, doubled = step((x.view(8, 6).t() if number % 2 else x, y))
        results.append((kept(loss), kept(doubled)))
    return results, trainer.state()


@captured_case("Features are one row, expanded to all rows.", expect=CAPTURED)
def expanded(place):
    trainer = Trainer(place)
    made = ((x[:1].expand(6, 8), y) for x, y in batches(place, NUM))
    return losses_over(place.capture(trainer.train), made), trainer.state()


@captured_case("Features of one shape have two dtypes.", expect=CAPTURED)
def two_dtypes(place):
    trainer = Trainer(place)

    def step(pair):
        return trainer.train((pair[0].float() * 3, pair[1]))

    made = (
        (x.double() if number % 2 else x, y) for number, (x, y) in enumerate(batches(place, 40))
    )
    return losses_over(place.capture(step), made), trainer.state()


@captured_case("An attack: the step takes the gradient of its features.", expect=CAPTURED)
def gradient_of_the_features(place):
    trainer = Trainer(place)

    def step(pair):
        x, y = pair
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(trainer.loss((x, y)), x)
        return trainer.train((x.detach() + 0.1 * gradient.sign(), y))

    return losses_of(place, place.capture(step), NUM), trainer.state()


@captured_case(
    "The loop asks for gradients of the features, and reads them after the step.", expect=EITHER
)
def gradients_are_read_by_the_loop(place):
    trainer, losses, gradients = Trainer(place), [], []
    step = place.capture(trainer.train)
    for x, y in batches(place, NUM):
        x.requires_grad_()
        losses.append(kept(step((x, y))))
        gradients.append(x.grad)
    return losses, gradients, trainer.state()


@captured_case("Features need gradients in every other batch, and the step looks.", expect=EITHER)
def requires_grad_in_turns(place):
    trainer = Trainer(place)

    def step(pair):
        x = pair[0]
        loss = trainer.loss(pair)
        if x.requires_grad:
            (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
            loss = loss + gradient.square().sum()
        return updated(trainer.optimizer, loss)

    made = (
        (x.requires_grad_(number % 2 == 1), y) for number, (x, y) in enumerate(batches(place, 40))
    )
    return losses_over(place.capture(step), made), trainer.state()


@captured_case("Batches come on the host, and the step moves them.", expect=EITHER)
def moved_in_the_step(place):
    trainer = Trainer(place)

    def step(pair):
        return trainer.train(tuple(part.to(place.torch_device) for part in pair))

    made = (host_batch(number) for number in range(NUM))
    return losses_over(place.capture(step), made), trainer.state()


@captured_case("A weight in the batch is a tensor of the host.", expect=EITHER)
def host_number_in_the_batch(place):
    trainer = Trainer(place)

    def step(three):
        x, y, weight = three
        return updated(trainer.optimizer, weight * trainer.loss((x, y)))

    made = (
        (x, y, torch.tensor(1 / (number + 1), device="cpu"))
        for number, (x, y) in enumerate(batches(place, 20))
    )
    return losses_over(place.capture(step), made), trainer.state()


# --------------------------------------------------------------- one memory in each call, written


def queue_step(model, optimizer, factor=lambda: 1.0):
    """Return a step that compares with a queue it is given, and puts what it has seen into it."""

    def step(x, queue):
        seen = model(x)
        loss = ((seen.sum(0) * factor()) @ queue.t()).square().mean()
        updated(optimizer, loss)
        queue[:6] = seen.detach()
        return loss

    return step


def queue_losses(place, step):
    queue = torch.ones(12, 4, device=place.torch_device)
    losses = [kept(step(x, queue)) for x, _ in batches(place, NUM)]
    return losses, queue


@captured_case("A queue that is an argument is written in each step.", expect=CAPTURED)
def queue_is_an_argument(place):
    model = mlp(place)
    optimizer = sgd(model, lr=0.01)
    found = queue_losses(place, place.capture(queue_step(model, optimizer)))
    return found, state(model)


@captured_case(
    "The same, and a library rounds otherwise while a graph is captured.",
    expect=refused("computes something else"),
)
def queue_is_an_argument_and_the_graph_rounds_otherwise(place):
    model = mlp(place)
    optimizer = sgd(model, lr=0.01)
    step = queue_step(model, optimizer, lambda: 1.0000002 if is_capturing() else 1.0)
    return queue_losses(place, place.capture(step)), state(model)


@captured_case("A window of a buffer slides along, and the step writes into it.", expect=EITHER)
def window_slides(place):
    model = mlp(place)
    step = place.capture(queue_step(model, sgd(model, lr=0.01)))
    buffer = torch.ones(12 + NUM, 4, device=place.torch_device)
    losses = [kept(step(x, buffer[n : n + 12])) for n, (x, _) in enumerate(batches(place, NUM))]
    return losses, buffer, state(model)
