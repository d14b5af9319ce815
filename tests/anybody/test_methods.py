"""What a loop calls of a captured module is captured, whatever it is."""

from __future__ import annotations

import pytest

from anybody.harness import judge, params
from anybody.methods import case as CASES


@pytest.mark.quick_cases(12)
@pytest.mark.parametrize("case", params(CASES))
def test_methods(case):
    """The same bits as written, captured or told the way that works."""
    assert judge(case) == []
