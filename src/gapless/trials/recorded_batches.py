"""The variant in which batches that the loader gave before are handed out again."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.torch_private import (
    NEXT_DATA,
    SingleIterator,
    WorkersIterator,
    dataset_of,
    has_next_data,
    is_over_stream,
    next_index_of,
    num_batches_ahead,
    num_workers_of,
    sampler_of,
    version_of,
)
from gapless.unnoticed import Patches


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.records.finding import Finding


_CODES = frozenset(["GAP016"])

# Of each loader.
_MOST_BATCHES = 16
_MOST_BYTES = 512 << 20

# One batch alone may be an odd one.
_FEWEST_BATCHES = 2

# After so many steps what has come is enough, or nothing will come.
_MOST_STEPS = 32

# Where torch's loaders get a batch.
_ITERATORS = [kind for kind in (SingleIterator, WorkersIterator) if has_next_data(kind)]


class RecordedBatches:
    """Lets torch's loaders hand out batches that are there, again and again.

    It shows what a loader would bring for which nobody waits. Batches are as the loader gave them:
    on the host, and page-locked if it does that. Each batch takes the place of one that the loader
    would have made, so an epoch has as many as before; losses are those of other data.
    """

    name = "recorded batches"
    change = "The loader hands out batches that it has made before, without a wait."

    def __init__(self) -> None:
        self.refusal = ""
        self._patches = Patches()
        # By what is the same of a loader that is made anew in each epoch.
        self._recorded: dict[Any, _Recorded] = {}
        self._is_in = False
        self._is_full = False
        self._num_asked = 0
        self._num_kept = 0
        self._num_handed = 0
        self._num_ahead = 0
        self._is_endless = False

    @property
    def details(self) -> tuple[str, ...]:
        """How many batches there were."""
        if not self._num_handed:
            return ()
        counted = f"{self._num_kept} batches were handed out {self._num_handed:,} times."
        if not self._is_endless:
            return (counted,)
        return (counted, "The data set has no length: epochs were longer by as many batches.")

    @property
    def is_settled(self) -> bool:
        """Whether batches are handed out again; counts steps until enough are recorded."""
        if self._is_full:
            return True
        self._num_asked += 1
        most = max((len(one.batches) for one in self._recorded.values()), default=0)
        is_enough = any(one.is_full for one in self._recorded.values())
        if is_enough or (self._num_asked >= _MOST_STEPS and most >= _FEWEST_BATCHES):
            self._is_full = True
        elif self._num_asked >= _MOST_STEPS:
            self.refusal = "no loader of torch gave a batch in that time"
        # False, so that one step more passes: the steps that follow are the first with recorded batches.
        return False

    @property
    def num_steps_to_recover(self) -> int:
        """As many as the workers have made ahead while nobody asked for batches."""
        return self._num_ahead

    def is_for(self, findings: Sequence[Finding]) -> bool:
        """Return whether the script waits for its loader."""
        return any(finding.code in _CODES for finding in findings)

    def start(self, step_ended: Callable[[Any], None]) -> None:
        """Hand out recorded batches from now on; record some first."""
        self._is_in = True
        try:
            for kind in _ITERATORS:
                self._patches.put(kind, NEXT_DATA, self._next_data(getattr(kind, NEXT_DATA)))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Let loaders make batches from now on."""
        self._is_in = False
        self._patches.take_out()

    def close(self) -> None:
        """Let go of the batches."""
        self.stop()
        self._recorded.clear()

    def _next_data(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def next_data(iterator: Any) -> Any:
            if not self._is_in:
                return make(iterator)
            recorded = self._recorded.setdefault(_loader_of(iterator), _Recorded())
            if not self._is_full:
                return self._record(recorded, make(iterator))
            if recorded.batches and not self.refusal and recorded.is_changed:
                self.refusal = "the script changes its batches in place"
            if not recorded.batches or self.refusal or not self._takes_place(iterator):
                return make(iterator)
            self._num_handed += 1
            return recorded.next().copy()

        return next_data

    def _record(self, recorded: _Recorded, batch: Any) -> Any:
        try:
            if not recorded.is_full:
                recorded.add(batch)
                self._num_kept += 1
        except Exception as error:  # whatever the batch consists of
            self.refusal = f"a batch cannot be copied: {type(error).__name__}: {error}"
        return batch

    def _takes_place(self, iterator: Any) -> bool:
        """Take away the next batch that nobody has begun to make; return False if there is none."""
        self._num_ahead = max(self._num_ahead, num_batches_ahead(iterator))
        if is_over_stream(iterator):
            self._is_endless = True
            return True
        try:
            next_index_of(iterator)()
        except StopIteration:
            return False
        return True


def _loader_of(iterator: Any) -> Any:
    """Return what an iterator shares with those of the same loader, or of one like it."""
    dataset = dataset_of(iterator)
    try:
        length: int | None = len(dataset)
    except (TypeError, NotImplementedError):
        length = None
    return type(dataset), length, type(sampler_of(iterator)), num_workers_of(iterator)


@dataclass
class _Recorded:
    """Batches of one loader.

    Attributes:
        batches: themselves.
        num_handed: how often one was handed out.
        num_bytes: that they take.
    """

    batches: list[_Batch] = field(default_factory=list)
    num_handed: int = 0
    num_bytes: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.batches) >= _MOST_BATCHES or (
            self.num_bytes >= _MOST_BYTES and len(self.batches) >= _FEWEST_BATCHES
        )

    @property
    def is_changed(self) -> bool:
        """Whether the next batch is not as the loader gave it any more."""
        return self.batches[self.num_handed % len(self.batches)].is_changed

    def add(self, batch: Any) -> None:
        kept = _Batch(batch)
        kept.copy()  # not everything that can be written can be read
        self.batches.append(kept)
        self.num_bytes += kept.num_bytes

    def next(self) -> _Batch:
        batch = self.batches[self.num_handed % len(self.batches)]
        self.num_handed += 1
        return batch


class _Batch:
    """One batch: its tensors, and everything else as it is made anew each time.

    Scripts take batches apart: they pop and replace what is in them.
    """

    def __init__(self, batch: Any) -> None:
        self._tensors: list[torch.Tensor] = []
        self._versions: list[int] = []
        written = io.BytesIO()
        _Writer(written, self._number_of).dump(batch)
        self._written = written.getvalue()

    @property
    def num_bytes(self) -> int:
        return len(self._written) + sum(tensor.nbytes for tensor in self._tensors)

    @property
    def is_changed(self) -> bool:
        return [version_of(tensor) for tensor in self._tensors] != self._versions

    def copy(self) -> Any:
        """Return the batch with its own tensors, in new containers."""
        return _Reader(io.BytesIO(self._written), self._tensors).load()

    def _number_of(self, value: torch.Tensor) -> int:
        self._tensors.append(value)
        self._versions.append(version_of(value))
        return len(self._tensors) - 1


class _Writer(pickle.Pickler):
    """Writes numbers in the place of tensors."""

    def __init__(self, file: io.BytesIO, number_of: Callable[[torch.Tensor], int]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._number_of = number_of

    def persistent_id(self, value: Any) -> int | None:
        return self._number_of(value) if isinstance(value, torch.Tensor) else None


class _Reader(pickle.Unpickler):
    """Puts tensors in the place of their numbers."""

    def __init__(self, file: io.BytesIO, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: int) -> torch.Tensor:
        return self._tensors[number]
