"""Loops of users on two ranks: with gapless they are as they were, or refused on all ranks."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from ranks import user_loops
from ranks.groups import fork_ranks
from ranks.user_loops import LOOPS


pytestmark = pytest.mark.xdist_group("processes: user loops")


# On a CPU nothing is captured: there these loops show that captures do no harm.
SLOW = {name for name in LOOPS if name.startswith("captured")}


@pytest.fixture(scope="session")
def results(launcher_of_session, tmp_path_factory):
    """Run loops on two gloo ranks, in one group for all that are quick, and one for all others."""
    program = Path(user_loops.__file__)

    @functools.cache
    def of_group(is_slow):
        folder = tmp_path_factory.mktemp("user-loops")
        names = [name for name in LOOPS if (name in SLOW) == is_slow]
        arguments = [program, "cpu", folder, *names]
        group = fork_ranks(launcher_of_session, *arguments, folder=folder / "ranks")
        try:
            group.end().check_done()
        except AssertionError as error:
            return results_in(folder), str(error)
        return results_in(folder), ""

    return lambda name: of_group(name in SLOW)


def results_in(folder):
    """Return what came of each loop on each rank, and what the rank saw."""
    found = {}
    for path in sorted(folder.glob("rank-*.jsonl")):
        for line in path.read_text().splitlines():
            name, word, agreed = json.loads(line)
            found.setdefault(name, []).append((word, agreed))
    return found


def check_loop(name, found):
    """Check that all ranks came to one expected word, and saw the same."""
    words = {word for word, _ in found}
    assert len(words) == 1, f"ranks differ: {found}"
    assert words <= LOOPS[name][1], words
    assert all(agreed == found[0][1] for _, agreed in found), f"ranks differ: {found}"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in LOOPS]
)
def test_a_loop_on_two_ranks(name, results):
    """The word is an expected one, and the same on both."""
    found, wrong = results(name)

    assert len(found.get(name, ())) == 2, f"a rank did not come to the end of this loop: {wrong}"
    check_loop(name, found[name])
