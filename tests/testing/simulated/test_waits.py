"""Hidden host waits of torch operations, and what copies do to the host."""

from __future__ import annotations

import copy
import inspect
import io

import pytest
import torch
from torch.nn import functional as F

from gapless.testing.simulated.simulated_device import SimulatedDevice


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="lazy") as device:
        yield device


@pytest.fixture
def x(device):
    return device.device_buffer(16).view(torch.float32).fill_(2.0)


def pinned_of(device, count):
    return device.host_buffer(4 * count, pinned=True).view(torch.float32)


WAITS = {
    "aten._local_scalar_dense.default": [
        lambda x: x[0].item(),
        lambda x: float(x[0]),
        lambda x: int(x[0]),
        lambda x: bool(x[0] > 1),
        lambda x: [1, 2, 3][x[0].long()],
        lambda x: 2.0 in x,
        lambda x: 1 if x.sum() else 0,
        lambda x: x.sum() in [8.0, 16.0],
        lambda x: x[0].is_nonzero(),
        lambda x: torch.full((int(x[0]),), 1.0),
    ],
    "Tensor.tolist": [lambda x: x.tolist()],
    "Tensor.numpy": [lambda x: pytest.importorskip("numpy") and x.numpy()],
    "Tensor.__array__": [lambda x: pytest.importorskip("numpy").asarray(x)],
    "Tensor.__repr__": [repr, str, lambda x: print(x)],
    "Tensor.__format__": [lambda x: f"{x[0]:.3f}", lambda x: f"{x}"],
    "aten.nonzero.default": [lambda x: x.nonzero(), lambda x: torch.where(x > 1)],
    "aten.index.Tensor": [
        lambda x: x[x > 1],
        lambda x: x[[0, 2]],
        lambda x: x[torch.tensor([0, 2])],
        lambda x: x[torch.tensor([True, False, True, False])],
        lambda x: x.view(2, 2)[:, [1, 0]],
    ],
    "aten.index_put_.default": [
        lambda x: x.__setitem__(x > 1, torch.ones(4)),
        lambda x: x.__setitem__([0, 2], 5.0),
        lambda x: x.__setitem__(torch.tensor([True, False, True, False]), 5.0),
    ],
    "aten.masked_select.default": [lambda x: x.masked_select(x > 1)],
    "aten._unique2.default": [lambda x: x.unique()],
    "aten.bincount.default": [lambda x: torch.bincount(x.long())],
    "aten.repeat_interleave.Tensor": [lambda x: x.repeat_interleave(x.long())],
    "aten.equal.default": [lambda x: torch.equal(x, x)],
    "aten.allclose.default": [lambda x: torch.allclose(x, x)],
    "aten._linalg_check_errors.default": [lambda x: torch.linalg.inv(x.view(2, 2) + torch.eye(2))],
    "blocking copy D2H": [
        lambda x: x.cpu(),
        lambda x: torch.zeros(4).copy_(x),
        lambda x: torch.zeros(4).copy_(x, non_blocking=True),
        lambda x: torch.zeros(6).__setitem__(slice(1, 5), x),
    ],
    "blocking copy H2D": [
        lambda x: x.copy_(torch.zeros(4)),
        lambda x: x.copy_(torch.tensor(3.0)),
        lambda x: x[0].copy_(torch.tensor(3.0)),
        lambda x: x.__setitem__(0, 5.0),
        lambda x: torch.tensor(3.0, device=x.device),
        lambda x: x.new_tensor([3.0]),
    ],
}


@pytest.mark.parametrize(
    ("what", "wait"), [(what, wait) for what, calls in WAITS.items() for wait in calls]
)
def test_a_hidden_wait_is_listed_with_its_line(device, x, what, wait):
    """The host waits once, and the list names the call and its line."""
    wait(x)

    ((found, site),) = device.waits
    lines, first = inspect.getsourcelines(wait) if inspect.isfunction(wait) else ([], 0)
    assert what == found
    assert site.startswith("test_waits.py:")
    assert not lines or int(site.split(":")[1]) in range(first, first + len(lines))


@pytest.mark.parametrize("wait", [calls[0] for calls in WAITS.values()], ids=list(WAITS))
def test_a_hidden_wait_is_refused_where_waits_are(device, x, wait):
    """Each wait raises inside `forbid_waits`, except inside `allow_waits`."""
    with device.forbid_waits():
        with pytest.raises(RuntimeError, match=r"test_waits.py:\d+ makes the host wait"):
            wait(x)
        with device.allow_waits():
            assert x[0].item() >= 0
        with pytest.raises(RuntimeError, match="makes the host wait"):
            device.synchronize_stream(device.current_stream())


