"""More kinds of calls than graphs may be, or than there is memory for."""

from __future__ import annotations

from torch import nn

from hazards.captured_models import sgd, state
from hazards.in_place_harness import in_place_case, refused
from hazards.in_place_models import floats, made, update


def _small(place):
    return made(place, nn.Sequential, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


def _at_most(place, captured, num):
    assert place.is_plain or place.report(captured).num_graphs <= num


@in_place_case(
    "300 lengths, each of which comes again, and at most four graphs.",
    expect=refused("there are 4 graphs already; pad batches"),
)
def three_hundred_lengths(place):
    model = place.capture(_small(place), max_graphs=4)
    optimizer, losses = sgd(model), []
    for number in range(300):
        for _ in range(4 if number < 6 else 1):
            losses.append(
                update(optimizer, model(floats(place, number, number + 1, 8)).square().mean())
            )
    _at_most(place, model, 4)
    return losses, state(model, optimizer)


@in_place_case(
    "A model is released and captured again in each epoch.", expect=refused("2 graphs already")
)
def captured_anew_in_each_epoch(place):
    model = _small(place)
    optimizer, losses = sgd(model), []
    for _ in range(3):
        place.capture(model, max_graphs=2)
        for length in (3, 4, 5) * 5:
            losses.append(update(optimizer, model(floats(place, length, length, 8)).sum()))
        place.release(model)
    return losses, state(model, optimizer)
