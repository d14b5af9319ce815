"""A share of the cases of slow tests, spread over all of them."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from share_of_cases import ALL_CASES, spread


HERE = Path(__file__).parent
MANY = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("case", range(100))
def test_many(case):
    pass

@pytest.mark.slow
@pytest.mark.parametrize("case", range(3))
def test_few(case):
    pass
"""


@given(st.integers(1, 300), st.integers(2, 40))
def test_a_share_has_the_first_and_the_last_and_no_item_twice(num_items, most):
    """In their order, and as many as were asked for if there are so many."""
    found = spread(range(num_items), most)

    assert len(found) == min(num_items, most)
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (0, num_items - 1)


@pytest.mark.parametrize(
    ("options", "all_cases", "expected"),
    [
        (["-m", "slow"], "0", 24 + 3),
        (["-m", "slow"], "1", 100 + 3),
        (["-m", "slow", "-k", "test_many"], "0", 100),
        ([], "0", 100 + 3),
    ],
)
def test_all_cases_run_where_they_are_asked_for(
    tmp_path, monkeypatch, options, all_cases, expected
):
    """By name, or by the variable; a test of few cases always has all."""
    (tmp_path / "test_made_up.py").write_text(MANY)
    (tmp_path / "conftest.py").write_text("from share_of_cases import *\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    monkeypatch.setenv(ALL_CASES, all_cases)
    monkeypatch.setenv("PYTHONPATH", str(HERE))

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *options, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.count("::test_") == expected
