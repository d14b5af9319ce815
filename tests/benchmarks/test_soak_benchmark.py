"""The soak of captures: samples, and whether they grow."""

from __future__ import annotations

import json

import pytest
from benchmarks.soak import FIGURES, MOST_RISE, main, memory, rise_of


MIB = 1 << 20


def test_what_rises_at_first_or_in_turns_is_flat():
    """What caches take in the first quarter does not count, nor what is given back each time."""
    settled = [50.0, 90.0, 120.0, 140.0] + [150.0] * 12
    in_turns = [188.0, 203.0, 208.0] * 5 + [208.0]

    assert rise_of(settled) == 0
    assert all(rise_of(in_turns[: 13 + more]) == 0 for more in range(4))


@pytest.mark.parametrize(
    ("is_kept", "is_flat"), [(True, False), (False, True)], ids=["kept", "in turns"]
)
def test_a_list_that_grows_is_told_apart(is_kept, is_flat):
    """Memory that is kept is told; as much that is given back, and other sizes in turn, is not."""
    kept, found = [], []
    for number in range(24):
        kept.append(bytearray((5, 10, 15)[number % 3] * MIB))
        found.append(memory("simulated").get("heap_mib"))
        if not is_kept:
            kept.clear()
    if None in found:
        pytest.skip("the C library does not tell what it has given out")

    assert (rise_of(found) < MOST_RISE) == is_flat


@pytest.mark.slow
def test_a_soak_trains_drops_and_audits(capsys):
    """On the simulated device, as long as it takes to see an audit; nothing differs."""
    main(["--device", "simulated", "--seconds", "1", "--every", "1", "--epochs", "2"])

    first, *_, last = capsys.readouterr().out.splitlines()
    sample = json.loads(first)
    assert sample["objects"] == 1
    assert sample["replays"] > 0
    assert sample["audits"] == sample["equal"] > 0
    assert {"rss_mib", "num_objects"} <= set(sample) & set(FIGURES)
    assert last.endswith("0 differences found by audits")
