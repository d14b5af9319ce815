"""Device memory on loan: who holds it, and when it is written again."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from gapless.pipeline import transfer
from gapless.pipeline.transfer import Loan, Loans, TransferLane, shared_lane
from late_device import LateDevice


SOURCE = torch.arange(6.0)


def lend(lane, device):
    """Return memory of a lane as a batch, and its loan."""
    batch = lane.allocate_like(SOURCE)
    return batch, Loan(lane, batch.detach(), device.current_stream())


def of_lane():
    device = LateDevice(eagerness=0.0)
    return device, TransferLane(device, device.create_stream())


HOLDERS = {
    "the tensor": lambda batch: batch,
    "a view": lambda batch: batch[2:3],
    "a view of a view": lambda batch: batch.view(2, 3)[0][1:],
    "another detached handle": lambda batch: batch.detach(),
    "its storage": lambda batch: batch.untyped_storage(),
    "a numpy array": lambda batch: batch.numpy(),
    "what autograd saved": lambda batch: torch.ones(6, requires_grad=True) * batch,
    "an attribute of a cycle": lambda batch: type("Cycle", (), {"batch": batch}),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_that_anybody_holds_is_not_written(holder):
    """Whoever can still read a batch holds it: its memory does not go back to the lane."""
    device, lane = of_lane()
    batch, loan = lend(lane, device)
    held = HOLDERS[holder](batch)
    del batch

    assert not loan.is_over(device)
    again = lane.allocate_like(SOURCE)
    assert again.data_ptr() != loan.memory.data_ptr()
    del held
    gc.collect()
    assert loan.is_over(device)
    assert device.num_recorded == 0


def test_the_second_look_leaves_memory_to_its_holder():
    """What is still held then is told to torch's allocator, which waits for its reader."""
    device, lane = of_lane()
    batch, loan = lend(lane, device)
    address = batch.data_ptr()

    assert [loan.is_over(device), loan.is_over(device)] == [False, True]
    assert (device.num_recorded, loan.memory) == (1, None)
    read = []
    device.read_later(batch.fill_(3.0), read)
    del batch
    assert lane.allocate_like(SOURCE).data_ptr() != address
    device.run_all()
    assert lane.allocate_like(SOURCE).data_ptr() == address
    assert read[0].tolist() == [3.0] * 6


def test_a_copy_into_returned_memory_waits_for_its_readers():
    """The memory comes back at once, and the lane's stream waits before it writes."""
    device, lane = of_lane()
    batch, loan = lend(lane, device)
    read = []
    device.read_later(batch.fill_(3.0), read)
    address = batch.data_ptr()
    del batch

    assert loan.is_over(device)
    again = lane.allocate_like(SOURCE)
    assert again.data_ptr() == address
    with device.use_stream(lane.stream):
        device.copy(again, SOURCE)
    device.synchronize_stream(lane.stream)
    assert read[0].tolist() == [3.0] * 6
    assert again.tolist() == SOURCE.tolist()


def test_a_torch_that_cannot_count_leaves_all_memory_to_its_allocator(monkeypatch):
    """Slower, and right: every loan is left at the first look."""
    monkeypatch.setattr(transfer, "_ONE_HOLDER", None)
    device, lane = of_lane()
    _, loan = lend(lane, device)

    assert loan.is_over(device)
    assert device.num_recorded == 1


def test_this_torch_can_count():
    """The private counter is there in every torch that is tested, and views count."""
    assert transfer._ONE_HOLDER is not None
    tensor = torch.ones(3)
    assert transfer.num_holders(tensor) == transfer._ONE_HOLDER
    view = tensor[1:]
    assert transfer.num_holders(tensor) == transfer._ONE_HOLDER + 1
    assert view.numel() == 2


def test_a_pass_that_ends_leaves_all_of_its_memory():
    """Its loans are over, and told to the allocator."""
    device, lane = of_lane()
    loans = Loans(device)
    kept = []
    for _ in range(3):
        batch, loan = lend(lane, device)
        kept.append(batch)
        loans.add(loan)
    loans.close()
    loans.collect()

    assert device.num_recorded == 3


def test_passes_in_threads_share_a_lane():
    """Memory is given out once, however many threads take it and give it back at a time."""
    device = LateDevice()
    lane = shared_lane(device)
    doubles = []
    lock, in_use = threading.Lock(), set()

    def take_and_return():
        for _ in range(200):
            batch, loan = lend(lane, device)
            address = batch.data_ptr()
            with lock:
                if address in in_use:
                    doubles.append(address)
                in_use.add(address)
            del batch
            with lock:
                in_use.discard(address)
            assert loan.is_over(device)

    threads = [threading.Thread(target=take_and_return) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert doubles == []
    assert lane is shared_lane(device)
    assert device.num_buffers <= 8
