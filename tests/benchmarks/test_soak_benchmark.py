"""The soak of captures: samples, and the line through their second half."""

from __future__ import annotations

import json

import pytest
from benchmarks.soak import FIGURES, main, rise_of


def test_a_line_through_the_second_half_tells_growth():
    """What happened in the first half does not count."""
    settled = [(x, 50.0 + 10 * x) for x in range(10)] + [(x, 150.0) for x in range(10, 20)]
    growing = [(x, 100.0) for x in range(10)] + [(x, 100.0 + x) for x in range(10, 20)]

    assert rise_of(settled) == pytest.approx(0.0)
    assert rise_of(growing) == pytest.approx(9.0 / 114.5)


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
