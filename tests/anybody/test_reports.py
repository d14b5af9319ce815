"""What public reports showed does not come back in other forms."""

from __future__ import annotations

import pytest

from anybody.harness import judge, params
from anybody.reports import case as CASES


@pytest.mark.quick_cases(10)
@pytest.mark.parametrize("case", params(CASES))
def test_reports(case):
    """The same bits as written, captured or told the way that works."""
    assert judge(case) == []
