"""A layout says which sentence pairs form a batch, and how their tokens stand in it.

There are three. `PaddedLayout`: pairs of similar length, each batch padded to its longest
sentence. `FixedLayout`: padded to a few fixed shapes. `PackedLayout`: one sentence after the
other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol


if TYPE_CHECKING:
    from gapless.nmt.data.batch import AnyBatch
    from gapless.nmt.data.token_pairs import Numbers, Rows


class BatchShape(Protocol):
    """The size of a batch; makes tensors of that size."""

    @property
    def num_tokens(self) -> int:
        """Source and target positions of a batch, padding included."""

    def collate(self, src: Rows, tgt: Rows, *, update_tokens: int, ends_update: bool) -> AnyBatch:
        """Return the batch of these pairs.

        Args:
            src: sources with end.
            tgt: targets with begin and end.
            update_tokens: target tokens of the whole update.
            ends_update: whether this is the update's last batch.
        """


class BatchPlan(NamedTuple):
    """Which pairs form a batch, and its size.

    Attributes:
        pairs: their numbers.
        shape: size of the batch.
    """

    pairs: Numbers
    shape: BatchShape


class Layout(Protocol):
    """Divides the pairs of a training set into batches."""

    def batches(self, order: Numbers, *, multiple_of: int = 1) -> list[BatchPlan]:
        """Divide pairs into batches.

        Args:
            order: the numbers of all pairs, or of some; another order gives other batches.
            multiple_of: each fixed shape but the largest has a multiple of so many batches, of which an
                update of one shape is made.
        """

    def examples(self) -> list[BatchPlan]:
        """Return a batch of each fixed shape; none if each batch has a shape of its own."""

    def describe(self) -> str:
        """Return how batches are laid out, for people."""
