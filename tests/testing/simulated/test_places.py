"""Loops that are written for a GPU: where their tensors are, and how they get there."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch

from gapless.testing.simulated.simulated_device import SimulatedDevice


@pytest.fixture
def device():
    with SimulatedDevice(scheduler="lazy") as device:
        yield device


@pytest.fixture
def there(device):
    return device.torch_device


@pytest.fixture
def x():
    return torch.tensor([1.0, 2.0, 3.0])


def names(device):
    return [what for what, _ in device.waits]


def train(there):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(7, 4),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(4, 8, device=there),
        torch.nn.ReLU(),
        torch.nn.Linear(8, 3),
    ).to(there)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    weight = torch.tensor([0.5, 0.25, 0.25], device=there)
    state = torch.zeros(5, 3, device=there)
    losses = []
    for _ in range(4):
        tokens = torch.randint(7, (5,)).to(there, non_blocking=True)
        targets = torch.randint(3, (5,))
        if there != "cpu":
            targets = targets.pin_memory().to(there, non_blocking=True)
        noise = torch.randn(5, 3, device=tokens.device)
        state = 0.5 * state.detach() + model(tokens) + 0.1 * noise
        loss = torch.nn.functional.cross_entropy(state, targets, weight=weight)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@pytest.mark.parametrize("scheduler", ["asap", "lazy", "random"])
def test_a_loop_for_a_gpu_has_the_bits_of_the_same_loop_on_the_cpu(scheduler):
    """Its losses are equal, no access is unordered, and it waits for the model's copies alone."""
    expected = train("cpu").tolist()
    with SimulatedDevice(scheduler=scheduler) as device:
        losses = train(device.torch_device)
        waits = names(device)
        found = losses.tolist()

    assert expected == found
    # The weights of the embedding and of the last layer, its bias, and those of the classes.
    assert waits == ["blocking copy H2D"] * 4
    assert not device.report.races


MOVES = {
    "to a device": lambda x, there: x.to(there),
    "to its name": lambda x, there: x.to(str(there)),
    "to cuda": lambda x, there: x.to("cuda"),
    "to a number": lambda x, there: x.to(0),
    "cuda()": lambda x, there: x.cuda(),
    "to another tensor": lambda x, there: x.to(torch.zeros(1, device=there)),
    "by keyword": lambda x, there: x.to(device=there, dtype=torch.float32, copy=True),
    "as_tensor": lambda x, there: torch.as_tensor(x, device=there),
    "tensor of a list": lambda x, there: torch.tensor(x.tolist(), device=there),
    "new_tensor": lambda x, there: x.new_tensor(x.tolist(), device=there),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=list(MOVES))
def test_a_copy_to_the_device_waits_and_arrives(device, there, x, move):
    """Every way to copy to the device waits, and the copy has the values."""
    with torch.no_grad():
        moved = move(x, there)

    assert names(device) == ["blocking copy H2D"]
    assert moved.device == there
    assert x.device == torch.device("cpu")
    assert not device.needs_copy(moved)
    assert device.needs_copy(x)
    assert moved.tolist() == [1.0, 2.0, 3.0]


FACTORIES = {
    "zeros": lambda there: torch.zeros(2, device=there),
    "on cuda": lambda there: torch.zeros(2, device="cuda"),
    "full": lambda there: torch.full((2,), 3.0, device=there),
    "arange": lambda there: torch.arange(3, device=there),
    "randn": lambda there: torch.randn(2, device=there),
    "randperm": lambda there: torch.randperm(3, device=there),
    "empty_strided": lambda there: torch.empty_strided((2, 3), (1, 2), device=there),
    "zeros_like": lambda there: torch.zeros_like(torch.ones(2), device=there),
    "empty_like": lambda there: torch.empty_like(torch.ones(2), device=there),
    "new_zeros": lambda there: torch.ones(1).new_zeros(2, device=there),
    "new_ones": lambda there: torch.zeros(1, device=there).new_ones(2),
    "a module": lambda there: torch.nn.Linear(2, 2, device=there).weight,
    "to_empty": lambda there: torch.nn.Linear(2, 2, device="meta").to_empty(device=there).bias,
    "made by torch": lambda there: torch.nn.utils.rnn.pad_sequence(
        [torch.ones(2, device=there), torch.ones(1, device=there)]
    ),
}


@pytest.mark.parametrize("make", FACTORIES.values(), ids=list(FACTORIES))
def test_a_factory_makes_device_memory_without_a_wait(device, there, make):
    """What is made with `device=` lives on the device, and the host does not wait."""
    made = make(there)

    assert made.device == there
    assert not device.needs_copy(made)
    assert device.waits == []
    assert device.num_blocks > 0


