"""Which cases `make test` and `make check` run: of some tests a share, so that more cases take no longer.

Of a test marked `quick_cases(8)` eight cases are quick, and the others are slow; `quick_tests(30)` of a
file says so of all its tests together. `make check` runs all slow tests, but of each one in
`tests/hazards` and `tests/graphs` 4 cases.
"""

from __future__ import annotations

import os
from collections import defaultdict

import pytest


# Of a slow test of these rooms with more cases, so many, spread over their names: always the same.
ROOMS = ("hazards", "graphs")
MOST_CASES = 4
ALL_CASES = "GAPLESS_ALL_CASES"


def spread(items, most):
    """Return so many of some items, from the first to the last, in their order."""
    if len(items) <= most:
        return list(items)
    return [items[number * (len(items) - 1) // (most - 1)] for number in range(most)]


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    """Make all but a share of some tests' cases slow; leave some slow ones out.

    None is left out where more was asked for than "the slow tests".
    """
    for name, parts in (("quick_cases", _of_each_test), ("quick_tests", _of_each_file)):
        for cases in parts(item for item in items if not item.get_closest_marker("slow")):
            if mark := cases[0].get_closest_marker(name):
                quick = {id(item) for item in spread(cases, *mark.args)}
                for item in cases:
                    if id(item) not in quick:
                        item.add_marker(pytest.mark.slow)
    result = yield
    asks_for_more = (
        os.environ.get(ALL_CASES) == "1"
        or config.option.markexpr != "slow"
        or config.option.keyword
        or any("::" in argument for argument in config.args)
    )
    if not asks_for_more:
        kept = {
            id(item)
            for cases in _of_each_test(items)
            for item in (spread(cases, MOST_CASES) if _has_a_share(config, cases[0]) else cases)
        }
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
        items[:] = [item for item in items if id(item) in kept]
    return result


def _has_a_share(config, item):
    """Whether a test is in one of the rooms of which `make check` runs some cases."""
    path = item.path.relative_to(config.rootpath)
    return any(room in path.parts for room in ROOMS)


def _of_each_test(items):
    """Return the cases of each test, in the order of their names."""
    return _parts(
        items, lambda item: (item.path, getattr(item, "originalname", item.name), item.parent)
    )


def _of_each_file(items):
    """Return all cases of all tests of each file, in the order of their names."""
    return _parts(items, lambda item: item.path)


def _parts(items, part_of):
    found = defaultdict(list)
    for item in sorted(items, key=lambda item: item.nodeid):
        found[part_of(item)].append(item)
    return found.values()
