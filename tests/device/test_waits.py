"""Counting, forbidding and allowing host waits: public functions, on the simulated device."""

from __future__ import annotations

import re
import threading

import pytest
import torch

import gapless
from gapless.device.waits import declared_reason
from gapless.pipeline.host_waits import HostWaits
from gapless.testing import SimulatedDevice, simulate


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="lazy") as device:
        yield device


@pytest.fixture
def x(device):
    return device.device_buffer(16).view(torch.float32).fill_(2.0)


def test_waits_are_counted_by_call_and_line(device, x):
    """A loop's waits count one by one and share one line of the report."""
    with gapless.count_waits(device) as waits:
        for _ in range(3):
            x[0].item()
        x.tolist()
    x.tolist()

    assert waits.count == 4
    assert list(waits.by_site.values()) == [3, 1]
    assert re.search(
        r"test_waits\.py:\d+: aten\._local_scalar_dense\.default, 3 times", str(waits)
    )


def test_waits_of_gapless_are_counted_like_any_other(device, x):
    """A wait through `HostWaits` has a reason of its own account, and is still a wait."""
    with gapless.count_waits(device) as waits:
        HostWaits(device).wait_stream(device.current_stream(), reason="test")

    assert waits.count == waits.num_undeclared == 1


def test_allowed_waits_are_counted_under_their_reason(device, x):
    """The total holds every wait; declared ones are listed by reason too."""
    with gapless.count_waits(device) as waits:
        x[0].item()
        with gapless.allow_waits("metrics"):
            x[1].item()
            x[2].item()

    assert (waits.count, waits.num_undeclared) == (3, 1)
    assert waits.by_reason == {"metrics": 2}
    assert "declared as 'metrics': 2 times" in str(waits)


def test_nothing_is_counted_on_a_cpu():
    """The host never waits for a CPU."""
    with gapless.count_waits("cpu") as waits, gapless.forbid_waits("cpu"):
        torch.ones(1).item()

    assert waits.count == 0


def test_counts_may_be_nested(device, x):
    """Each count holds the waits of its own body."""
    with gapless.count_waits(device) as outer:
        x[0].item()
        with gapless.count_waits(device) as inner:
            x[1].item()

    assert (outer.count, inner.count) == (2, 1)


def test_a_body_without_waits_may_forbid_them(device, x):
    """Work that is only queued is no wait."""
    with gapless.forbid_waits(device):
        x += 1


def test_a_forbidden_wait_is_named_with_its_line_when_the_body_has_ended(device, x):
    """The error lists every line that waited, not only the first."""
    reached = []
    with pytest.raises(gapless.ForbiddenWaitError) as caught, gapless.forbid_waits(device):
        x[0].item()
        x.tolist()
        reached.append("end")

    assert reached == ["end"]
    assert len(re.findall(r"test_waits\.py:\d+: ", str(caught.value))) == 2
    assert "allow_waits(reason)" in str(caught.value)


def test_a_forbidden_wait_is_a_failed_assertion_and_an_error_of_gapless():
    """Test frameworks report a failure; a caller can catch all errors of gapless at once."""
    assert issubclass(gapless.ForbiddenWaitError, AssertionError)
    assert issubclass(gapless.ForbiddenWaitError, gapless.GaplessError)


def test_waits_of_gapless_are_forbidden_too(device, x):
    """Only `allow_waits` lifts the ban: a reason in gapless' own account does not."""
    losses = gapless.DeferredLoss(device)
    losses.add(x[0])

    with pytest.raises(gapless.ForbiddenWaitError), gapless.forbid_waits(device):
        losses.mean()
    with gapless.forbid_waits(device), gapless.allow_waits("end of epoch"):
        assert losses.mean() == 2.0


def test_an_allowed_wait_is_not_forbidden(device, x):
    """The ban is lifted for the body of `allow_waits` and holds again behind it."""
    with gapless.forbid_waits(device), gapless.allow_waits("metrics"):
        x[0].item()
    with pytest.raises(gapless.ForbiddenWaitError, match="1 host wait\n"):  # noqa: SIM117
        with gapless.forbid_waits(device):
            with gapless.allow_waits("metrics"):
                x[0].item()
            x[1].item()


def test_the_innermost_of_forbid_and_allow_decides(device, x):
    """A ban inside a declared wait holds, and the declaration is in force again behind it."""
    with gapless.count_waits(device) as waits, gapless.allow_waits("outer"):
        with pytest.raises(gapless.ForbiddenWaitError), gapless.forbid_waits(device):
            x[0].item()
        x[1].item()

    assert waits.by_reason == {"outer": 1}
    assert waits.count == 2


def test_allowed_waits_do_not_raise_on_a_device_that_forbids_them(device, x):
    """`allow_waits` also lifts the device's own ban, which raises at once."""
    with device.forbid_waits():
        with gapless.allow_waits("metrics"):
            x[0].item()
        with pytest.raises(RuntimeError, match="makes the host wait"):
            x[0].item()
    with gapless.allow_waits("metrics"), device.forbid_waits():  # noqa: SIM117
        with pytest.raises(RuntimeError, match="makes the host wait"):
            x[0].item()


def test_a_check_may_allow_waits_where_the_simulation_forbids_them():
    """A loop under `simulate(forbid_waits=True)` declares its waits without knowing the device."""

    def check(device):
        value = device.device_buffer(4).view(torch.float32).fill_(2.0)
        with gapless.allow_waits("metrics"):
            assert value.item() == 2.0

    assert not simulate(check, seeds=2, forbid_waits=True).failures


def test_no_wait_is_allowed_inside_a_capture(device, x):
    """A capture runs nothing, so there is nothing to wait for."""

    def work(_):
        with gapless.allow_waits("metrics"):
            x[0].item()

    with device.use_stream(device.create_stream()), pytest.raises(RuntimeError, match="capture"):
        device.capture(work)


def test_a_declaration_holds_for_its_own_thread():
    """Another thread's waits are not declared by this one."""
    seen = []
    with gapless.allow_waits("metrics"):
        other = threading.Thread(target=lambda: seen.append(declared_reason()))
        other.start()
        other.join()
        seen.append(declared_reason())
    seen.append(declared_reason())

    assert seen == [None, "metrics", None]


def test_a_declaration_ends_when_its_body_raises():
    """What is raised inside leaves no declaration behind."""
    with pytest.raises(ZeroDivisionError), gapless.allow_waits("metrics"):
        raise ZeroDivisionError

    assert declared_reason() is None


def test_an_exception_of_the_body_is_not_hidden_by_its_waits(device, x):
    """The caller sees what the body raised, not the forbidden wait."""
    with pytest.raises(ZeroDivisionError), gapless.forbid_waits(device):
        x.tolist()
        raise ZeroDivisionError


def test_a_reason_is_needed():
    """An empty text declares nothing."""
    with pytest.raises(ValueError, match="needs a reason"), gapless.allow_waits(""):
        pass
