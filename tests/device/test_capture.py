"""Captures on the CPU, where a graph is a function that is called again."""

from __future__ import annotations

import torch

from gapless.device.cpu import CpuDevice


def test_on_a_cpu_what_is_cut_out_runs_in_its_place():
    """Nothing runs in the capture; a replay runs all in order."""
    x = torch.zeros(4)

    def work(cut):
        x.add_(1)
        cut(lambda: x.mul_(10))
        x.add_(5)

    graph = CpuDevice().capture(work)
    assert x.tolist() == [0.0] * 4
    graph.replay()

    assert x.tolist() == [15.0] * 4
