"""The benchmark of prefetch runs everywhere, and keeps every figure."""

from __future__ import annotations

import torch

from benchmarks import prefetch_time


CPU = torch.device("cpu")


def test_every_case_is_timed_with_and_without_prefetch(capsys):
    """Each case is taken from a list and from a generator, and shown in a line."""
    found = prefetch_time.host_times(CPU, rounds=1, count=4)

    assert {row["loader"] for row in found} == {"list", "generator"}
    assert len(found) == len(capsys.readouterr().out.splitlines()) == 10
    for row in found:
        assert row["to host us"]["median"] > 0
        assert row["prefetch total us"]["median"] >= row["prefetch host us"]["median"] > 0
