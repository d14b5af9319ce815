"""Whatever happens to a run while it trains, it ends in a word or goes on, and no bit is lost."""

from __future__ import annotations

import pytest

from faults.faults import FAULTS, try_fault


pytestmark = pytest.mark.xdist_group("processes: faults")


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=() if fault.is_quick else pytest.mark.slow)
        for fault in FAULTS
    ],
)
def test_a_fault(launcher, data, finished, tmp_path, fault):
    """It ends with its code and one line, leaves nobody behind, and a resume has the same bits."""
    _, _, wrong = try_fault(fault, launcher, tmp_path, data=data, reference=finished)

    assert wrong == []
