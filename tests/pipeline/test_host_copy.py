"""Copies of structures in host memory."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import gapless
from gapless.checkpoint import CheckpointStore, pack, unpack
from gapless.device.find import find_device
from gapless.pipeline.host_copy import HostCopy
from gapless.pipeline.host_waits import HostWaits
from gapless.testing.simulated.simulated_device import SimulatedDevice


@dataclass
class Part:
    tensor: torch.Tensor
    name: str


@pytest.fixture(params=["cpu", "simulated"])
def device(request):
    if request.param == "cpu":
        yield find_device("cpu")
        return
    with SimulatedDevice(scheduler="lazy") as simulated:
        yield simulated


def on(device, values, dtype=torch.float32):
    """Return a tensor in the device's memory."""
    if not device.is_accelerator:
        return torch.tensor(values, dtype=dtype)
    given = torch.tensor(values, dtype=dtype)
    return device.device_buffer(given.numel() * dtype.itemsize).view(dtype)[:].copy_(given)


def copied(value, device):
    copy = HostCopy(value, device=device)
    copy.wait(HostWaits(device), reason="test")
    return copy.value


def test_a_structure_comes_with_all_its_tensors_and_values(device):
    """Tensors of several dtypes on either side, in any container, beside plain values."""
    value = {
        "list": [on(device, [1.0, 2.0]), 3, None],
        "part": Part(on(device, [4, 5], torch.int64), "name"),
        "here": (torch.tensor([6.0]), "text"),
        "flags": on(device, [True, False, True], torch.bool),
    }

    result = copied(value, device)

    assert result["list"][0].tolist() == [1.0, 2.0]
    assert result["list"][1:] == [3, None]
    assert result["part"].tensor.tolist() == [4, 5]
    assert result["part"].name == "name"
    assert result["here"][0].tolist() == [6.0]
    assert result["flags"].tolist() == [True, False, True]
    found = [result["list"][0], result["part"].tensor, result["here"][0], result["flags"]]
    assert [one.dtype for one in found] == [torch.float32, torch.int64, torch.float32, torch.bool]


def test_nothing_is_shared_with_what_was_copied(device):
    """The original may change, on the device or on the host; a copy asks for no gradients."""
    weight, other = on(device, [1.0]), torch.tensor([2.0], requires_grad=True)
    copy = HostCopy([weight, other], device=device)
    weight.fill_(7.0)
    with torch.no_grad():
        other.fill_(8.0)
    copy.wait(HostWaits(device), reason="test")

    assert copy.value == [torch.tensor([1.0]), torch.tensor([2.0])]
    assert not any(tensor.requires_grad for tensor in copy.value)


def test_shapes_are_kept_and_copies_are_dense(device):
    """Numbers, empty tensors and views with strides of their own."""
    matrix = on(device, range(6)).view(2, 3)
    result = copied([matrix[0, 1], matrix.t(), matrix[:0]], device)

    assert [tensor.shape for tensor in result] == [(), (3, 2), (0, 3)]
    assert result[1].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert all(tensor.is_contiguous() for tensor in result)


def test_a_tensor_that_occurs_twice_is_copied_once(device):
    """As in the state of an optimizer whose groups share a rate."""
    rate = on(device, [0.5])
    first, second = copied([rate, rate], device)

    assert first is second


def test_a_copy_can_be_saved_and_loaded(device, tmp_path):
    """Tensors of several dtypes, cut from common blocks."""
    weights = {"a": on(device, [1.0, 2.0]), "b": on(device, [3.0]).view(1, 1)}
    state = copied({"model": weights, "steps": on(device, [4], torch.int32), "pairs": {}}, device)
    CheckpointStore(tmp_path).save(1, *pack(state))

    found = CheckpointStore(tmp_path).load_newest()
    loaded = unpack(found.tensors, found.meta)
    assert loaded["model"]["a"].tolist() == [1.0, 2.0]
    assert loaded["model"]["b"].tolist() == [[3.0]]
    assert loaded["steps"].tolist() == [4]


def test_what_cannot_be_copied_is_named(device):
    """A structure that holds something else is refused, not copied in part."""
    with pytest.raises(gapless.BatchError, match="cannot"):
        HostCopy({"generator": object()}, device=device)
