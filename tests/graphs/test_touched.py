"""Which memory of a device the runs of a step are seen to read and write."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from gapless.device.cpu import CpuDevice
from gapless.graphs.reads.touched import TouchWatch
from gapless.testing.simulated.simulated_device import SimulatedDevice
from toy_steps import on


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        yield device


def memory_of(tensors):
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def test_what_was_there_before_is_told_from_what_a_run_makes(device):
    """Weights that are read, a buffer that is written; nothing that an operation made."""
    weight, buffer = on(device, torch.ones(3)), on(device, torch.ones(3))
    with TouchWatch(device) as seen:
        made = weight * 2
        buffer.add_(made)
        made.mul_(2)

    assert memory_of(seen.read) == memory_of([weight])
    assert memory_of(seen.written) == memory_of([buffer])


def test_a_write_into_a_view_is_seen_where_reads_are_not(device):
    """To take the view reads nothing, and makes no memory."""
    buffer = on(device, torch.ones(3))
    with TouchWatch(device, sees_reads=False) as seen:
        buffer.view(3, 1)[0].mul_(2)
        buffer.detach()[1:].mul_(2)

    assert memory_of(seen.written) == memory_of([buffer])


def test_backward_passes_and_optimizers_are_seen(device):
    """A gradient that is there before is written, and so are momenta and weights."""
    weight = torch.nn.Parameter(on(device, torch.ones(3)))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)

    def step():
        (weight * 2).sum().backward()
        optimizer.step()

    step()
    with TouchWatch(device) as seen:
        step()
    momentum = optimizer.state[weight]["momentum_buffer"]

    assert memory_of(seen.written) == memory_of([weight, weight.grad, momentum])
    assert memory_of(seen.read) <= memory_of([weight, weight.grad, momentum])
    assert not any(tensor.requires_grad for tensor in seen.written)


def test_running_averages_are_written(device):
    """The operator's schema says that it reads them."""
    norm = torch.nn.BatchNorm1d(3).to(device.torch_device)
    x = on(device, torch.randn(4, 3))
    norm(x)
    with TouchWatch(device) as seen:
        norm(x)

    expected = [norm.running_mean, norm.running_var, norm.num_batches_tracked]
    assert memory_of(seen.written) == memory_of(expected)


def test_operators_are_taken_apart_in_inference_mode(device):
    """What a module writes within one operator is seen there too."""
    norm = torch.nn.BatchNorm1d(3).to(device.torch_device)
    x = on(device, torch.randn(4, 3))
    norm(x)
    with torch.inference_mode(), TouchWatch(device) as seen:
        norm(x)

    assert memory_of([norm.running_mean]) <= memory_of(seen.written)


def test_views_of_one_tensor_are_one(device):
    """Views that overlap are joined, others are not."""
    whole = on(device, torch.zeros(8))
    with TouchWatch(device) as seen:
        whole[0:2].add_(1)
        whole[1:3].add_(1)
        whole[6:].add_(1)

    spans = sorted((t.storage_offset() * t.itemsize, t.nbytes) for t in seen.written)
    assert spans == [(0, 12), (24, 8)]


def test_generators_that_operations_are_given_are_known(device):
    """Each of them once."""
    generator = torch.Generator().manual_seed(1)
    x = on(device, torch.zeros(3))
    with TouchWatch(device) as seen:
        x.normal_(generator=generator)
        x.uniform_(generator=generator)

    assert [generator._cdata] == [found._cdata for found in seen.generators]


def test_an_operator_of_others_counts_as_writing_what_it_gets(device):
    """Its schema may be wrong."""
    with torch.library._scoped_library("touched_test", "DEF") as library:
        library.define("peek(Tensor x) -> Tensor")
        library.impl("peek", lambda x: x.clone(), "CompositeExplicitAutograd")
        x = on(device, torch.zeros(3))
        with TouchWatch(device) as seen:
            torch.ops.touched_test.peek(x)

    assert memory_of(seen.written) == memory_of([x])


# --- tensors in parts, and code that torch makes ---


def sparse():
    rows = torch.nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SGD(rows.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        rows(torch.tensor([1, 2])).sum().backward()
        optimizer.step()

    return step, [rows.weight]


def nested():
    parts = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    return (lambda: parts.mul_(2)), [parts.values(), parts.offsets()]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", [sparse, nested])
def test_tensors_in_parts_are_looked_into(kind):
    """Sparse gradients, and tensors that hold others."""
    step, expected = kind()
    step()
    with TouchWatch(CpuDevice()) as seen:
        step()

    assert memory_of(expected) == memory_of(seen.written)


def test_compiled_code_runs_as_without_the_watch():
    """Nothing is compiled anew, and nothing is taken apart."""
    runs = []

    def backend(module, inputs):
        del inputs
        runs.append("compiled")

        def run(*args):
            runs.append("run")
            return module(*args)

        return run

    function = torch.compile(lambda x: x.sin().sum(), backend=backend, fullgraph=True)
    x = torch.ones(3)
    function(x)
    with TouchWatch(CpuDevice()):
        function(x)

    assert runs == ["compiled", "run", "run"]


def test_operators_that_may_give_other_bits_each_time_are_named():
    """In backward passes too, and only those that are asked to add."""
    rows, weights = torch.tensor([0, 1, 0]), torch.ones(3)
    table = torch.ones(2, requires_grad=True)

    def work():
        torch.zeros(2).scatter_add_(0, rows, weights)
        torch.zeros(2).scatter_(0, rows, weights)
        torch.zeros(2).scatter_reduce(0, rows, weights, "amax")
        torch.bincount(rows)
        rows.cumsum(0)
        torch.index_select(table, 0, rows).sum().backward()

    with SimulatedDevice() as device, TouchWatch(device) as seen:
        work()
    assert seen.nondeterministic == ["aten.scatter_add", "aten.index_add"]

    with TouchWatch(CpuDevice()) as seen:
        work()
    assert seen.nondeterministic == []


@pytest.mark.parametrize("warn_only", [False, True])
def test_where_algorithms_are_deterministic_no_operator_is_named(numerics, warn_only):
    """Unless torch has none for it and only warns."""
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    values, rows = torch.ones(3), torch.tensor([0, 1, 0])

    with SimulatedDevice() as device, TouchWatch(device) as seen:
        values.scatter_reduce(0, rows, values, reduce="sum")
        torch.bincount(rows, values)

    assert seen.nondeterministic == (["aten.scatter_reduce", "aten.bincount"] if warn_only else [])


COMPILER = """
import sys
import torch
from gapless.device.cpu import CpuDevice
from gapless.graphs.reads.touched import TouchWatch

weight = torch.ones(2)
with TouchWatch(CpuDevice()) as look:
    weight.mul_(2.0)
assert len(look.written) == 1
assert "torch._dynamo" not in sys.modules, "loaded"
import torch._dynamo
with TouchWatch(CpuDevice()) as look:
    weight.mul_(2.0)
assert len(look.written) == 1
handler = TouchWatch.__torch_dispatch__.__wrapped__
assert handler.__dynamo_disable is not handler, "not disabled"
"""


def test_a_watched_run_loads_no_compiler():
    """That takes seconds, and a script without an optimizer of torch's needs none; once it is there it is asked."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILER], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
