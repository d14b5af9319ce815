"""What listens to operators does not keep torch from compiling what is called meanwhile."""

from __future__ import annotations

import pytest
import torch

from gapless.device.cuda_waits import _BlockingCopies
from gapless.device.find import find_device
from gapless.testing.checks import _SlowCopies


def blocking_copies():
    return _BlockingCopies(lambda what, site: None)


def slow_copies():
    device = find_device("cpu")
    return _SlowCopies(device, device.current_stream(), 0.0)


@pytest.mark.parametrize("mode", [blocking_copies, slow_copies])
def test_a_function_called_first_inside_is_compiled(mode):
    """Up to torch 2.13 it would else run eagerly for ever, and in 2.14 as long as the mode is on."""
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph

    torch.compiler.reset()
    double = torch.compile(lambda x: x * 2, backend=backend)
    x = torch.ones(3)
    with mode():
        assert double(x).tolist() == [2.0, 2.0, 2.0]
    double(x)

    assert len(compiled) == 1
