"""What watches the rest of a block of autocast is in nobody's way."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import BaseTorchFunctionMode
from torch.utils._device import DeviceContext

from gapless.device.torch_private import next_sequence_number
from gapless.graphs.in_place.shared_casts import AutocastBlocks, watch_rest_of_block


@pytest.fixture(autouse=True)
def nothing_stays_compiled():
    """Let each test compile anew."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def modes():
    number = torch._C._len_torch_function_stack()
    return [torch._C._get_function_stack_at(index) for index in range(number)]


def in_autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def watched(model, x, sites=None):
    since = next_sequence_number()
    out = model(x)
    leave = watch_rest_of_block(
        out, since=since, on_use=[].append if sites is None else sites.append
    )
    return out, leave


def test_a_mode_that_ends_within_the_block_ends_itself():
    model, x, mode = torch.nn.Linear(4, 4), torch.ones(2, 4), BaseTorchFunctionMode()
    with in_autocast():
        with mode:
            watched(model, x)
        assert mode not in modes()
    assert modes() == []


def test_a_mode_that_outlives_the_block_stays():
    model, x, mode = torch.nn.Linear(4, 4), torch.ones(2, 4), BaseTorchFunctionMode()
    device = DeviceContext("cpu")
    with device:
        block = in_autocast()
        block.__enter__()
        watched(model, x)
        with mode:
            block.__exit__(None, None, None)
            assert modes() == [device, mode]
        assert modes() == [device]
    assert modes() == []


def test_a_use_is_seen_below_the_modes_of_others():
    model, x, sites = torch.nn.Linear(4, 4), torch.ones(2, 4), []
    with in_autocast():
        watched(model, x, sites)
        with BaseTorchFunctionMode():
            model(x)
    (site,) = sites
    assert site.startswith("test_shared_casts.py:")


@pytest.mark.filterwarnings("default")
def test_code_is_not_compiled_anew_for_each_tensor_that_is_looked_at():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    loss_of = torch.compile(lambda out: F.relu(out).float().sum(), fullgraph=True, backend=backend)
    model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    for _ in range(6):
        with in_autocast():
            out, _ = watched(model, x)
            loss_of(out)
            loss_of(out * 2)
    assert len(graphs) <= 2
    loss_of(out)
    assert len(graphs) <= 3


def test_it_can_end_before_the_block():
    model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    with in_autocast():
        _, leave = watched(model, x)
        leave()
        assert modes() == []


def test_an_evaluation_in_one_block_takes_no_graph_from_training():
    blocks = AutocastBlocks("cpu", refuse=lambda refusal: None)
    for _ in range(7):
        with in_autocast():
            runs_as_written = blocks.begin_call()
    assert not runs_as_written
    with torch.no_grad(), in_autocast():
        assert blocks.begin_call()
        assert blocks.begin_call()
    with in_autocast():
        assert not blocks.begin_call()


def test_training_behind_an_evaluation_in_one_block_runs_as_written():
    blocks = AutocastBlocks("cpu", refuse=lambda refusal: None)
    for _ in range(7):
        with in_autocast():
            blocks.begin_call()
    with in_autocast():
        with torch.no_grad():
            blocks.begin_call()
        assert blocks.begin_call()
