"""Optimizers as frameworks make them have the same bits in few launches."""

from __future__ import annotations

import pytest

from anybody.harness import judge, params
from anybody.optimizers import case as CASES


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("case", params(CASES))
def test_optimizers(case):
    """The same bits as written, captured or told the way that works."""
    assert judge(case) == []
