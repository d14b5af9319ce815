"""Losses that are read late, each exactly once."""

from __future__ import annotations

import math
import threading
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import gapless
from gapless.device.cpu import CpuDevice
from gapless.pipeline.losses.deferred_loss import DeferredLoss
from gapless.pipeline.losses.loss_history import NonFinite
from late_device import LateDevice


weights = st.floats(0.5, 1e4, width=32)


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (None, "is None"),
        (1.5, "is a float"),
        (torch.zeros(4), r"is a tensor of shape \(4,\) and torch.float32"),
        ((torch.zeros(()), 1), "is a tuple"),
        (torch.tensor(1j), r"is a tensor of shape \(\) and torch.complex64"),
    ],
)
@pytest.mark.parametrize("plan", ["blocking", "gapless"])
def test_what_is_no_loss_is_named(plan, loss, found):
    """A step that returns something else is told what it returned, in one line."""
    with pytest.raises(gapless.LossError, match=f"one number, but {found}; let the step return"):
        gapless.run_epoch([torch.zeros(1)], lambda batch: loss, plan=plan, device="cpu")


class Parts:
    """A step in two parts whose first one returns the loss itself."""

    def __init__(self):
        self.seen = []

    def forward(self, batch):
        return batch.sum()

    def backward(self, out):
        self.seen.append(out)


@pytest.mark.parametrize("plan", ["gapless", "four-stream"])
def test_the_first_part_of_a_step_may_return_the_loss_itself(plan):
    """With both parts on one stream, and on two."""
    parts = Parts()

    result = gapless.run_epoch([torch.full((2,), 1.5)] * 3, parts, plan=plan, device="cpu")

    assert result.losses == [3.0] * 3
    assert [float(out) for out in parts.seen] == [3.0] * 3


def test_a_loss_is_read_even_when_the_loop_fails():
    """Leaving a `with` block through an exception reads what was added."""
    losses = gapless.DeferredLoss("cpu")
    with pytest.raises(KeyboardInterrupt), losses:
        losses.add(torch.tensor(2.0))
        raise KeyboardInterrupt

    assert losses.history == [2.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_non_finite_loss_is_reported_with_its_batch(bad):
    """The first one is found, with its exact number."""
    losses = gapless.DeferredLoss("cpu", warn_nonfinite=False)
    for value in (1.0, 2.0, bad, math.nan):
        losses.add(torch.tensor(value))
    losses.drain()

    assert repr(losses.first_nonfinite) == f"NonFinite(step=2, name='loss', value={bad})"


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.floats(-1e100, 1e100), st.integers(1, 9)), min_size=1, max_size=30),
    st.sets(st.integers(0, 30)),
)
def test_the_mean_does_not_depend_on_when_losses_are_read(rows, reads):
    """The sum is `math.fsum` over float64, to the last bit, in whatever portions it came."""
    losses = gapless.DeferredLoss("cpu")
    for number, (loss, weight) in enumerate(rows):
        losses.add(torch.tensor(loss, dtype=torch.float64), weight=torch.tensor(weight))
        if number in reads:
            losses.drain()

    total = math.fsum(loss * weight for loss, weight in rows)
    assert total / math.fsum(weight for _, weight in rows) == losses.mean()


@pytest.mark.parametrize(
    ("values", "expected"),
    [([math.inf, -math.inf], math.nan), ([math.nan, 1.0], math.nan), ([math.inf, 1.0], math.inf)],
)
def test_the_mean_of_non_finite_losses_is_no_error(values, expected):
    """Infinities of both signs have no mean; the history still holds them."""
    losses = gapless.DeferredLoss("cpu", warn_nonfinite=False)
    for value in values:
        losses.add(torch.tensor(value))

    assert str(expected) == str(losses.mean())
    assert str(values) == str(losses.history)


def test_waits_for_losses_are_counted_once_and_only_when_needed():
    """A drain of losses that have been read asks for no wait."""
    losses = gapless.DeferredLoss("cpu")
    losses.add(torch.tensor(1.0))
    losses.drain(reason="log")
    losses.drain(reason="log")
    losses.mean()

    assert {name: wait.count for name, wait in losses.wait_stats.by_reason.items()} == {"log": 1}


