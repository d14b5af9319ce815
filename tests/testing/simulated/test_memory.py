"""Which bytes a tensor covers, what is remembered of each byte, and who gets memory again."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch
from hypothesis import given, settings, strategies as st

from gapless.testing.simulated.allocator import byte_ranges
from gapless.testing.simulated.races import Access, History
from gapless.testing.simulated.simulated_device import SimulatedDevice


def bytes_of(tensor):
    """Return every byte that the tensor's elements occupy, by their addresses."""
    width = tensor.element_size()
    steps = [[at * stride for at in range(size)] for size, stride in layout(tensor)]
    starts = [
        (tensor.storage_offset() + sum(parts)) * width for parts in itertools.product(*steps)
    ]
    return {start + byte for start in starts for byte in range(width)}


def layout(tensor):
    return zip(tensor.size(), tensor.stride(), strict=True)


@st.composite
def strided_tensors(draw):
    dims = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), max_size=4))
    offset = draw(st.integers(0, 7))
    dtype = draw(st.sampled_from([torch.uint8, torch.float16, torch.float32, torch.complex64]))
    sizes, strides = [d[0] for d in dims], [d[1] for d in dims]
    return torch.empty(300, dtype=dtype).as_strided(sizes, strides, offset)


@settings(max_examples=300, deadline=None)
@given(strided_tensors())
def test_ranges_are_the_bytes_of_the_elements(tensor):
    """For any sizes, strides and offset, the ranges hold exactly the bytes of the elements."""
    ranges = byte_ranges(tensor)

    assert bytes_of(tensor) == {byte for start, end in ranges for byte in range(start, end)}


@pytest.mark.parametrize(("num_rows", "num_ranges"), [(1024, 1024), (1025, 1)])
def test_very_many_pieces_count_as_one(num_rows, num_ranges):
    """Up to 1,024 pieces are exact; more become one range that contains them all."""
    column = torch.empty(num_rows, 3, dtype=torch.uint8)[:, 1]

    ranges = byte_ranges(column)

    assert num_ranges == len(ranges)
    assert (1, 3 * num_rows - 1) == (ranges[0][0], ranges[-1][1])


def test_a_dense_tensor_is_one_range_in_any_order():
    """A transposed matrix covers the same range as the matrix."""
    matrix = torch.empty(4, 6)

    assert byte_ranges(matrix.t()) == [(0, 96)]
    assert byte_ranges(matrix) == byte_ranges(matrix.t())


def test_an_expanded_tensor_is_what_it_repeats():
    """Memory that an expanded tensor repeats counts once."""
    assert byte_ranges(torch.empty(1, 4).expand(5, 4)) == [(0, 16)]


spans = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "write"]), spans), max_size=25))
def test_history_is_kept_for_each_byte(program):
    """The history of intervals equals a dictionary with an entry for every byte."""
    history, model = History(), {byte: (None, {}) for byte in range(20)}
    for tick, (who, (start, end)) in enumerate(program):
        now = Access(who, tick, "read", "w", "s")
        for cell in history.cells(start, end):
            if who == "write":
                cell.write, cell.reads = now, {}
            else:
                cell.reads[who] = now
        if who == "write":
            history.merge(start, end)
        for byte in range(start, end):
            write, reads = model[byte]
            model[byte] = (now, {}) if who == "write" else (write, {**reads, who: now})

    found = {byte: history.cells(byte, byte + 1) for byte in range(20)}
    assert model == {byte: (cell.write, cell.reads) for byte, (cell,) in found.items()}


def test_a_write_to_all_bytes_makes_their_history_one_again():
    """A history does not grow with the number of pieces that were ever written."""
    history = History()
    for start in range(0, 64, 4):
        history.cells(start, start + 4)
    assert len(history.cells(0, 64)) == 16
    history.merge(0, 64)

    assert len(history.cells(0, 64)) == 1


def step_of(model, optimizer, device):
    x = torch.randn(8, 6).pin_memory()
    on_device = device.device_buffer(x.numel() * 4).view(torch.float32).view(x.shape)
    device.copy(on_device, x)
    mask = torch.rand(8, 1)  # host memory that device work uses, new in every step
    loss = (model(on_device) * mask * torch.arange(8.0).view(8, 1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("scheduler", ["asap", "lazy", "random"])
def test_memory_does_not_grow_over_steps(scheduler):
    """Training steps reuse blocks, and freed buffers are forgotten."""
    with SimulatedDevice(scheduler=scheduler) as device:
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(), torch.nn.ReLU())
        optimizer = torch.optim.Adam(model.parameters())
        seen = []
        for number in range(120):
            step_of(model, optimizer, device)
            device.synchronize_stream(device.current_stream())
            if number == 9:
                blocks = device.num_blocks
            if number >= 40:
                seen.append(len(device._simulation.memory._by_address))

    assert blocks == device.num_blocks
    assert max(seen) < 150


def test_nothing_of_a_device_stays_behind():
    """A device that was left can be freed, with everything it made."""

    def use():
        with SimulatedDevice(scheduler="lazy") as device:
            tensor = device.device_buffer(64).view(torch.float32) * 2
            with device.use_stream(device.create_stream()):
                graph = device.capture(lambda: tensor.mul_(2))
                graph.replay()
        return [weakref.ref(part) for part in (device, device._simulation, graph)]

    watched = use()
    gc.collect()

    assert [watch() for watch in watched] == [None, None, None]


def test_adopted_memory_is_let_go_of_only_when_nobody_holds_it():
    """A host tensor that device work used stays device memory for as long as it lives."""
    with SimulatedDevice(scheduler="asap") as device:
        x = device.device_buffer(4)
        kept = torch.ones(4, dtype=torch.uint8)
        x + kept
        for _ in range(300):
            x + torch.ones(4, dtype=torch.uint8)

        assert not device.needs_copy(kept)
        assert len(device._simulation.memory._adopted) < 100


def test_an_empty_tensor_makes_no_other_one_device_memory():
    """Tensors without elements have no address, and are not mistaken for each other."""
    with SimulatedDevice(scheduler="lazy") as device:
        torch.cat([device.device_buffer(4), torch.empty(0, dtype=torch.uint8)])
        host = torch.empty(0) + 1

        assert device.needs_copy(host)
        assert device.needs_copy(torch.empty(0))


def test_memory_is_used_again_by_the_stream_that_it_was_allocated_on():
    """Only the next request of the same size on the same stream gets a freed block."""
    with SimulatedDevice(scheduler="lazy") as device:
        side = device.create_stream()
        address = device.device_buffer(100).data_ptr()
        with device.use_stream(side):
            assert device.device_buffer(100).data_ptr() != address
        assert device.device_buffer(9000).data_ptr() != address
        assert device.device_buffer(100).data_ptr() == address


def test_peak_memory_counts_what_was_held_at_once():
    """Sizes are rounded up to 512 bytes, and a reset starts the peak at what is in use."""
    with SimulatedDevice(scheduler="lazy") as device:
        kept = device.device_buffer(1)
        device.device_buffer(600)
        device.device_buffer(600)
        assert device.peak_memory_bytes() == 512 + 1024
        device.reset_peak_memory()
        assert device.peak_memory_bytes() == 512
        del kept
        device.reset_peak_memory()
        assert device.peak_memory_bytes() == 0
