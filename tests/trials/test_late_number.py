"""Late numbers: any program of them gives what it gives of Python's own numbers."""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from gapless.trials.late_number import is_late
from gapless.trials.reads import Reads
from gapless.trials.takers import teach_takers
from late_device import DEVICE, LateDevice


# What a script may do with two numbers.
BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "pow": lambda a, b: a ** (b % 3),
    "square": lambda a, b: a**2,
    "cube": lambda a, b: a**3,
    "root": lambda a, b: abs(a) ** 0.5,
    "divmod": lambda a, b: divmod(a, b)[1],
    "less": lambda a, b: a < b,
    "equal": lambda a, b: a == b,
    "not equal": lambda a, b: a != b,
    "at least": lambda a, b: a >= b,
    "max": max,
    "min": min,
    "sum": lambda a, b: sum([a, b, a]),
    "hypot": math.hypot,
    "add zero": lambda a, b: a + 0,
    "times ten": lambda a, b: 10 * a,
    "halved": lambda a, b: a / 2,
    "negative": lambda a, b: -a,
    "size": lambda a, b: abs(a),
    "rounded": lambda a, b: round(a, 2),
    "to int": lambda a, b: round(a),
    "float": lambda a, b: float(a),
    "truth": lambda a, b: a if b else b,
    "key": lambda a, b: {a: b}[a],
    "text": lambda a, b: f"{a} {b!r} {a:.3f} {b:10.2e} {[a, b]} " + "%.2f" % b + str(a),  # noqa: UP031
    "json": lambda a, b: float(json.loads(json.dumps({"a": [a, b]}))["a"][0]),
    "copied": lambda a, b: copy.deepcopy([a, b])[0] + copy.copy(b),
    "pickled": lambda a, b: pickle.loads(pickle.dumps(a)),
    "mean": lambda a, b: statistics.mean([a, b]),
    "kind": lambda a, b: isinstance(a, float) + 2 * isinstance(b, int),
    "numpy": lambda a, b: float(np.mean(np.array([a, b]))),
    "weak": lambda a, b: str((np.ones(1, dtype=np.float32) * a).dtype),
    "torch": lambda a, b: float((torch.ones(1, dtype=torch.float64) * a + b)[0]),
}  # fmt: skip

NUMBERS = st.one_of(
    st.floats(width=32), st.floats(-100, 100, width=32), st.integers(-5, 100), st.just(0)
)
STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(BINARY)), st.integers(0, 30), st.integers(0, 30)),
    max_size=25,
)


def run(steps, numbers):
    """Return all that a program gives, as text and type: each step takes two of what there is."""
    values, found = list(numbers), []
    for name, left, right in steps:
        try:
            new = BINARY[name](values[left % len(values)], values[right % len(values)])
        except (ArithmeticError, ValueError) as error:
            found.append(type(error).__name__)
            continue
        found.append(new)
        if isinstance(new, int | float):
            values.append(new)
    return [(value.__class__.__name__, repr(value)) for value in [*found, *values]]


def on_device(number):
    kind = torch.float32 if isinstance(number, float) else torch.int64
    return torch.tensor(number, dtype=kind).to(DEVICE, non_blocking=True)


@pytest.fixture
def reads():
    taught = teach_takers()
    with LateDevice(seed=1, eagerness=0.0) as device:
        yield Reads(device)
    taught.take_out()


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@settings(deadline=None, max_examples=60)
@given(st.lists(NUMBERS, min_size=1, max_size=5), STEPS, st.integers(0, 99), st.booleans())
def test_a_program_of_late_numbers_gives_the_same(numbers, steps, seed, has_plain):
    """Values, types, texts and errors are those of floats, whenever the numbers come."""
    plain = [0.5, 3] if has_plain else []
    expected = run(steps, plain + numbers)

    with LateDevice(seed=seed, eagerness=0.1) as device:
        reads = Reads(device)
        taught = teach_takers()
        try:
            found = run(steps, plain + [reads.read(on_device(number)) for number in numbers])
        finally:
            taught.take_out()

    assert found == expected


def test_sums_and_means_stay_late(reads):
    """What a script adds up and averages forces nothing."""
    total, count = 0.0, 0
    for number in range(5):
        total += reads.read(on_device(float(number))) * 4
        count += reads.read(on_device(number))
    mean = round(sum([total, total]) / 20, 3)

    assert is_late(mean)
    assert is_late(count)
    assert not reads.forced
    assert mean == 4.0
    assert count == 10
    assert {use for use, _ in reads.forced} == {"compares"}


def test_what_forces_is_named_with_its_line(reads):
    """Each use that needs the number is counted, with the user's line."""
    number = reads.read(on_device(2.0))

    math.sqrt(number)

    ((use, site),) = reads.forced
    assert use == "converts"
    assert site.startswith("test_late_number.py:")


class Encoder(json.JSONEncoder):
    def default(self, value):
        return [value.loss]


@pytest.mark.parametrize("dump", [json.dumps, lambda value, **kwargs: write_json(value, **kwargs)])
def test_json_is_written_of_late_numbers(reads, dump):
    """Also of those that the user's own encoder gives it."""

    class Row:
        loss = reads.read(on_device(2.5))

    found = dump({"row": Row(), "loss": [reads.read(on_device(3))]}, cls=Encoder)

    assert json.loads(found) == {"row": [2.5], "loss": [3]}


def write_json(value, **kwargs):
    """Return what `json.dump` writes, which goes piece by piece."""
    file = io.StringIO()
    json.dump(value, file, **kwargs)
    return file.getvalue()


def test_a_number_that_is_there_forces_nobody(reads):
    """The host does not wait for what has come: it is a plain number from then on."""
    number = reads.read(on_device(2.0))
    reads.finish()

    assert type(number + 1) is float
    assert number < 3
    assert not reads.forced


def test_a_wrong_form_raises_where_it_is_used(reads):
    """A format that no float has is an error of its line, not of a later one."""
    number = reads.read(on_device(2.0))

    with pytest.raises(ValueError, match="format code"):
        f"{number:d}"


def test_a_division_by_zero_raises_where_it_is_written(reads):
    """A late divisor is forced, since the script may catch what it raises."""
    zero = reads.read(on_device(0))

    with pytest.raises(ZeroDivisionError):
        1.0 / zero
    with pytest.raises(ZeroDivisionError):
        reads.read(on_device(1)) / 0


def test_a_product_that_may_grow_without_end_is_not_late(reads):
    """An int too large for a float raises where it is made one, so nobody makes it one later."""
    number = reads.read(on_device(10))

    assert is_late(number * 7)
    assert not is_late((number * 7) * 7)


def test_later_changes_of_a_tensor_are_not_read(reads):
    """A late number is that of the read, as the copy is queued before what follows."""
    tensor = on_device(1.0)
    late = reads.read(tensor)
    reads._device.copy(tensor, torch.tensor(5.0))

    assert float(late) == 1.0
