"""The soak lets every fault happen, and what it measures with finds what grows."""

from __future__ import annotations

import pytest

from faults.resources import FEWEST, PERIOD, WARM_UP, Held, Thirds
from faults.soak import ENDINGS, SURVIVED, Soak, run_soak


WARMING_UP = int(WARM_UP / PERIOD)
FLAT = {"memory_bytes": 300 << 20, "threads": 5, "descriptors": 9}


def thirds_of(number, **growth):
    """Return what is made of a process that holds more at each look, by name."""
    looks = [
        {**FLAT, **{n: FLAT[n] + by * at for n, by in growth.items()}} for at in range(number)
    ]
    return Thirds([Held(**look) for look in looks])


@pytest.mark.slow
@pytest.mark.xdist_group("processes: soak")
def test_every_fault(launcher, tmp_path):
    """A run that everything happens to ends as one that nothing interrupted."""
    soak = Soak(launcher, tmp_path, seed=1, kilobytes=16_000)
    lines = []
    try:
        wrong = run_soak(soak, seconds=60, longest=1, count=len(ENDINGS), report=lines.append)
    finally:
        soak.close()

    assert wrong == [], "\n".join(lines)
    expected = [*ENDINGS, *(SURVIVED if soak.disk else SURVIVED[:1])]
    assert [fault for fault in expected if not any(fault in line for line in lines)] == []


@pytest.mark.parametrize(
    ("name", "growth"), [("memory_bytes", 1 << 20), ("threads", 1), ("descriptors", 1)]
)
def test_what_grows_is_found(name, growth):
    """Memory, threads or descriptors that grow with each look are named."""
    [found] = thirds_of(WARMING_UP + 3 * FEWEST, **{name: growth}).growth()

    assert found.startswith(f"{name.removesuffix('_bytes')} grew from ")


def test_what_stays_flat():
    """What does not grow is judged, and nothing is found."""
    thirds = thirds_of(WARMING_UP + FEWEST)

    assert thirds.is_judged
    assert thirds.growth() == []
    assert str(thirds) == "300.0 to 300.0 MiB, 5 threads, 9 descriptors"


def test_what_is_held_for_a_moment_is_no_growth():
    """Batches that come from workers bring descriptors, which are closed again."""
    looks = [Held(300 << 20, 5, 9)] * (WARMING_UP + 3 * FEWEST)
    looks[-5] = Held(300 << 20, 5, 49)

    assert Thirds(looks).growth() == []


def test_a_short_life_is_not_judged():
    """What grows while a process warms up says nothing."""
    thirds = thirds_of(WARMING_UP + FEWEST - 1, memory_bytes=100 << 20)

    assert not thirds.is_judged
    assert thirds.growth() == []