def test_a_factory_takes_a_shape_and_reads_nothing(device, there):
    """What `*_like` and `new_*` are given is neither read nor moved."""
    host, x = torch.ones(2), torch.ones(2, device=there)
    with device.use_stream(device.create_stream()):
        torch.zeros_like(x)
        on_host = [torch.zeros_like(x, device="cpu"), x.new_zeros(2, device="cpu")]
        on_device = [torch.zeros_like(host, device=there), host.new_ones(2, device=there)]

    assert all(device.needs_copy(tensor) for tensor in (host, *on_host))
    assert not any(device.needs_copy(tensor) for tensor in on_device)
    assert x.to("meta").device == torch.device("meta")
    assert device.waits == []
    assert not device.report.races


def test_torch_tensor_copies_a_tensor_of_the_device(device, there):
    """`torch.tensor` makes a copy, `torch.as_tensor` does not."""
    x = torch.ones(2, device=there)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises `clone`
        copied = torch.tensor(x)

    assert copied.device == there
    assert copied.data_ptr() != x.data_ptr()
    assert torch.as_tensor(x) is x


def test_factories_have_the_values_of_the_host(device, there):
    """Random numbers, numbers in order and constants are those of a CPU."""
    torch.manual_seed(3)
    made = [torch.randn(4, device=there), torch.arange(3, device=there)]
    torch.manual_seed(3)

    assert torch.equal(torch.randn(4), made[0].cpu())
    assert made[1].tolist() == [0, 1, 2]


def test_a_default_device_is_the_simulated_one(device, there):
    """`torch.set_default_device` and `with torch.device` work, and `cpu` can still be named."""
    with torch.device(there):
        inside = [torch.zeros(2), torch.tensor([1.0]), torch.nn.Linear(1, 1).weight]
        on_host = torch.zeros(2, device="cpu")
    torch.set_default_device(there)
    try:
        inside += [torch.zeros(2), torch.tensor([1.0])]
    finally:
        torch.set_default_device(None)

    assert [tensor.device for tensor in inside] == [there] * 5
    assert device.needs_copy(on_host)
    assert device.needs_copy(torch.zeros(2))


@pytest.mark.parametrize(
    "move", [lambda x: x.cpu(), lambda x: x.to("cpu"), lambda x: x.to(torch.ones(1))]
)
def test_a_copy_to_the_host_waits(device, there, move):
    """Every way to copy to the host waits, and the host has its own copy."""
    x = torch.full((2,), 3.0, device=there)
    y = move(x)
    x.fill_(5.0)

    assert names(device) == ["blocking copy D2H"]
    assert y.device == torch.device("cpu")
    assert y.tolist() == [3.0, 3.0]
    assert len(device.waits) == 1


def test_a_copy_to_the_host_that_does_not_wait_arrives_later(device, there):
    """With `non_blocking=True` torch copies to page-locked memory; a read at once is a race."""
    y = torch.full((2,), 3.0, device=there).to("cpu", non_blocking=True)

    assert device.waits == []
    assert y.is_pinned()
    assert y.tolist() != [3.0, 3.0]
    assert len(device.report.races) == 1
    device.synchronize_stream(device.current_stream())
    assert y.tolist() == [3.0, 3.0]


def test_what_is_there_is_not_copied(device, there):
    """A copy to where a tensor is returns the tensor, as torch does."""
    x = torch.zeros(2, device=there)
    host = torch.zeros(2)

    assert x.to(there) is x
    assert x.cuda() is x
    assert x.to(there, torch.float32, non_blocking=True) is x
    assert host.cpu() is host
    assert host.to("cpu") is host
    assert x.to(there, copy=True).data_ptr() != x.data_ptr()
    assert x.to(torch.float64).device == there
    assert device.waits == []


def test_gradients_return_to_where_the_tensor_is(device, there):
    """Autograd copies back what was copied, in the dtype of the original."""
    x = torch.ones(3, requires_grad=True)
    y = torch.ones(3, device=there, requires_grad=True)
    (3 * x.to(there, torch.float64)).sum().backward()
    (3 * y.to("cpu", torch.float64)).sum().backward()

    assert x.grad.device == x.device == torch.device("cpu")
    assert y.grad.device == there
    assert x.grad.dtype == y.grad.dtype == torch.float32
    assert x.grad.tolist() == y.grad.tolist() == [3.0] * 3


