"""What is remembered of each byte of a block: the last write, and the reads since.

Most accesses are a few ranges of bytes, so a block is kept as intervals. A view of very many pieces,
such as a column of a tall matrix, would make an interval of each: from the first such view on, the
block is kept as tables, with an entry for each of its smallest pieces.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from gapless.device.torch_private import DisableTorchDispatch, DisableTorchFunction


if TYPE_CHECKING:
    from collections.abc import Iterator


Kind = Literal["read", "write"]

# Numbers of accesses that no table holds any more are dropped when there are this many.
_MANY = 4096


@dataclass(frozen=True, slots=True)
class Access:
    """One read or write of a range of bytes.

    Attributes:
        agent: `host`, or the name of a stream.
        tick: the agent's own time.
        kind: `read` or `write`.
        what: the operation, such as `aten.add` or `copy H2D`.
        site: file:line of the call.
    """

    agent: str
    tick: int
    kind: Kind
    what: str
    site: str

    def __str__(self) -> str:
        return f"{self.agent} {self.kind}s it in {self.what} at {self.site}"


@dataclass(frozen=True, slots=True)
class Grid:
    """Runs of bytes at regular distances, in any number of dimensions.

    Attributes:
        start: the first byte.
        run: bytes of each run.
        dims: number and distance in bytes of the runs, in each dimension.
    """

    start: int
    run: int
    dims: tuple[tuple[int, int], ...] = ()

    @property
    def end(self) -> int:
        """The byte behind the last."""
        return self.start + sum((size - 1) * stride for size, stride in self.dims) + self.run

    @property
    def unit(self) -> int:
        """The largest number of bytes of which all its runs and distances are multiples."""
        return gcd(self.start, self.run, *(stride for _, stride in self.dims))

    def of(self, table: torch.Tensor, unit: int) -> torch.Tensor:
        """Return its entries of a table with an entry for each `unit` bytes."""
        sizes = [size for size, _ in self.dims]
        strides = [stride // unit for _, stride in self.dims]
        return table.as_strided([*sizes, self.run // unit], [*strides, 1], self.start // unit)


# Bytes of a block: from a start to an end, or a grid.
Span: TypeAlias = "tuple[int, int] | Grid"


@dataclass(slots=True)
class _Cell:
    """The last write to the bytes from a start to `end`, and the reads since."""

    end: int
    write: Access | None = None
    reads: dict[str, Access] = field(default_factory=dict)

    def split_at(self, offset: int) -> _Cell:
        """Keep the bytes before `offset`; return a cell for the rest."""
        rest = _Cell(self.end, self.write, dict(self.reads))
        self.end = offset
        return rest


class History:
    """The last write to each byte of one block, and the reads since."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._cells: list[_Cell] = []
        self._tables: _Tables | None = None

    def record(self, now: Access, span: Span) -> Iterator[Access]:
        """Keep an access; yield the earlier ones to its bytes that it must be ordered behind."""
        if self._tables is None and isinstance(span, Grid):
            self._tables = _Tables()
            for start, cell in zip(self._starts, self._cells, strict=True):
                self._tables.take(Grid(start, cell.end - start), cell)
            self._starts, self._cells = [], []
        if self._tables is not None:
            grid = span if isinstance(span, Grid) else Grid(span[0], span[1] - span[0])
            yield from self._tables.record(now, grid)
        else:
            assert not isinstance(span, Grid)
            yield from self._record_range(now, *span)

    def _record_range(self, now: Access, start: int, end: int) -> Iterator[Access]:
        for cell in self.cells(start, end):
            if cell.write is not None:
                yield cell.write
            if now.kind == "read":
                cell.reads[now.agent] = now
            else:
                yield from cell.reads.values()
                cell.write, cell.reads = now, {}
        if now.kind == "write":
            self.merge(start, end)

    def cells(self, start: int, end: int) -> list[_Cell]:
        """Return cells that cover exactly the bytes from `start` to `end`."""
        self._cut(start)
        self._cut(end)
        at = bisect_left(self._starts, start)
        found = []
        while start < end:
            if at == len(self._starts) or self._starts[at] > start:
                until = end if at == len(self._starts) else min(end, self._starts[at])
                self._starts.insert(at, start)
                self._cells.insert(at, _Cell(until))
            found.append(self._cells[at])
            start = self._cells[at].end
            at += 1
        return found

    def merge(self, start: int, end: int) -> None:
        """Keep the bytes from `start` to `end`, all just written, as one cell."""
        first = bisect_left(self._starts, start)
        last = bisect_left(self._starts, end)
        if last - first > 1:
            self._cells[first].end = end
            del self._starts[first + 1 : last], self._cells[first + 1 : last]

    def _cut(self, offset: int) -> None:
        at = bisect_right(self._starts, offset) - 1
        if at >= 0 and self._starts[at] < offset < self._cells[at].end:
            self._starts.insert(at + 1, offset)
            self._cells.insert(at + 1, self._cells[at].split_at(offset))


