"""Which cases of the slow tests `make check` runs: of each test a share, so that more cases take no longer."""

from __future__ import annotations

import os
from collections import defaultdict

import pytest


# Of a slow test with more cases, so many, spread over their names: the same ones each time.
MOST_CASES = 24
ALL_CASES = "GAPLESS_ALL_CASES"


def spread(items, most):
    """Return so many of some items, from the first to the last, in their order."""
    if len(items) <= most:
        return list(items)
    return [items[number * (len(items) - 1) // (most - 1)] for number in range(most)]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Leave the other cases out, where nothing but "the slow tests" was asked for."""
    asks_for_more = (
        os.environ.get(ALL_CASES) == "1"
        or config.option.markexpr != "slow"
        or config.option.keyword
        or any("::" in argument for argument in config.args)
    )
    if asks_for_more:
        return
    of_test = defaultdict(list)
    for item in sorted(items, key=lambda item: item.nodeid):
        of_test[item.path, getattr(item, "originalname", item.name), item.parent].append(item)
    kept = {id(item) for cases in of_test.values() for item in spread(cases, MOST_CASES)}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]