def test_a_part_of_the_run_has_its_own_mean():
    """The mean since a batch counts that batch and those after it."""
    losses = gapless.DeferredLoss("cpu")
    for number in range(6):
        losses.add(torch.tensor(float(number)), weight=1 + (number == 5))
    losses.drain()

    assert losses.running_mean(since=4) == 14 / 3
    assert math.isnan(losses.running_mean(since=6))


def test_a_reset_begins_anew():
    """After a reset the next loss is number 0, and a non-finite one of before is forgotten."""
    losses = gapless.DeferredLoss("cpu", warn_nonfinite=False)
    losses.add(torch.tensor(float("nan")))
    losses.mean()
    losses.reset()
    losses.add(torch.tensor(2.0), weight=3.0)

    assert losses.mean() == 2.0
    assert (losses.history, losses.weights) == ([2.0], [3.0])
    assert losses.first_nonfinite is None


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    eagerness=st.sampled_from([0.0, 0.3, 0.9]),
    actions=st.lists(st.sampled_from(["add", "many", "flush", "poll", "drain"]), max_size=12),
)
def test_losses_are_read_once_whenever_streams_run(seed, eagerness, actions):
    """However late the copies are, the history is that of the losses, also past a full ring."""
    device = LateDevice(seed, eagerness)
    losses = DeferredLoss(device)
    added = 0
    for action in actions:
        for _ in range({"add": 1, "many": 600}.get(action, 0)):
            losses.add(torch.tensor(float(added)), weight=2.0)
            added += 1
        if action not in ("add", "many"):
            getattr(losses, action)()
    losses.drain()

    assert [float(number) for number in range(added)] == losses.history
    assert [2.0] * added == losses.weights


# --- several values by name ---


def test_a_single_value_named_loss_is_given_by_name():
    """Its mean is a dict, and a loss by position cannot follow."""
    losses = gapless.DeferredLoss("cpu")
    losses.add(loss=2.0)
    with pytest.raises(gapless.LossError, match="a loss by position, but those before are `loss`"):
        losses.add(2.0)

    assert losses.mean() == {"loss": 2.0}


def add_wrong_names(losses):
    losses.add(loss=1.0)


def add_both_ways(losses):
    losses.add(1.0, accuracy=1.0)


def add_nothing(losses):
    losses.add(weight=2)


def add_what_is_no_number(losses):
    losses.add(loss=1.0, accuracy=torch.ones(2))


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            add_wrong_names,
            "values of this step are `loss`, but those before are `loss`, `accuracy`",
        ),
        (add_both_ways, "loss by position beside 'accuracy' by name; give all values by name"),
        (add_nothing, "no value to add, expected a loss or values by name"),
        (add_what_is_no_number, "`accuracy` must be a number or a tensor with one number, but is"),
    ],
)
def test_a_mistake_loses_nothing(mistake, message):
    """It is told in one line; what was added before and is added after counts."""
    losses = gapless.DeferredLoss("cpu")
    losses.add(loss=1.0, accuracy=torch.tensor(0.5))
    with pytest.raises(gapless.LossError, match=message) as caught:
        mistake(losses)
    losses.add(loss=3.0, accuracy=torch.tensor(1.0))

    assert "\n" not in str(caught.value)
    assert losses.mean() == {"loss": 2.0, "accuracy": 0.75}


def test_a_first_step_that_fails_names_nothing():
    """The names are those of the first step that is added."""
    losses = gapless.DeferredLoss("cpu")
    with pytest.raises(gapless.LossError, match="`f1` must be a number"):
        losses.add(f1=None)
    losses.add(2.0)

    assert losses.mean() == 2.0


def test_after_a_reset_values_may_have_other_names():
    """And the values of before stay with who holds them."""
    losses = gapless.DeferredLoss("cpu")
    losses.add(torch.tensor(1.0))
    losses.drain()
    held = losses.history
    losses.reset()
    losses.add(a=torch.tensor(2.0), b=torch.tensor(3.0))
    assert losses.mean() == {"a": 2.0, "b": 3.0}
    losses.reset()
    losses.add(4.0)

    assert losses.mean() == 4.0
    assert held == [1.0]


def test_a_history_is_the_callers_own():
    """What is done to it changes nothing else."""
    losses = gapless.DeferredLoss("cpu")
    losses.add(torch.tensor(2.0))
    assert losses.mean() == 2.0
    losses.history.append(9.0)
    losses.weights.clear()
    losses.latest().values["loss"] = 9.0

    assert losses.mean() == 2.0
    assert losses.read_since(0) == [(2.0, 1.0)]
    assert losses.read_since(1) == []