def test_what_does_not_wait_is_not_listed(device, x):
    """Shapes, views, integer indices and operators without a data-dependent size do not wait."""
    places = torch.tensor([0, 2]).to(device.torch_device, non_blocking=True)
    with device.forbid_waits():
        x[places], x[0], x[1:3].shape, len(x), x.numel(), x.is_same_size(x), x.data_ptr()
        x[places] = 1.0
        x[x > 1] = 0.0
        x[1:3] = 5.0
        x[...] = torch.tensor(2.0)
        x.fill_(torch.tensor(2.0))
        x.copy_(torch.tensor(2.0), non_blocking=True)
        F.one_hot(places, 4)
        x += 1
        F.scaled_dot_product_attention(*[x.view(1, 1, 2, 2)] * 3)
        x.repeat_interleave(places.repeat(2), output_size=4)
        torch.nn.utils.clip_grad_norm_([torch.nn.Parameter(x)], 1.0)
        torch.where(x > 1, x, 0.0)
        copy.deepcopy(x)
        device.needs_copy(x)

    assert device.waits == []


def test_observers_hear_of_waits_before_they_happen(device, x):
    """An observer is called with the call and line of a wait, before the wait."""
    heard = []
    with device.watch_waits(lambda what, site: heard.append((what, site, x_is_done()))):

        def x_is_done():
            return device.current_stream().num_done > 0

        x.tolist()
    x.tolist()

    assert [(*device.waits[0], False)] == heard
    assert len(device.waits) == 2


def test_a_pinned_copy_to_the_device_reads_when_it_runs(device, x):
    """A write to a page-locked buffer before its copy has run changes what arrives."""
    pinned = pinned_of(device, 4).fill_(1.0)
    device.copy(x, pinned)
    pinned.fill_(5.0)

    assert x.tolist() == [5.0] * 4
    assert len(device.report.races) == 1


def test_a_pageable_copy_to_the_device_reads_at_once(device, x):
    """Pageable memory has been read when the copy returns, without a wait."""
    host = torch.ones(4)
    device.copy(x, host)
    host.fill_(5.0)

    assert device.waits == []
    assert x.tolist() == [1.0] * 4


def test_a_pinned_copy_to_the_host_arrives_later(device, x):
    """A page-locked buffer keeps its content until the host waits for the copy."""
    pinned = pinned_of(device, 4).fill_(7.0)
    device.copy(pinned, x)

    assert device.waits == []
    assert pinned[0].item() == 7.0
    device.synchronize_stream(device.current_stream())
    assert pinned.tolist() == [2.0] * 4


def test_a_strided_pinned_buffer_is_written_by_the_host(device, x):
    """A copy into a buffer with gaps waits, although it was asked not to."""
    pinned = pinned_of(device, 8).fill_(0.0)
    device.copy(pinned[::2], x)

    assert [("blocking copy D2H", device.waits[0][1])] == device.waits
    assert pinned.tolist() == [2.0, 0.0] * 4
    assert device.report.races == []


def test_a_strided_pinned_buffer_is_read_by_the_host(device, x):
    """The host gathers a buffer with gaps at the call, and may refill it at once."""
    pinned = pinned_of(device, 8).fill_(1.0)
    device.copy(x, pinned[::2])
    pinned.fill_(5.0)

    assert device.waits == []
    assert x.tolist() == [1.0] * 4
    assert device.report.races == []


def test_one_stretch_may_be_transposed(device):
    """A buffer without gaps is one copy if both sides have the same strides."""
    pinned = pinned_of(device, 6).fill_(1.0).view(2, 3).t()
    target = device.device_buffer(24).view(torch.float32).view(2, 3).t()
    device.copy(target, pinned)
    pinned.fill_(5.0)

    assert target.tolist() == [[5.0, 5.0]] * 3


def test_host_and_device_memory_do_not_mix(device, x):
    """An operation on device and page-locked memory raises, as on a GPU."""
    with pytest.raises(RuntimeError, match=r"aten.add.Tensor mixes device memory and host"):
        x + pinned_of(device, 4)


def test_memory_that_was_not_written_shows(device):
    """Fresh memory holds NaN as floats and -1 as integers, on the host and the device."""
    for buffer in (device.device_buffer(8), device.host_buffer(8, pinned=True)):
        assert all(value != value for value in buffer.view(torch.float32).tolist())
        assert buffer.view(torch.int32).tolist() == [-1, -1]


