"""Which memory of a device the runs of a step are seen to read and write."""

from __future__ import annotations

import pytest
import torch

from gapless.graphs.touched import TouchWatch
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


def test_memory_that_is_let_go_in_the_body_is_held(device):
    """What a graph reads is not given to others while it is known."""
    state = {"h": on(device, torch.ones(3))}
    with TouchWatch(device) as seen:
        state["h"] = (state["h"] * 2).detach()
        others = [torch.zeros(3, device=device.torch_device) for _ in range(4)]

    assert not memory_of(seen.read) & memory_of(others)
    assert torch.equal(seen.read[0].cpu(), torch.ones(3))


def test_host_tensors_do_not_count(device):
    """Only what is on the device."""
    host = torch.zeros(3)
    with TouchWatch(device) as seen:
        host.add_(1)

    assert (seen.read, seen.written) == ([], [])


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
