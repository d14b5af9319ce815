"""Memory of a device taken in pieces, so that few launches copy many tensors.

A training step touches thousands of tensors. Here their bytes are cut into pieces, and pieces of
one dtype are put together in chunks of bounded size. A chunk is copied to a buffer, or back, by
one or two calls. In the buffer each piece begins a new row, so that sums over rows never mix two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from gapless.graphs.reads.touched import joined, plain_parts, span_of


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gapless.device.base import Device


ROW_BYTES = 4096

# The extra memory of one chunk; larger ones would save launches.
CHUNK_BYTES = 16 << 20

# Copied as numbers of the widest of these that fits a piece.
_WIDTHS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes of one storage.

    Attributes:
        name: for people.
    """

    storage: torch.UntypedStorage
    start: int
    end: int
    dtype: torch.dtype
    name: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a region that lies in one chunk.

    Attributes:
        row: where it begins in the chunk.
    """

    region: Region
    start: int
    num_bytes: int
    row: int

    @property
    def num_rows(self) -> int:
        """Rows that it takes in the chunk."""
        return -(-self.num_bytes // ROW_BYTES)


@dataclass(slots=True)
class Chunk:
    """Pieces of one dtype that lie in one buffer together."""

    dtype: torch.dtype
    pieces: list[Piece] = field(default_factory=list)
    num_rows: int = 0
    _copied: list[_Copied] = field(default_factory=list)
    _piece_of_row: torch.Tensor | None = None
    _places: dict[int, list[tuple[_Copied, list[torch.Tensor]]]] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Size of its buffer."""
        return self.num_rows * ROW_BYTES

    def copy_out(self, buffer: torch.Tensor) -> None:
        """Copy the pieces to a buffer of bytes, which is of the chunk's size."""
        for some, places in self._places_in(buffer):
            torch._foreach_copy_(places, some.live)

    def copy_back(self, buffer: torch.Tensor) -> None:
        """Copy the pieces from a buffer to where they belong."""
        for some, places in self._places_in(buffer):
            torch._foreach_copy_(some.live, places)

    def piece_of_row(self, device: Device) -> torch.Tensor:
        """Return the number of the piece in each row, int64 on the device."""
        if self._piece_of_row is None:
            counts = torch.tensor([piece.num_rows for piece in self.pieces], device="cpu")
            pinned = device.host_buffer(self.num_rows * 8, pinned=True).view(torch.int64)
            pinned.copy_(torch.arange(len(counts), device="cpu").repeat_interleave(counts))
            self._piece_of_row = device.device_buffer(self.num_rows * 8).view(torch.int64)
            device.copy(self._piece_of_row, pinned)
        return self._piece_of_row

    def forget(self) -> None:
        """Let go of buffers, and of device memory that was made for it."""
        self._places, self._piece_of_row = {}, None

    def _places_in(self, buffer: torch.Tensor) -> list[tuple[_Copied, list[torch.Tensor]]]:
        # These hold the buffer, so that no other one begins there.
        found = self._places.get(buffer.data_ptr())
        if found is None:
            found = [(some, some.places_in(buffer)) for some in self._by_width()]
            self._places[buffer.data_ptr()] = found
        return found

    def _by_width(self) -> list[_Copied]:
        if not self._copied:
            pieces: dict[int, list[Piece]] = {}
            for piece in self.pieces:
                pieces.setdefault(_width_of(piece), []).append(piece)
            self._copied = [
                _Copied.of(some, width, self.num_bytes) for width, some in pieces.items()
            ]
        return self._copied


