"""Which bytes a tensor covers, what is remembered of each byte, and who gets memory again."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch
from hypothesis import given, settings, strategies as st

from gapless.testing.simulated import allocator
from gapless.testing.simulated.allocator import spans_of
from gapless.testing.simulated.history import Access, Grid, History
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


def bytes_in(spans):
    """Return every byte of ranges and grids."""
    grids = [
        span if isinstance(span, Grid) else Grid(span[0], span[1] - span[0]) for span in spans
    ]
    return {byte for grid in grids for byte in grid.of(torch.arange(4000), 1).reshape(-1).tolist()}


@pytest.mark.parametrize("max_runs", [1000, 0])
def test_spans_are_the_bytes_of_the_elements(monkeypatch, max_runs):
    """For any sizes, strides and offset, ranges or a grid hold exactly the bytes of the elements; without gaps, a range."""
    monkeypatch.setattr(allocator, "_MAX_RUNS", max_runs)

    @settings(max_examples=50, deadline=None)
    @given(strided_tensors())
    def check(tensor):
        spans = spans_of(tensor, 64)

        assert {byte + 64 for byte in bytes_of(tensor)} == bytes_in(spans)
        is_grid = max_runs == 0 and not tensor.is_contiguous()
        assert all(isinstance(span, Grid) == is_grid for span in spans)

    check()


@pytest.mark.parametrize(("num_rows", "kind"), [(128, tuple), (129, Grid)])
def test_very_many_pieces_are_a_grid(num_rows, kind):
    """Up to 128 pieces are ranges; more are one grid of the same bytes."""
    spans = spans_of(torch.empty(num_rows, 3, dtype=torch.uint8)[:, 1])

    assert {type(span) for span in spans} == {kind}
    assert bytes_in(spans) == set(range(1, 3 * num_rows, 3))


def test_a_dense_tensor_is_one_range_in_any_order():
    """A transposed matrix covers the same range as the matrix."""
    matrix = torch.empty(4, 6)

    assert spans_of(matrix.t()) == [(0, 96)]
    assert spans_of(matrix) == spans_of(matrix.t())


def test_an_expanded_tensor_is_what_it_repeats():
    """Memory that an expanded tensor repeats counts once."""
    assert spans_of(torch.empty(1, 4).expand(5, 4)) == [(0, 16)]


ranges = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted)
grids = st.builds(
    lambda start, run, size, stride: Grid(start, run, ((size, stride),)),
    st.integers(0, 4),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 4),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(["read", "write"]), ranges | grids),
        max_size=25,
    )
)
def test_history_is_kept_for_each_byte(program):
    """An access meets the earlier ones that a dictionary with an entry for every byte holds."""
    history, model = History(), {byte: (None, {}) for byte in range(20)}
    for tick, (agent, kind, span) in enumerate(program):
        span = span if isinstance(span, Grid) else tuple(span)
        now = Access(agent, tick, kind, "w", "s")
        expected = set()
        for byte in bytes_in([span]):
            write, reads = model[byte]
            expected |= {write.tick} if write else set()
            if kind == "write":
                expected |= {read.tick for read in reads.values()}
                model[byte] = (now, {})
            else:
                model[byte] = (write, {**reads, agent: now})

        assert expected == {earlier.tick for earlier in history.record(now, span)}


def test_a_long_history_forgets_what_no_byte_remembers():
    """Tables of a block hold as many accesses as they need, and the last ones are kept."""
    history = History()
    for tick in range(20_000):
        span = Grid(4 * (tick % 2), 4, ((200, 8),))
        earlier = list(history.record(Access("a", tick, "write", "w", "s"), span))
        assert [access.tick for access in earlier] == ([tick - 2] if tick > 1 else [])

    assert len(history._tables._accesses) <= 4096


def test_a_write_to_all_bytes_makes_their_history_one_again():
    """A history does not grow with the number of pieces that were ever written."""
    history = History()
    for start in range(0, 64, 4):
        list(history.record(Access("a", start, "write", "w", "s"), (start, start + 4)))
    assert len(history.cells(0, 64)) == 16
    list(history.record(Access("a", 64, "write", "w", "s"), (0, 64)))

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


@pytest.mark.quick_cases(2)
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
                graph = device.capture(lambda _: tensor.mul_(2))
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
    """Another stream, or a larger request, does not get a freed block."""
    with SimulatedDevice(scheduler="lazy") as device:
        side = device.create_stream()
        address = device.device_buffer(100).data_ptr()
        with device.use_stream(side):
            assert device.device_buffer(100).data_ptr() != address
        assert device.device_buffer(9000).data_ptr() != address
        assert device.device_buffer(100).data_ptr() == address


def addresses_of(*tensors):
    return [tensor.data_ptr() for tensor in tensors]


def test_the_smallest_free_block_that_is_large_enough_is_used():
    """A request takes the best fit, and the rest of the block stays free."""
    with SimulatedDevice(scheduler="lazy") as device:
        sizes = (512, 4096, 1536)
        small, large, middle = addresses_of(*[device.device_buffer(size) for size in sizes])
        first, second = device.device_buffer(1024), device.device_buffer(512)
        third = device.device_buffer(400)
        fourth = device.device_buffer(4000)

        assert addresses_of(first, fourth) == [middle, large]
        assert {second.data_ptr(), third.data_ptr()} == {small, middle + 1024}
        assert device.num_blocks == 3


def test_free_neighbours_become_one_block():
    """What was split is whole again when all of it is free, in whichever order that happened."""
    with SimulatedDevice(scheduler="lazy") as device:
        address = device.device_buffer(4096).data_ptr()
        for order in ([0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2]):
            parts = [device.device_buffer(1024) for _ in range(3)]
            assert addresses_of(*parts) == [address + 1024 * number for number in range(3)]
            for number in order:
                parts[number] = None
            assert device.device_buffer(4096).data_ptr() == address
        assert device.num_blocks == 1


def test_large_and_small_blocks_are_kept_apart():
    """Small requests take no large block; a large block is split only for a rest above 1 MiB."""
    mib = 1 << 20
    with SimulatedDevice(scheduler="lazy") as device:
        address = device.device_buffer(4 * mib).data_ptr()
        assert device.device_buffer(512).data_ptr() != address
        first = device.device_buffer(3 * mib)
        assert first.data_ptr() == address
        assert device.reserved_memory_bytes() == 4 * mib  # not split
        del first
        first, second = device.device_buffer(2 * mib), device.device_buffer(2 * mib)
        assert addresses_of(first, second) == [address, address + 2 * mib]


def test_lengths_that_never_repeat_reuse_memory_and_show_its_races():
    """A buffer that is freed while another stream reads it is given to a smaller request."""
    with SimulatedDevice(scheduler="asap") as device:
        side = device.create_stream()
        for length in range(4000, 2000, -100):
            batch = device.device_buffer(length).fill_(1)
            device.wait_stream(side, device.current_stream())
            with device.use_stream(side):
                batch + 1  # read late, and nothing says so
            del batch

    assert device.num_blocks < 5
    assert [(race.first.kind, race.second.kind) for race in device.report.races] == [
        ("read", "write")
    ]


def test_a_part_of_a_block_is_reused_only_when_its_streams_are_done():
    """`record_stream` delays a split block as it does a whole one."""
    with SimulatedDevice(scheduler="lazy") as device:
        side = device.create_stream()
        address = device.device_buffer(2048).data_ptr()
        first, second = device.device_buffer(1024), device.device_buffer(1024)
        device.wait_stream(side, device.current_stream())
        with device.use_stream(side):
            second.fill_(1)
        device.record_stream(second, side)
        del first, second
        assert device.device_buffer(2048).data_ptr() != address
        device.synchronize_stream(side)
        whole = [device.device_buffer(2048).fill_(2) for _ in range(2)]

    assert address in addresses_of(*whole)
    assert not device.report.races


def read_on(side, device, block):
    device.wait_stream(side, device.current_stream())
    with device.use_stream(side):
        block + 1
    device.record_stream(block, side)


def test_joined_memory_is_reused_behind_the_work_on_each_part():
    """The next use of two blocks in one is ordered behind what read either of them."""
    with SimulatedDevice(scheduler="asap") as device:
        side = device.create_stream()
        address = device.device_buffer(2048).data_ptr()
        first, second = [device.device_buffer(1024).fill_(1) for _ in range(2)]
        read_on(side, device, first)
        del first
        read_on(side, device, second)
        del second
        whole = device.device_buffer(2048).fill_(2)

    assert whole.data_ptr() == address
    assert not device.report.races


def test_each_part_of_memory_is_reused_behind_the_work_on_the_whole():
    """The next use of either half of a block is ordered behind what read the block."""
    with SimulatedDevice(scheduler="asap") as device:
        side = device.create_stream()
        whole = device.device_buffer(2048).fill_(1)
        address = whole.data_ptr()
        read_on(side, device, whole)
        del whole
        halves = [device.device_buffer(1024) for _ in range(2)]
        halves[1].fill_(2)

    assert addresses_of(*halves) == [address, address + 1024]
    assert not device.report.races


def test_parts_of_memory_have_histories_of_their_own():
    """A part races with what used the whole, and not with another part."""
    with SimulatedDevice(scheduler="asap") as device:
        side = device.create_stream()
        address = device.device_buffer(2048).data_ptr()
        halves = [device.device_buffer(1024) for _ in range(2)]
        halves[0].fill_(1)
        with device.use_stream(side):
            halves[1].fill_(1)
        assert addresses_of(*halves) == [address, address + 1024]
        assert not device.report.races
        del halves
        device.device_buffer(2048).fill_(2)

    assert [(race.first.agent, race.second.agent) for race in device.report.races] == [
        ("stream 0", "default stream")
    ]


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
