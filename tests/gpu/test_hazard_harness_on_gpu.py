"""The cases of `hazards` accept the plain loop on a GPU."""

from __future__ import annotations

import pytest

from hazards.harness import GPU, judge_the_plain_loop
from hazards.themes import CASES


pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "one",
    [pytest.param(one, id=str(one)) for one in CASES if GPU in one.devices and one.holds_plainly],
)
def test_the_plain_loop_is_right(one):
    """A loop without any hazard passes, twice with the same bits."""
    assert judge_the_plain_loop(one, GPU) == []
