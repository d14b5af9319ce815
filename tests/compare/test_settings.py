"""Settings that cannot be are refused before anything runs."""

from __future__ import annotations

import math

import pytest

from gapless.compare.settings import Rounds, RunSettings, VerifySettings
from gapless.errors import UserError
from toys import CPU, compare_settings


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"plans": []}, "`plans` must name at least one plan"),
        ({"plans": ["fast"]}, "unknown plan 'fast'"),
        ({"plans": ["gapless", "events", "gapless"]}, "`plans` names gapless more than once"),
        ({"steps": 0}, "`steps` must be at least 1, but is 0"),
        ({"rounds": 0}, "`rounds` must be at least 1"),
        ({"warmup_rounds": 0}, "`warmup_rounds` must be at least 1, but is 0"),
        ({"verify_steps": -1}, "`verify_steps` must be at least 0, but is -1"),
    ],
)
def test_a_comparison_that_cannot_be(changed, message):
    """The parameter is named with what it is and what it may be."""
    with pytest.raises(UserError, match=message):
        compare_settings(**changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 0}, "`steps` must be at least 1, but is 0"),
        ({"plans": ("fast",)}, "unknown plan 'fast'"),
        ({"against": "slow"}, "unknown plan 'slow'"),
    ],
)
def test_a_verification_that_cannot_be(changed, message):
    """Plans and steps are checked before the workload is built."""
    with pytest.raises(UserError, match=message):
        VerifySettings(run=RunSettings(device=CPU), **changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": -1}, "`seed` must be 0 to .*, but is -1"),
        ({"seed": 2**63}, "`seed` must be 0 to"),
        ({"tolerance": -0.1}, "`tolerance` must be a finite number of 0 or more, but is -0.1"),
        ({"tolerance": math.nan}, "`tolerance` must be .*, but is nan"),
        ({"tolerance": math.inf}, "`tolerance` must be .*, but is inf"),
    ],
)
def test_a_run_that_cannot_be(changed, message):
    """Seed and tolerance have to be in their range."""
    with pytest.raises(UserError, match=message):
        RunSettings(device=CPU, **changed)


def test_numbers_that_are_not_given_are_the_devices_defaults():
    """A CPU takes shorter and fewer rounds than a GPU."""
    found = Rounds.on(CPU, steps=7, rounds=None)

    assert (found.steps, found.rounds) == (7, Rounds.for_cpu().rounds)
    assert Rounds.for_gpu().steps > Rounds.for_cpu().steps