def test_a_second_derivative_passes_through_a_copy(device, there):
    """The gradient of a gradient is copied back as well."""
    x = torch.ones(3, requires_grad=True)
    (grad,) = torch.autograd.grad((x.to(there) ** 3).sum(), x, create_graph=True)
    grad.sum().backward()

    assert x.grad.tolist() == [6.0] * 3


def test_a_model_that_is_moved_keeps_its_parameters(device, there):
    """`Module.to` moves the memory of the parameters; an optimizer made before still steps them."""
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, 3.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = [id(parameter) for parameter in model.parameters()]
    model.cuda()
    model(torch.ones(1, 2, device=there)).sum().backward()
    optimizer.step()

    assert [id(parameter) for parameter in model.parameters()] == before
    assert all(parameter.device == there for parameter in model.parameters())
    assert model.weight.tolist() == [[2.0, 2.0]]


def test_a_model_survives_a_file_and_a_copy(device, there):
    """`state_dict`, `torch.save`, `load_state_dict` and `deepcopy` keep values, on the device."""
    model = torch.nn.Linear(2, 2, device=there)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = torch.nn.Linear(2, 2, device=there)
    other.load_state_dict(torch.load(file, map_location="cpu"))

    assert other.weight.device == there
    assert copy.deepcopy(model).weight.device == there
    assert torch.equal(model.weight.cpu(), other.weight.cpu())


def test_pageable_memory_is_read_before_the_copy_returns(device, there):
    """A small tensor does not wait; a large one waits for queued work; both may be refilled."""
    small, large = torch.ones(16 * 1024), torch.ones(16 * 1024 + 1)
    copies = [small.to(there, non_blocking=True)]
    assert device.waits == []
    copies.append(large.to(there, non_blocking=True))
    small.zero_()
    large.zero_()

    assert names(device) == ["pageable copy H2D"]
    assert all(copied.amin().item() == 1.0 for copied in copies)
    assert not device.report.races


def test_the_limit_of_pageable_memory_can_be_set():
    """`pageable_limit_bytes` says which copies wait."""
    with SimulatedDevice(pageable_limit_bytes=8) as device:
        for count in (2, 3):
            torch.ones(count).to(device.torch_device, non_blocking=True)

    assert len(device.waits) == 1


def test_pinned_memory_is_read_when_the_copy_runs(device, there):
    """A page-locked batch must not be refilled before its copy is done."""
    pinned = torch.ones(4).pin_memory()
    moved = pinned.to(there, non_blocking=True)
    pinned.fill_(7.0)

    assert device.waits == []
    assert len(device.report.races) == 1
    assert moved.tolist() == [7.0] * 4


def test_another_dtype_is_made_on_the_device(device, there):
    """A copy that converts reads page-locked memory when it runs, as torch does."""
    pinned = torch.ones(4).pin_memory()
    moved = pinned.to(there, torch.float64, non_blocking=True)
    pinned.fill_(7.0)

    assert device.waits == []
    assert len(device.report.races) == 1
    assert moved.tolist() == [7.0] * 4


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(2, 3, pin_memory=True),
        lambda: torch.tensor([1.0], pin_memory=True),
        lambda: torch.empty_strided((2, 3), (1, 2), pin_memory=True),
        lambda: torch.ones(2, 3).t().pin_memory(),
    ],
)
def test_factories_make_page_locked_memory(device, make):
    """`pin_memory` makes host memory that copies do not wait for."""
    made = make()

    assert made.is_pinned()
    assert device.needs_copy(made)
    made.to(device.torch_device, non_blocking=True)
    assert device.waits == []


def test_strides_are_kept(device, there):
    """Copies and page-locked twins have the strides of a dense original."""
    x = torch.arange(6.0).view(2, 3).t()

    assert x.pin_memory().stride() == x.to(there).stride() == x.stride()
    assert x.to(there).tolist() == x.tolist()
    assert torch.empty_strided((2, 3), (1, 2), device=there).stride() == (1, 2)


def test_memory_made_in_a_stream_is_that_streams(device, there):
    """A tensor of `torch.empty_strided` comes from the stream's memory, and returns there."""
    side = device.create_stream()

    def make():
        return torch.empty_strided((4,), (1,), dtype=torch.float32, device=there)

    with device.use_stream(side):
        first = make()
    address = first.data_ptr()
    del first
    assert make().data_ptr() != address
    with device.use_stream(side):
        assert make().data_ptr() == address