def test_a_host_scalar_is_read_when_work_is_launched(device, x):
    """A host scalar is an argument of the kernel, as a Python number is."""
    scale = torch.tensor(3.0)
    y = x * scale
    scale.fill_(100.0)

    assert y.tolist() == [6.0] * 4
    assert device.needs_copy(scale)


def test_gradients_pass_through_a_copy_to_the_host(device, x):
    """Autograd differentiates `cpu`, as on a GPU."""
    x.requires_grad_()
    (x * 3).cpu().sum().backward()

    assert x.grad.tolist() == [3.0] * 4
    assert torch.ones(2).cpu().tolist() == [1.0, 1.0]


def test_a_numpy_array_has_the_values_of_queued_work(device, x):
    """The host waits, and the array holds what was computed."""
    pytest.importorskip("numpy")

    assert (x * 2).numpy().tolist() == [4.0] * 4


def test_numpy_of_a_tensor_with_gradients_is_refused(device, x):
    """Torch refuses it, and so does the simulated device."""
    pytest.importorskip("numpy")
    with pytest.raises(RuntimeError, match="requires grad"):
        x.requires_grad_().numpy()


def test_a_file_has_the_values_of_queued_work(device, x):
    """`torch.save` writes the values that queued work computes."""
    file = io.BytesIO()
    torch.save({"y": x * 2}, file)
    file.seek(0)

    assert torch.load(file)["y"].tolist() == [4.0] * 4


def test_sparse_tensors_are_refused(device, x):
    """A sparse tensor of device memory raises; one on the host works as usual."""
    with pytest.raises(NotImplementedError, match="sparse_coo tensors are not simulated"):
        x.to_sparse()
    assert (torch.eye(2).to_sparse() @ torch.ones(2, 1)).tolist() == [[1.0], [1.0]]


def test_the_current_stream_is_restored(device):
    """`use_stream` can be nested, and restores the stream if its body raises."""
    outer, inner = device.current_stream(), device.create_stream()
    with pytest.raises(KeyError), device.use_stream(inner):
        with device.use_stream(outer):
            assert device.current_stream() is outer
        assert device.current_stream() is inner
        raise KeyError
    assert device.current_stream() is outer
    device.set_current_stream(inner)
    assert device.current_stream() is inner


def test_what_a_device_holds(device, x):
    """Buffers, results, and host tensors that device work has used are on the device."""
    used, unused = torch.ones(4), torch.ones(4)
    y = x + used

    assert not any(device.needs_copy(tensor) for tensor in (x, x[1:], y, used))
    assert device.needs_copy(unused)
    assert device.needs_copy(pinned_of(device, 4))
    assert pinned_of(device, 4).is_pinned()
    assert not unused.is_pinned()
    assert unused.pin_memory().is_pinned()


def test_after_leaving_everything_has_run_and_torch_is_plain():
    """Leaving the device runs queued work; its tensors are plain CPU tensors then."""
    with SimulatedDevice(scheduler="lazy") as device:
        x = device.device_buffer(4).fill_(3)
        y = x + 1
    assert y.tolist() == [4] * 4
    assert (y * 2).tolist() == [8] * 4
    assert device.waits == []
    with device:
        assert (x + y).tolist() == [7] * 4
    assert [what for what, _ in device.waits] == ["Tensor.tolist"]


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor])
def test_a_list_of_device_numbers_is_waited_for(make):
    """A tensor made of device numbers waits for each of them and holds their values."""
    with SimulatedDevice(scheduler="lazy") as device:
        numbers = device.device_buffer(8).view(torch.float32).fill_(3.0)
        found = make([numbers[0], numbers[1]])
        count = len(device.waits)

    assert found.tolist() == [3.0, 3.0]
    assert count == 2


def test_an_index_of_the_host_is_no_device_memory_afterwards(device, x):
    """The index is copied in each call, as on a GPU, and the results are right."""
    places, mask = torch.tensor([3, 0]), torch.tensor([True, False, False, True])
    x[places] = torch.tensor([5.0, 6.0], device=x.device)
    found = [x[places].tolist(), x[mask].tolist(), x[[1]].tolist()]

    assert found == [[5.0, 6.0], [6.0, 5.0], [2.0]]
    assert device.needs_copy(places)
    assert device.needs_copy(mask)


def test_one_hot_of_a_known_size_is_right_and_needs_no_values(device, x):
    """Without `num_classes` torch asks for the largest value."""
    places = x.long()
    with device.forbid_waits():
        found = F.one_hot(places.view(2, 2), 4)

    assert found.tolist() == [[[0, 0, 1, 0]] * 2] * 2
    assert F.one_hot(places).tolist() == [[0, 0, 1]] * 4
