"""Deferred metrics: the values, names, weights and means of loops that log."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hazards.harness import EVERYWHERE, GPU, HOLDS, case


def report(losses):
    """Return everything that a user reads at the end of an epoch."""
    mean = losses.mean()
    return mean, losses.history, [float(weight) for weight in losses.weights]


def added(place, values, dtype, *, shape=()):
    losses = place.losses()
    for value in values:
        losses.add(place.scalar(value, dtype).reshape(shape))
    return report(losses)


@case("A loss a step is added, and its mean read at the end.")
def one_loss(place):
    losses = place.losses()
    for number in range(37):
        place.busy()
        losses.add(place.scalar(0.1 * number) ** 2, weight=number % 4 + 1)
    return report(losses)


@case("Names come in another order in each step; the first order is kept.")
def order_of_names(place):
    losses = place.losses()
    for number in range(6):
        values = {"b": place.scalar(1.0 * number), "a": place.scalar(10.0 * number)}
        losses.add(**(values if number % 2 == 0 else dict(reversed(values.items()))))
    assert list(losses.history) == ["b", "a"]
    return report(losses)


for _dtype in ("float32", "float64", "bfloat16", "int64", "bool"):

    def _of_dtype(place, name=_dtype):
        return added(place, [1, 0, 3, 200.7, 7, 0.1], getattr(torch, name))

    _of_dtype.__name__ = f"dtype_{_dtype}"
    case(f"The value is a tensor of {_dtype}.")(_of_dtype)


@case("Precise values: a float64 of 17 digits, an integer above 2**24.", verdict=HOLDS)
def no_digit_is_lost(place):
    losses = place.losses()
    losses.add(loss=place.scalar(math.pi, torch.float64), num=place.scalar(2**24 + 1, torch.int64))
    losses.add(loss=1e-300, num=2**53 - 1)
    losses.drain()
    assert losses.history == {
        "loss": [math.pi, 1e-300],
        "num": [2.0**24 + 1, 2.0**53 - 1],
    }


@case("More than one number is refused in one line, and nothing is lost.", verdict=HOLDS)
def two_numbers_refused(place):
    losses = place.losses()
    losses.add(place.scalar(1.0))
    for wrong in (place.moved(torch.ones(2)), place.moved(torch.ones(0))):
        with pytest.raises((ValueError, TypeError)) as caught:
            losses.add(wrong)
        assert "\n" not in str(caught.value)
    losses.add(place.scalar(3.0))
    assert losses.mean() == 2.0
    assert losses.history == [1.0, 3.0]
    assert [float(weight) for weight in losses.weights] == [1.0, 1.0]


@case("Only Python numbers are added, for a learning rate and a time.")
def only_python_numbers(place):
    losses = place.losses()
    for number in range(2_000):
        losses.add(rate=0.1 / (number + 1), seconds=1e-3 * number)
    return report(losses)


@case("A host tensor is changed by its owner after it was added.")
def host_tensor_overwritten(place):
    losses, running = place.losses(), torch.zeros(())
    for number in range(6):
        running += number
        losses.add(running)
    running.fill_(-1)
    return report(losses)


@case("Weights are ints, floats, host tensors, numpy numbers and zero.")
def weights_of_all_kinds(place):
    losses = place.losses()
    for number, weight in enumerate([3, 0.5, torch.tensor(4), np.int64(2), 0, True]):
        losses.add(place.scalar(1.5 * number), weight=weight)
    return report(losses)


@case("The weight is a number of tokens that the device has counted.")
def weights_on_the_device(place):
    losses = place.losses()
    for number in range(5):
        mask = place.moved(torch.arange(9) > number)
        losses.add(place.scalar(1.5 * number), weight=mask.sum())
    mean = losses.mean()
    return mean, losses.history, [float(weight) for weight in losses.weights]


@case("All weights are zero: the mean is NaN, no error.", verdict=HOLDS)
def only_zero_weights(place):
    losses = place.losses()
    losses.add(place.scalar(2.0), weight=0)
    assert math.isnan(losses.mean())
    assert losses.history == [2.0]


@case("Nothing was added: NaN, an empty history, no latest.", verdict=HOLDS)
def nothing_added(place):
    losses = place.losses()
    assert math.isnan(losses.mean())
    assert losses.latest() is None
    assert list(losses.history) == []
    assert list(losses.weights) == []
    assert losses.first_nonfinite is None
    losses.poll()
    losses.flush()
    losses.drain()
    losses.reset()
    assert math.isnan(losses.mean())


@case("The mean is summed exactly: large values cancel.", verdict=HOLDS)
def exact_mean(place):
    losses = place.losses()
    for value in (1e16, 1.0, -1e16):
        losses.add(place.scalar(value, torch.float64))
    assert losses.mean() == 1 / 3
    tenths = place.losses()
    for _ in range(1_000):
        tenths.add(0.1, weight=3)
    assert tenths.mean() == pytest.approx(0.1, abs=1e-16)


@case("A new name is refused in one line, and nothing is lost.", verdict=HOLDS)
def new_name_refused(place):
    losses = place.losses()
    losses.add(loss=place.scalar(1.0), accuracy=place.scalar(0.5))
    with pytest.raises((ValueError, TypeError), match="extra") as caught:
        losses.add(loss=place.scalar(9.0), accuracy=place.scalar(9.0), extra=1.0)
    assert "\n" not in str(caught.value)
    losses.add(loss=place.scalar(3.0), accuracy=place.scalar(0.7))
    assert losses.mean("loss") == 2.0
    assert len(losses.history["accuracy"]) == len(losses.weights) == 2


@case("By position first and by name later (and the other way round) is refused.", verdict=HOLDS)
def position_and_name_mixed(place):
    losses = place.losses()
    losses.add(place.scalar(1.0))
    with pytest.raises((ValueError, TypeError)):
        losses.add(accuracy=place.scalar(1.0))
    assert losses.mean() == 1.0
    named = place.losses()
    named.add(accuracy=place.scalar(1.0))
    with pytest.raises((ValueError, TypeError)):
        named.add(place.scalar(1.0))
    assert named.mean() == {"accuracy": 1.0}


@case(
    "Nothing, None or text is added: refused, and nothing is lost.",
    verdict=HOLDS,
    holds_plainly=False,
)
def no_number_refused(place):
    losses = place.losses()
    losses.add(place.scalar(1.0))
    for wrong in (None, "0.5", [1.0]):
        with pytest.raises((ValueError, TypeError)):
            losses.add(wrong)
    with pytest.raises((ValueError, TypeError)):
        losses.add()
    assert losses.history == [1.0] or losses.mean() == 1.0


@case("The mean of a name that was never added is refused with that name.", verdict=HOLDS)
def unknown_name(place):
    losses = place.losses()
    losses.add(loss=place.scalar(1.0))
    with pytest.raises((KeyError, ValueError), match="perplexity"):
        losses.mean("perplexity")


@case("More values than fit a small ring: 3,500 adds without a read.", devices=EVERYWHERE)
def many_without_a_read(place):
    losses = place.losses()
    x = place.scalar(1.0)
    for number in range(3_500):
        losses.add(x * number, weight=1 + number % 3)
    mean = losses.mean()
    return mean, losses.history[:3], losses.history[-3:], len(losses.history), len(losses.weights)


@case("`reset` begins the next epoch while values are in flight.")
def reset_between_epochs(place):
    losses, results = place.losses(), []
    for epoch in range(4):
        for number in range(5):
            place.busy()
            losses.add(place.scalar(10.0 * epoch + number), weight=number + 1)
        if epoch % 2:
            results.append(report(losses))
        losses.reset()
        assert losses.latest() is None
    losses.add(place.scalar(7.0))
    return results, report(losses)


@case(
    "A value of the device is added where `DeferredLoss` was made for the CPU.",
    devices=(GPU,),
    verdict=HOLDS,
)
def losses_of_the_cpu(place):
    import gapless

    losses = gapless.DeferredLoss("cpu")
    losses.add(torch.tensor(2.0))
    assert losses.mean() == 2.0