@contextmanager
def _plain() -> Iterator[None]:
    """Let no mode see the operations of the body."""
    with (
        torch.inference_mode(),
        DisableTorchFunction(),
        DisableTorchDispatch(),
    ):
        yield


class _Tables:
    """The last write to each unit of bytes and the reads since, as numbers of accesses; 0 is none."""

    def __init__(self) -> None:
        self._unit = 0
        self._accesses: list[Access | None] = [None]
        with _plain():
            self._write = torch.zeros(0, dtype=torch.int32, device="cpu")
        self._reads: dict[str, torch.Tensor] = {}

    def take(self, grid: Grid, cell: _Cell) -> None:
        """Keep what is known of some bytes."""
        for access in (cell.write, *cell.reads.values()):
            if access is not None:
                list(self.record(access, grid))

    def record(self, now: Access, grid: Grid) -> list[Access]:
        """Keep an access; return the earlier ones to its bytes that it must be ordered behind."""
        with _plain():
            return self._record(now, grid)

    def _record(self, now: Access, grid: Grid) -> list[Access]:
        if len(self._accesses) >= _MANY:
            self._drop_unused()
        self._make_fit(grid)
        found = self._numbers_in(self._write, grid)
        number = len(self._accesses)
        self._accesses.append(now)
        if now.kind == "read":
            if now.agent not in self._reads:
                self._reads[now.agent] = torch.zeros_like(self._write)
            grid.of(self._reads[now.agent], self._unit).fill_(number)
        else:
            for table in self._reads.values():
                found |= self._numbers_in(table, grid)
                grid.of(table, self._unit).fill_(0)
            grid.of(self._write, self._unit).fill_(number)
        return [access for at in sorted(found) if (access := self._accesses[at]) is not None]

    def _numbers_in(self, table: torch.Tensor, grid: Grid) -> set[int]:
        return set(grid.of(table, self._unit).reshape(-1).bincount().nonzero().view(-1).tolist())

    def _make_fit(self, grid: Grid) -> None:
        """Make the unit small enough and the tables long enough."""
        unit = gcd(self._unit, grid.unit)
        times = self._unit // unit
        missing = max(0, grid.end // unit - self._write.numel() * times)

        def fit(table: torch.Tensor) -> torch.Tensor:
            if times > 1:
                table = table.repeat_interleave(times)
            return torch.nn.functional.pad(table, (0, missing)) if missing else table

        self._write = fit(self._write)
        self._reads = {agent: fit(table) for agent, table in self._reads.items()}
        self._unit = unit

    def _drop_unused(self) -> None:
        tables = [self._write, *self._reads.values()]
        used = torch.cat(tables).unique().long()
        used = used[used > 0]
        numbers = torch.zeros(len(self._accesses), dtype=torch.int32, device="cpu")
        numbers[used] = torch.arange(1, len(used) + 1, dtype=torch.int32, device="cpu")
        self._write = numbers[self._write.long()]
        self._reads = {agent: numbers[table.long()] for agent, table in self._reads.items()}
        self._accesses = [None, *(self._accesses[at] for at in used.tolist())]
