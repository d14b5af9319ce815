"""Versions of tensors, which a replay has to count up as a run does."""

from __future__ import annotations

import torch

from gapless.graphs.replay.versions import VersionsBefore, count_up, version_of


def test_what_a_run_counts_is_counted_again():
    """As often, for each tensor."""
    once, twice, never = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    before = VersionsBefore([once, twice, never, twice])

    once.add_(1)
    twice.add_(1).mul_(2)
    counted = before.counted()
    versions = [version_of(one) for one in (once, twice, never)]
    count_up(counted)

    assert [version_of(one) for one in (once, twice, never)] == [
        versions[0] + 1,
        versions[1] + 2,
        versions[2],
    ]


def test_tensors_of_inference_mode_have_none():
    with torch.inference_mode():
        tensor = torch.zeros(2)
        before = VersionsBefore([tensor])
        tensor.add_(1)

    assert before.counted() == []
    assert version_of(tensor) == -1
    count_up([])
