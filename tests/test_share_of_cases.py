"""A share of the cases of some tests, spread over all of them."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from share_of_cases import ALL_CASES, MOST_CASES, spread


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

@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("case", range(40))
def test_mostly_slow(case):
    pass
"""


OF_ONE_FILE = """
import pytest

pytestmark = pytest.mark.quick_tests(3)

@pytest.mark.parametrize("case", range(9))
def test_many(case):
    pass

def test_one():
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
        (["-m", "not slow"], "0", 5 + 3 + 5),
        (["-m", "slow"], "0", 3 * MOST_CASES + 3 + 100 + 3 + 35),
        (["-m", "slow"], "1", 100 + 3 + 35 + 7 + 100 + 3 + 35),
        (["-m", "slow", "-k", "graphs and test_made_up and test_many"], "0", 100),
        ([], "0", 100 + 3 + 40 + 10 + 100 + 3 + 40),
    ],
)
def test_all_cases_run_where_they_are_asked_for(
    tmp_path, monkeypatch, options, all_cases, expected
):
    """By name, or by the variable, or where their room has no share; a test of few cases has all."""
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs" / "test_made_up.py").write_text(MANY)
    (tmp_path / "graphs" / "test_of_one_file.py").write_text(OF_ONE_FILE)
    (tmp_path / "test_of_another_room.py").write_text(MANY)
    (tmp_path / "conftest.py").write_text("from share_of_cases import *\n")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n  slow\n  quick_cases\n  quick_tests\n"
    )
    monkeypatch.setenv(ALL_CASES, all_cases)
    monkeypatch.setenv("PYTHONPATH", str(HERE))

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *options, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.count("::test_") == expected
