"""Memory of the simulated device, in blocks that are reused.

Device memory follows torch's caching allocator: a freed block goes back at once to the stream that
it was allocated on, even if queued work still uses it. The next allocation there takes the smallest
free block that is large enough; what it does not need stays free, and free neighbours become one
block again. So queued work reads and writes by address, as a kernel does, and never keeps memory
alive.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.nn.parameter import is_lazy

from gapless.device.torch_private import is_storage_held_once, is_zero_tensor, neg_view
from gapless.testing.simulated.history import Grid, History


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.testing.simulated.history import Span
    from gapless.testing.simulated.queues import Mark


MemoryKind = Literal["device", "pinned"]

# As torch's allocators: blocks are multiples of 512 bytes, aligned for every vector load. Those of
# up to 1 MiB come from other memory than larger ones, whose rest is split off only above 1 MiB.
_GRAIN = 512
_ALIGNMENT = 64
_MOST_SMALL = 1 << 20

# All bits set: NaN in every floating dtype and -1 in every signed one, so that a read of memory that
# was never written shows in the values.
_POISON = b"\xff"

# A strided view of more pieces than this is recorded as a grid, not as a range for each.
_MAX_RUNS = 128

# With fewer adopted blocks than this, freed ones are not looked for.
_FEW = 64


@dataclass(eq=False, kw_only=True)
class Block:
    """A range of memory.

    Attributes:
        name: in reports.
        kind: `device` or `pinned`.
        storage: owns the memory while the simulation lives; device blocks that were made at once
            overlap in it, from the start of each to the end of the last.
        num_bytes: its size.
        address: of its first byte.
        memory: the same memory, to make tensors from; None for adopted memory.
        history: accesses so far, kept when the block is freed and reused.
        start: its first byte in the history, which device blocks that were made at once share.
        used_by: streams passed to `record_stream`, whose work must end before reuse.
        stream: the stream or graph that it was allocated for and goes back to.
        is_small: it is from the memory for small blocks.
        marks: ends of work that must be done before reuse, by stream; set when it is freed.
        is_free: it can be allocated.
        before: the block that ends where this one starts.
        after: the block that starts where this one ends.
    """

    name: str
    kind: MemoryKind
    storage: torch.UntypedStorage
    num_bytes: int
    address: int
    memory: memoryview | None = None
    history: History = field(default_factory=History)
    start: int = 0
    used_by: set[Any] = field(default_factory=set)
    stream: object = None
    is_small: bool = True
    marks: dict[Any, Mark] = field(default_factory=dict)
    is_free: bool = False
    before: Block | None = None
    after: Block | None = None


_BY_SIZE = attrgetter("num_bytes", "address")


class Memory:
    """Hand out blocks, and find the block that a tensor lies in.

    Args:
        release: called with a block that is freed; returns the ends of work that must be done
            before it is reused, by stream.
        reuse: called with the ends of work that were done when a block is reused.

    Attributes:
        num_blocks: device blocks made of fresh memory so far.
        in_use_bytes: device memory in use.
        peak_bytes: most memory in use since the last reset.
    """

    def __init__(
        self,
        release: Callable[[Block], dict[Any, Mark]],
        reuse: Callable[[dict[Any, Mark]], None],
    ) -> None:
        self._release = release
        self._reuse = reuse
        self._by_address: dict[int, Block] = {}
        self._adopted: dict[int, Block] = {}
        self._most_adopted = _FEW
        # Freed when a tensor ends, which may be at any moment; sorted in at the next allocation.
        self._freed: deque[Block] = deque()
        self._free: dict[tuple[object, bool], list[Block]] = {}
        self.num_blocks = 0
        self.in_use_bytes = 0
        self.peak_bytes = 0

    def find(self, tensor: torch.Tensor) -> Block | None:
        """Return the block that a tensor lies in; None for other host memory."""
        if tensor.layout is not torch.strided or is_lazy(tensor) or is_zero_tensor(tensor):
            return None
        return self._by_address.get(tensor.untyped_storage().data_ptr())

    def at(self, address: int, num_bytes: int) -> torch.Tensor | None:
        """Return the bytes at an address as a tensor; None for other host memory."""
        for block in self._by_address.values():
            start = address - block.address
            if 0 <= start < block.num_bytes:
                empty = torch.empty(0, dtype=torch.uint8, device="cpu")
                return empty.set_(block.storage, start, (num_bytes,), (1,))
        return None

    def allocate(self, num_bytes: int, *, stream: object) -> torch.Tensor:
        """Return device memory as a uint8 tensor.

        Args:
            num_bytes: the block has at least this size.
            stream: the stream or graph that the block comes from and goes back to.
        """
        self._collect()
        size = max(-(-num_bytes // _GRAIN) * _GRAIN, _GRAIN)
        is_small = size <= _MOST_SMALL
        free = self._free.setdefault((stream, is_small), [])
        at = bisect_left(free, (size, 0), key=_BY_SIZE)
        if at < len(free):
            block = free.pop(at)
            block.is_free = False
            if block.num_bytes - size > (0 if is_small else _MOST_SMALL):
                insort(free, self._split(block, size), key=_BY_SIZE)
            self._reuse(block.marks)
            block.marks = {}
        else:
            self.num_blocks += 1
            block = self._make("device", size, f"device block {self.num_blocks}")
            block.stream, block.is_small = stream, is_small
        block_bytes = block.num_bytes
        self.in_use_bytes += block_bytes
        self.peak_bytes = max(self.peak_bytes, self.in_use_bytes)

        def give_back() -> None:
            self.in_use_bytes -= block_bytes
            block.marks = self._release(block)
            self._freed.append(block)

        return _hold(block, num_bytes, give_back)

    def _collect(self) -> None:
        """Take in the blocks that were freed, except those that other streams still use."""
        waiting = []
        while self._freed:
            block = self._freed.popleft()
            if all(mark.is_done for mark in block.marks.values()):
                self._put_back(block)
            else:
                waiting.append(block)
        self._freed.extend(waiting)

    def _put_back(self, block: Block) -> None:
        free = self._free[block.stream, block.is_small]
        before, after = block.before, block.after
        if after is not None and after.is_free:
            _remove(free, after)
            self._join(block, after)
        if before is not None and before.is_free:
            _remove(free, before)
            self._join(before, block)
            block = before
        block.is_free = True
        insort(free, block, key=_BY_SIZE)

    def _split(self, block: Block, size: int) -> Block:
        """Cut a block after `size` bytes; return the rest, which is free."""
        assert block.memory is not None
        rest = self._block_of(block.memory[size:], "device", block.num_bytes - size, block.name)
        rest.history, rest.start = block.history, block.start + size
        rest.stream, rest.is_small = block.stream, block.is_small
        rest.marks, rest.is_free = dict(block.marks), True
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        block.after, block.num_bytes = rest, size
        return rest

    def _join(self, block: Block, rest: Block) -> None:
        """Make one block of two neighbours."""
        self._forget(rest.address)
        block.num_bytes += rest.num_bytes
        block.after = rest.after
        if block.after is not None:
            block.after.before = block
        for stream, mark in rest.marks.items():
            known = block.marks.get(stream)
            if known is None or known.number < mark.number:
                block.marks[stream] = mark

    def pin(self, num_bytes: int) -> torch.Tensor:
        """Return page-locked host memory as a uint8 tensor."""
        block = self._make("pinned", num_bytes, f"pinned buffer of {num_bytes:,} bytes")
        # Queued copies hold the memory, as torch's allocator holds it for them.
        return _hold(block, num_bytes, lambda: self._forget(block.address))

    def adopt(self, tensor: torch.Tensor) -> Block:
        """Turn host memory that device work uses, such as a model's weights, into device memory."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        block = Block(
            name=f"{shape} tensor",
            kind="device",
            storage=storage,
            num_bytes=storage.nbytes(),
            address=address,
        )
        if not address:
            return block  # an empty tensor has no address
        if len(self._adopted) >= self._most_adopted:
            self._forget_adopted()
        self._by_address[address] = self._adopted[address] = block
        return block

    def _forget(self, address: int) -> None:
        del self._by_address[address]

    def _forget_adopted(self) -> None:
        """Forget adopted memory that nothing else holds."""
        for address, block in list(self._adopted.items()):
            if is_storage_held_once(block.storage):
                del self._adopted[address], self._by_address[address]
        self._most_adopted = max(_FEW, 2 * len(self._adopted))

    def _make(self, kind: MemoryKind, num_bytes: int, name: str) -> Block:
        whole = memoryview(bytearray(_POISON) * (num_bytes + _ALIGNMENT))
        start = -torch.frombuffer(whole, dtype=torch.uint8).data_ptr() % _ALIGNMENT
        return self._block_of(whole[start : start + max(1, num_bytes)], kind, num_bytes, name)

    def _block_of(self, memory: memoryview, kind: MemoryKind, num_bytes: int, name: str) -> Block:
        storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
        block = Block(
            name=name,
            kind=kind,
            storage=storage,
            num_bytes=num_bytes,
            address=storage.data_ptr(),
            memory=memory,
        )
        self._by_address[block.address] = block
        return block