def test_a_storage_counts_its_holders_alone(device, there):
    """Queued work does not count as a holder of the memory it uses."""

    def count():
        return torch._C._storage_Use_Count(storage._cdata)

    x = torch.empty_strided((2, 3), (3, 1), device=there)
    storage = x.untyped_storage()
    alone = count()
    x.copy_(torch.ones(2, 3).pin_memory(), non_blocking=True)
    y = x * 2
    after_work = count()
    view = x[0]

    assert alone == after_work
    assert count() == alone + 1
    assert device.current_stream().num_done == 0
    del view, y
    assert count() == alone


def test_a_tensor_can_be_recorded_on_a_stream(device, there):
    """`Tensor.record_stream` delays the reuse of memory until the stream is done with it."""
    side = device.create_stream()
    x = torch.zeros(4, device=there)
    device.wait_stream(side, device.current_stream())
    with device.use_stream(side):
        y = x + 1
    x.record_stream(side)
    address = x.data_ptr()
    del x

    kept = torch.zeros(4, device=there)
    assert kept.data_ptr() != address
    device.synchronize_stream(side)
    assert y.tolist() == [1.0] * 4
    assert torch.zeros(4, device=there).data_ptr() == address
    assert not device.report.races


def test_a_loader_that_pins_can_be_used(device, there):
    """A `DataLoader` with `pin_memory=True` gives its batches."""
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch finds no accelerator
        loader = torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True)
        batches = [batch.to(there, non_blocking=True) for (batch,) in loader]

    assert [batch.tolist() for batch in batches] == [[0.0, 1.0], [2.0, 3.0]]


def packed_lstm(there):
    torch.manual_seed(0)
    model = torch.nn.LSTM(4, 6, batch_first=True, bidirectional=True).to(there)
    sequences = torch.randn(3, 5, 4).to(there).requires_grad_()
    packed = torch.nn.utils.rnn.pack_padded_sequence(sequences, [5, 3, 2], batch_first=True)
    output, _ = model(packed)
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
    padded.pow(2).sum().backward()
    return [padded.detach(), sequences.grad, *(part.grad for part in model.parameters())]


def test_packed_sequences_have_their_lengths_on_the_host():
    """An LSTM over packed sequences has the CPU's bits, and waits for no length."""
    expected = packed_lstm("cpu")
    with SimulatedDevice(scheduler="lazy") as device:
        found = packed_lstm(device.torch_device)
        waits = names(device)
        found = [tensor.cpu() for tensor in found]

    assert waits == ["blocking copy H2D"] * 9  # eight weights and the sequences
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert not device.report.races


def losses_of_packed_lstm(there):
    torch.manual_seed(0)
    model = torch.nn.LSTM(8, 4, batch_first=True).to(there)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for number in range(24):
        lengths = [(3, 2), (1, 3), (3, 3)][number % 3]
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            torch.randn(2, 3, 8).to(there, non_blocking=True),
            lengths,
            batch_first=True,
            enforce_sorted=False,
        )
        output, (h, _) = model(packed)
        output, _ = torch.nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
        loss = output.square().sum() + h.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("seed", range(4))
def test_lengths_of_padded_sequences_are_no_memory_of_the_device(seed):
    """Torch writes them at once, while work of the device still reads what was let go of."""
    expected = losses_of_packed_lstm("cpu")

    with SimulatedDevice(scheduler="random", seed=seed) as device:
        found = [loss.item() for loss in losses_of_packed_lstm(device.torch_device)]

    assert found == [loss.item() for loss in expected]


def test_sparse_tensors_do_not_move(device, there):
    """A sparse tensor is refused by name."""
    with pytest.raises(NotImplementedError, match="sparse_coo tensors are not simulated"):
        torch.eye(2).to_sparse().to(there)


def test_torch_is_as_before_when_the_device_is_left():
    """What was replaced is put back, and `cpu:1` is the CPU."""
    before = (torch.Tensor.record_stream, torch._C._group_tensors_by_device_and_dtype)
    with SimulatedDevice() as device:
        x = torch.ones(2, device=device.torch_device)

    assert x.device == torch.device("cpu")
    assert x.tolist() == [1.0, 1.0]
    assert (torch.Tensor.record_stream, torch._C._group_tensors_by_device_and_dtype) == before


def test_what_inference_made_is_copied_when_it_is_ready(device):
    """Outside of inference mode torch hands such a tensor's `cpu` to the device as it is."""
    source = torch.full((100,), 3.0)
    with torch.inference_mode():
        batch = torch.empty(100, device=device.torch_device)
        batch.copy_(source, non_blocking=True)

    assert batch.cpu().tolist() == source.tolist()
    assert (batch * 2).to("cpu")[7] == 6.0
