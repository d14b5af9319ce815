"""How many validation pairs are translated, in each validation and at a run's end."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from gapless.nmt.data.corpus import Pairs


# Greedy translations of this many validation sentences show how far the model is.
_NUM_TRANSLATED = 200

# With more of them the final model is chosen.
_NUM_COMPARED = 500


def num_translated(pairs: Pairs) -> int:
    """Return how many of the validation pairs are translated in a validation."""
    return min(len(pairs), _NUM_TRANSLATED)


def num_compared(pairs: Pairs) -> int:
    """Return how many of the validation pairs are translated to compare weights at a run's end."""
    return min(len(pairs), _NUM_COMPARED)