def _remove(free: list[Block], block: Block) -> None:
    del free[bisect_left(free, _BY_SIZE(block), key=_BY_SIZE)]


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
    same = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(
        block.storage, tensor.storage_offset(), tensor.size(), tensor.stride()
    )
    return with_bits_of(tensor, same)


def with_bits_of(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return a view of `values` with the conjugation and negation bits of `tensor`."""
    if tensor.is_conj():
        values = values.conj()
    return neg_view(values) if tensor.is_neg() else values


def spans_of(tensor: torch.Tensor, start: int = 0) -> list[Span]:
    """Return the bytes that a tensor covers, where its storage starts at the byte `start`.

    A strided tensor gives a range for each piece, and a grid if there are very many.
    """
    if not tensor.numel():
        return []
    width = tensor.element_size()
    first = start + int(tensor.storage_offset()) * width
    if tensor.is_contiguous():
        return [(first, first + tensor.numel() * width)]
    run, count = 1, 1
    dims: list[tuple[int, int]] = []
    for size, stride in sorted(
        zip(tensor.size(), tensor.stride(), strict=True), key=lambda d: d[1]
    ):
        if size == 1 or stride == 0:
            continue
        if stride == run and not dims:
            run *= size
        else:
            dims.append((size, stride))
            count *= size
    if count > _MAX_RUNS:
        return [Grid(first, run * width, tuple((size, step * width) for size, step in dims))]
    starts = [first]
    for size, stride in dims:
        starts = [begin + stride * width * step for step in range(size) for begin in starts]
    return [(begin, begin + run * width) for begin in starts]
