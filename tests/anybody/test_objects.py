"""Objects of this call's tensors, and weights written by other ways than an optimizer, are captured."""

from __future__ import annotations

import pytest

from anybody.harness import judge, params
from anybody.objects import case as CASES


@pytest.mark.quick_cases(20)
@pytest.mark.parametrize("case", params(CASES))
def test_objects(case):
    """The same bits as written, captured or told the way that works."""
    assert judge(case) == []