# --- what is a number ---


NUMBERS = [
    (2, 2.0),
    (True, 1.0),
    (Fraction(1, 4), 0.25),
    (np.float32(0.5), 0.5),
    (np.bool_(True), 1.0),
    (np.array([[3]]), 3.0),
    (torch.tensor(2**53 - 1), float(2**53 - 1)),
    (torch.tensor(True), 1.0),
    (torch.tensor([[7]], dtype=torch.uint8), 7.0),
    (torch.tensor([1 + 2**-40], dtype=torch.float64), 1 + 2**-40),
    (torch.tensor([0.1], dtype=torch.float16), 0.0999755859375),
    (torch.tensor([0.1], dtype=torch.bfloat16), 0.10009765625),
    (torch.tensor(0.5).to(torch.float8_e4m3fn), 0.5),
    (torch.tensor(7, dtype=torch.uint16), 7.0),
    (torch.nn.Parameter(torch.tensor(1.5)), 1.5),
    (torch.tensor(3.0, requires_grad=True) * 2, 6.0),
]


def test_numbers_of_all_kinds_make_one_step():
    """Values of many dtypes, of the device and of the host."""
    losses = gapless.DeferredLoss("cpu")
    for _ in range(3):
        losses.add(**{f"v{at}": number for at, (number, _) in enumerate(NUMBERS)})

    assert list(losses.mean().values()) == [expected for _, expected in NUMBERS]


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "2",
        1j,
        np.complex64(1),
        np.ones(2),
        [1.0],
        10**400,
        torch.tensor(1j),
        torch.ones(0),
        torch.ones(2),
    ],
)
def test_what_is_not_one_real_number_is_refused(wrong):
    """As a value and as a weight, by name."""
    losses = gapless.DeferredLoss("cpu")
    with pytest.raises(gapless.LossError, match="`loss` must be a number or a tensor with one"):
        losses.add(wrong)
    with pytest.raises(gapless.LossError, match="`weight` must be a number or a tensor with one"):
        losses.add(1.0, weight=wrong)

    assert losses.num_added == 0


@pytest.mark.parametrize("outer", [torch.inference_mode, torch.no_grad])
def test_a_mode_of_the_first_step_is_none_of_the_ring(outer):
    """Losses of evaluation and of training can share one object."""
    losses = gapless.DeferredLoss("cpu")
    with outer():
        losses.add(torch.tensor(1.0) + 0)
    losses.add(torch.ones((), requires_grad=True) * 3)
    with outer():
        for _ in range(1030):
            losses.add(torch.tensor(2.0) * 1)
        assert losses.mean() == 2.0


# --- the newest values, and calls at intervals ---


def steps_of(seen):
    return [(now.step, now.values["loss"]) for now in seen]


def test_after_a_reset_the_callback_counts_anew():
    """The reset itself calls it with what is due."""
    seen = []
    losses = gapless.DeferredLoss("cpu", every=2, on_values=seen.append)
    for _ in range(2):
        for number in range(3):
            losses.add(number)
        losses.reset()

    assert steps_of(seen) == [(1, 1.0), (1, 1.0)]


def test_a_callback_that_raises_is_not_called_twice_for_a_step():
    """The error comes out of `add`, whose own value is kept, and later steps are called."""
    seen = []

    def fail_once(now):
        seen.append(now)
        if len(seen) == 1:
            raise ZeroDivisionError

    losses = gapless.DeferredLoss("cpu", every=2, on_values=fail_once)
    losses.add(0)
    losses.add(1)
    with pytest.raises(ZeroDivisionError):
        losses.add(2)
    losses.add(3)
    losses.drain()

    assert losses.history == [0.0, 1.0, 2.0, 3.0]
    assert steps_of(seen) == [(1, 1.0), (3, 3.0)]


