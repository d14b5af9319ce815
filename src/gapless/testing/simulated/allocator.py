"""Memory of the simulated device, in blocks that are reused.

Device memory follows torch's caching allocator: a freed block goes back at once to the stream that
it was allocated on, and the next allocation there takes it, even if queued work still uses it. So
queued work reads and writes by address, as a kernel does, and never keeps memory alive.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from gapless.testing.simulated.races import History


if TYPE_CHECKING:
    from collections.abc import Callable


MemoryKind = Literal["device", "pinned"]

# As torch's allocators: blocks are multiples of 512 bytes, aligned for every vector load.
_GRAIN = 512
_ALIGNMENT = 64

# All bits set: NaN in every floating dtype and -1 in every signed one, so that a read of memory that
# was never written shows in the values.
_POISON = b"\xff"

# A strided view of more pieces than this is recorded as one range that contains them all.
_MAX_RUNS = 1024

# With fewer adopted blocks than this, nobody looks for freed ones.
_FEW = 64


@dataclass(eq=False, kw_only=True)
class Block:
    """A range of memory.

    Attributes:
        name: in reports.
        kind: `device` or `pinned`.
        storage: owns the memory while the simulation lives.
        num_bytes: its size.
        memory: the same memory, to make tensors from; None for adopted memory.
        history: accesses so far, kept when the block is freed and reused.
        used_by: streams passed to `record_stream`, whose work must end before reuse.
        pool: the stream or graph that it was allocated for and goes back to.
    """

    name: str
    kind: MemoryKind
    storage: torch.UntypedStorage
    num_bytes: int
    memory: memoryview | None = None
    history: History = field(default_factory=History)
    used_by: set[Any] = field(default_factory=set)
    pool: object = None


class Memory:
    """Hand out blocks, and find the block that a tensor lies in.

    Attributes:
        num_blocks: device blocks made so far.
        in_use_bytes: device memory in use.
        peak_bytes: most memory in use since the last reset.
    """

    def __init__(self) -> None:
        self._by_address: dict[int, Block] = {}
        self._adopted: dict[int, Block] = {}
        self._most_adopted = _FEW
        self._free: dict[tuple[object, int], deque[tuple[Block, Callable[[], bool]]]] = {}
        self.num_blocks = 0
        self.in_use_bytes = 0
        self.peak_bytes = 0

    def find(self, tensor: torch.Tensor) -> Block | None:
        """Return the block that a tensor lies in; None for other host memory."""
        if tensor.layout is not torch.strided or tensor._is_zerotensor():
            return None
        return self._by_address.get(tensor.untyped_storage().data_ptr())

    def allocate(
        self, num_bytes: int, *, pool: object, release: Callable[[Block], Callable[[], bool]]
    ) -> torch.Tensor:
        """Return fresh device memory as a uint8 tensor.

        Args:
            num_bytes: the block has at least this size.
            pool: the stream or graph that the block comes from and goes back to.
            release: called when the block is freed; returns a function that says whether it may
                be reused.
        """
        size = max(-(-num_bytes // _GRAIN) * _GRAIN, _GRAIN)
        free = self._free.setdefault((pool, size), deque())
        if free and free[0][1]():
            block = free.popleft()[0]
        else:
            self.num_blocks += 1
            block = self._make("device", size, f"device block {self.num_blocks}")
            block.pool = pool
        self.in_use_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.in_use_bytes)

        def give_back() -> None:
            self.in_use_bytes -= size
            free.append((block, release(block)))

        return _hold(block, num_bytes, give_back)

    def pin(self, num_bytes: int) -> torch.Tensor:
        """Return page-locked host memory as a uint8 tensor."""
        block = self._make("pinned", num_bytes, f"pinned buffer of {num_bytes:,} bytes")
        address = block.storage.data_ptr()
        # Queued copies hold the memory, as torch's allocator holds it for them.
        return _hold(block, num_bytes, lambda: self._forget(address))

    def adopt(self, tensor: torch.Tensor) -> Block:
        """Turn host memory that device work uses, such as a model's weights, into device memory."""
        storage = tensor.untyped_storage()
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        block = Block(
            name=f"{shape} tensor", kind="device", storage=storage, num_bytes=storage.nbytes()
        )
        if not storage.data_ptr():
            return block  # an empty tensor has no address
        if len(self._adopted) >= self._most_adopted:
            self._forget_adopted()
        self._by_address[storage.data_ptr()] = self._adopted[storage.data_ptr()] = block
        return block

    def _forget(self, address: int) -> None:
        del self._by_address[address]

    def _forget_adopted(self) -> None:
        """Forget adopted memory that nobody else holds."""
        for address, block in list(self._adopted.items()):
            if torch._C._storage_Use_Count(block.storage._cdata) == 1:
                del self._adopted[address], self._by_address[address]
        self._most_adopted = max(_FEW, 2 * len(self._adopted))

    def _make(self, kind: MemoryKind, num_bytes: int, name: str) -> Block:
        whole = memoryview(bytearray(_POISON) * (num_bytes + _ALIGNMENT))
        start = -torch.frombuffer(whole, dtype=torch.uint8).data_ptr() % _ALIGNMENT
        memory = whole[start : start + max(1, num_bytes)]
        storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
        block = Block(name=name, kind=kind, storage=storage, num_bytes=num_bytes, memory=memory)
        self._by_address[storage.data_ptr()] = block
        return block


def _hold(block: Block, num_bytes: int, give_back: Callable[[], None]) -> torch.Tensor:
    """Return a tensor over a block; `give_back` is called when its storage is freed."""
    assert block.memory is not None
    # A view of its own: torch holds it for as long as the storage of this tensor lives.
    held = block.memory[: max(1, num_bytes)]
    weakref.finalize(held, give_back).atexit = False  # the process ends, nothing is reused
    tensor = torch.frombuffer(held, dtype=torch.uint8)
    return tensor if num_bytes else tensor[:0]


def alias(tensor: torch.Tensor, block: Block) -> torch.Tensor:
    """Return the same elements by address, without holding the tensor's own storage."""
    same = torch.empty(0, dtype=tensor.dtype).set_(
        block.storage, tensor.storage_offset(), tensor.size(), tensor.stride()
    )
    return with_bits_of(tensor, same)


def with_bits_of(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return a view of `values` with the conjugation and negation bits of `tensor`."""
    if tensor.is_conj():
        values = values.conj()
    return torch._neg_view(values) if tensor.is_neg() else values


def byte_ranges(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """Return the bytes of its block that a tensor covers, as (start, end) pairs.

    A strided tensor gives several ranges; beyond 1,024 pieces, one range from the first byte to the
    last.
    """
    if not tensor.numel():
        return []
    width = tensor.element_size()
    run = 1
    dims: list[tuple[int, int]] = []
    for size, stride in sorted(
        zip(tensor.size(), tensor.stride(), strict=True), key=lambda d: d[1]
    ):
        if size == 1 or stride == 0:
            continue
        if stride == run:
            run *= size
        else:
            dims.append((size, stride))
    starts = [int(tensor.storage_offset())]
    for number, (size, stride) in enumerate(dims):
        if len(starts) * size > _MAX_RUNS:
            last = starts[-1] + sum((n - 1) * s for n, s in dims[number:])
            return [(starts[0] * width, (last + run) * width)]
        starts = [start + stride * step for step in range(size) for start in starts]
    return [(start * width, (start + run) * width) for start in starts]