@dataclass(frozen=True, slots=True)
class _Copied:
    """Pieces of a chunk that are copied by one call, as numbers of one width.

    Attributes:
        dtype: of these numbers.
        live: the pieces in their own memory.
        sizes: of what the buffer is split into: in turn what lies between two pieces, and a piece.
    """

    dtype: torch.dtype
    live: list[torch.Tensor]
    sizes: list[int]

    @classmethod
    def of(cls, pieces: list[Piece], width: int, num_bytes: int) -> _Copied:
        """Return those of one width in a buffer of so many bytes, in the order of their rows."""
        live, sizes, end = [], [], 0
        dtype, place = _WIDTHS[width], pieces[0].region.storage.device
        for piece in pieces:
            view = torch.empty(0, dtype=dtype, device=place)
            size = piece.num_bytes // width
            live.append(view.set_(piece.region.storage, piece.start // width, (size,), (1,)))
            start = piece.row * ROW_BYTES // width
            sizes += [start - end, size]
            end = start + size
        return cls(dtype, live, [*sizes, num_bytes // width - end])

    def places_in(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Return where the pieces lie in a buffer."""
        return list(buffer.view(self.dtype).split(self.sizes)[1::2])


def regions_of(tensors: Iterable[torch.Tensor], names: Iterable[str] = ()) -> list[Region]:
    """Return the memory of tensors, each byte once.

    Args:
        tensors: on one device.
        names: of the tensors, as many; the first names what several share.
    """
    storages: dict[int, torch.UntypedStorage] = {}
    found: dict[int, dict[tuple[int, int], tuple[torch.dtype, str]]] = {}
    given = iter(names)
    for tensor in tensors:
        name = next(given, None) or described(tensor)
        for part in plain_parts(tensor):
            span, storage = span_of(part), part.untyped_storage()
            address = storage.data_ptr()
            if span[0] < span[1] and address:
                # Two storages may share memory; the larger one holds all of it.
                if storage.nbytes() > storages.setdefault(address, storage).nbytes():
                    storages[address] = storage
                found.setdefault(address, {}).setdefault(span, (part.dtype, name))
    return [
        region
        for address, spans in found.items()
        for region in _regions_in(storages[address], spans)
    ]


def regions_of_one(tensor: torch.Tensor, name: str) -> list[Region]:
    """Return the memory of one tensor, which has no gaps; of a sparse one that of its parts."""
    return [
        Region(storage, *span, part.dtype, name)
        for part in plain_parts(tensor)
        if (storage := part.untyped_storage()).data_ptr() and (span := span_of(part))[0] < span[1]
    ]


def _regions_in(
    storage: torch.UntypedStorage, spans: dict[tuple[int, int], tuple[torch.dtype, str]]
) -> Iterator[Region]:
    for start, end in joined(spans):
        inside = [spans[span] for span in spans if start <= span[0] and span[1] <= end]
        # Of a tensor that covers all if there is one, rather than of its views.
        dtype, name = spans.get((start, end), inside[0])
        is_one_kind = (start, end) in spans or len({dtype for dtype, _ in inside}) == 1
        yield Region(storage, start, end, dtype if is_one_kind else torch.uint8, name)


def chunks_of(regions: Iterable[Region]) -> list[Chunk]:
    """Cut regions into pieces, and put pieces of one dtype together."""
    done: list[Chunk] = []
    opened: dict[torch.dtype, Chunk] = {}
    most_rows = CHUNK_BYTES // ROW_BYTES
    for region in regions:
        start = region.start
        while start < region.end:
            chunk = opened.get(region.dtype)
            if chunk is None:
                chunk = opened[region.dtype] = Chunk(region.dtype)
            if chunk.num_rows >= most_rows:
                done.append(opened.pop(region.dtype))
                continue
            room = (most_rows - chunk.num_rows) * ROW_BYTES
            piece = Piece(region, start, min(room, region.end - start), chunk.num_rows)
            chunk.pieces.append(piece)
            chunk.num_rows += piece.num_rows
            start += piece.num_bytes
    return [*done, *opened.values()]


def _width_of(piece: Piece) -> int:
    # The largest power of two, of those up to 8, that divides all of these.
    parts = piece.region.storage.data_ptr() | piece.start | piece.num_bytes | 8
    return parts & -parts


def described(tensor: torch.Tensor) -> str:
    """Return what to call a tensor that has no name."""
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    return f"a {str(tensor.dtype).removeprefix('torch.')} tensor of shape {shape}"


def joined_names(names: Iterable[str], *, most: int = 3) -> str:
    """Return names for a line of text, each once, the first few."""
    found = list(dict.fromkeys(names))
    rest = len(found) - most
    return ", ".join(found[:most]) + (f" and {rest} more" if rest > 0 else "")