def test_a_callback_may_use_the_object():
    """It may read, add and begin anew; it is not called within itself."""
    seen = []

    def use(now):
        seen.append((now.step, losses.mean(), losses.running_mean(since=1), losses.latest().step))
        losses.add(9)
        losses.reset()

    losses = gapless.DeferredLoss("cpu", every=1, on_values=use)
    losses.add(1)
    losses.add(3)
    losses.drain()

    assert seen == [(0, 2.0, 3.0, 1)]
    assert losses.num_added == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 5}, "`every` and `on_values` must be given together"),
        ({"on_values": print}, "`every` and `on_values` must be given together"),
        ({"every": 0, "on_values": print}, "`every` must be at least 1, but is 0"),
    ],
)
def test_half_a_callback_is_refused(settings, message):
    """A callback that would never be called is a mistake."""
    with pytest.raises(gapless.UserError, match=message):
        gapless.DeferredLoss("cpu", **settings)


def test_the_first_value_that_is_not_finite_is_warned_of_once():
    """With its name, step and value, at the line that read it; again after a reset."""
    losses = gapless.DeferredLoss("cpu")
    message = "`norm` of step 1 is inf, expected a finite number"
    for _ in range(2):
        losses.add(loss=1.0, norm=2.0)
        losses.add(loss=1.0, norm=torch.tensor(math.inf))
        losses.add(loss=math.nan, norm=2.0)
        with pytest.warns(RuntimeWarning, match=message) as caught:
            losses.mean()
        losses.mean()

        assert [warning.filename for warning in caught] == [__file__]
        assert losses.first_nonfinite == NonFinite(step=1, name="norm", value=math.inf)
        losses.reset()


# --- threads ---


def test_threads_may_add_at_once():
    """Each value is kept once, and calls of the callback stay in order."""
    seen = []
    losses = gapless.DeferredLoss("cpu", every=100, on_values=seen.append)
    start = threading.Barrier(4)

    def add_many(first):
        start.wait()
        for number in range(first, first + 1000):
            losses.add(torch.tensor(float(number)), weight=number)
            if number % 97 == 0:
                losses.latest()
            if number % 331 == 0:
                losses.mean()

    threads = [threading.Thread(target=add_many, args=(first,)) for first in range(0, 4000, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    losses.drain()

    assert sorted(losses.history) == [float(number) for number in range(4000)]
    assert losses.history == losses.weights
    assert [now.step for now in seen] == list(range(99, 4000, 100))


def test_a_thread_may_add_while_another_waits():
    """The host waits outside the lock."""
    device = CpuDevice()
    losses = gapless.DeferredLoss(device)
    losses.add(torch.tensor(1.0))

    def add_on_another_thread(event):
        device.query_event = lambda event: True
        thread = threading.Thread(target=losses.add, args=(torch.tensor(2.0),))
        thread.start()
        thread.join(60)
        assert not thread.is_alive()

    device.query_event = lambda event: False
    device.synchronize_event = add_on_another_thread
    losses.drain()

    assert losses.history == [1.0]
    assert losses.num_added == 2


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: torch.tensor([1.0]).to_sparse(), r"shape \(1,\) .*torch.sparse_coo$"),
        (lambda: torch.tensor([[1.0]]).to_sparse_csr(), r"shape \(1, 1\) .*torch.sparse_csr$"),
        (lambda: torch.nested.nested_tensor([torch.ones(1)]), "is a nested tensor$"),
        (lambda: torch.quantize_per_tensor(torch.ones(1), 0.1, 0, torch.qint8), "torch.qint8$"),
    ],
    ids=["coo", "csr", "nested", "quantized"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_number_that_is_not_kept_as_such_is_refused_in_one_line(make, found):
    """Nothing but a plain strided tensor can be copied into the ring."""
    losses = gapless.DeferredLoss("cpu")

    with pytest.raises(gapless.LossError, match=f"^`loss` must be .*{found}"):
        losses.add(make())

    assert losses.num_added == 0


@pytest.mark.parametrize("weights", [(1e308, 1e308), (math.inf, -math.inf)])
def test_weights_beyond_float64_give_a_mean_that_says_so(weights):
    """Their sum is infinite or no number; to ask for the mean is no error."""
    losses = gapless.DeferredLoss("cpu")
    for weight in weights:
        losses.add(1.0, weight=weight)

    assert math.isnan(losses.mean())


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")
def test_a_compiled_step_may_add_its_loss():
    """The compiler follows `add`, and leaves to Python what it cannot follow."""
    losses = gapless.DeferredLoss("cpu")

    @torch.compile(backend="eager")
    def step(x):
        losses.add(x.sum())

    for number in range(3):
        step(torch.full((2,), float(number)))

    losses.drain()
    assert losses.history == [0.0, 2.0, 4.0]
