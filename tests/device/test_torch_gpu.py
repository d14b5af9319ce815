"""The thread of torch that runs the backward passes of a GPU."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from gapless.device.torch_gpu import call_on_backward_thread


@pytest.mark.parametrize("mode", [nullcontext(), torch.device("cpu")], ids=["plain", "mode"])
def test_a_call_on_the_backward_thread_is_no_backward_pass_of_a_watched_run(monkeypatch, mode):
    """Who watches replaces these; with cudnn.benchmark every module in place was refused for our own call."""
    for name in ("grad", "backward"):
        monkeypatch.setattr(torch.autograd, name, pytest.fail)
    called = []
    with mode:
        call_on_backward_thread(
            lambda: called.append(torch.is_grad_enabled()), torch.device("cpu")
        )
    assert len(called) == 1
