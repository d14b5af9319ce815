"""Warm-up runs: the eager runs of a step before its capture, for each key."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from gapless.graphs.refusal import Refusal, objections_to


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from gapless.graphs.observation import Observer
    from gapless.pipeline.tree import Tree


# A plain value that is new in every batch makes each batch a key of its own. Keys are only
# counted up to here, so that memory stays bounded.
_MAX_KEYS = 10_000

# Say so if this many batches are all of different keys.
_NUM_UNLIKE = 200


class WarmUps:
    """Run a step eagerly for the first batches of each key, and watch it.

    Kernels are loaded and chosen in these runs, workspaces and the optimizer's state are made.

    Args:
        num_warmup: runs of each key.
        observer: of the runs.

    Attributes:
        note: what to tell the user about the batches seen, None if there is nothing.
    """

    def __init__(self, num_warmup: int, observer: Observer) -> None:
        self.note: str | None = None
        self.num_warmup = num_warmup
        self._observer = observer
        # By the hash of a key: keys themselves hold every plain value of their batch.
        self._num_runs: Counter[int] = Counter()
        self._optimizer_calls: dict[int, list[int]] = {}
        self._former: Tree | None = None

    def are_done(self, key: Hashable) -> bool:
        """Return whether a key had all of its runs."""
        return self._num_runs[hash(key)] >= self.num_warmup

    def is_last(self, key: Hashable) -> bool:
        """Return whether the next run of a key is its last one."""
        return self._num_runs[hash(key)] == self.num_warmup - 1

    def run(
        self, key: Hashable, tree: Tree, work: Callable[[Any], Any]
    ) -> tuple[Any, list[Refusal]]:
        """Run a step on a batch; return its result, and all reasons why it cannot be captured.

        Sync: Does not block the host, unless the step does.
        """
        number = hash(key)
        is_first, is_last = self._num_runs[number] == 0, self.is_last(key)
        with self._observer.watch(is_first=is_first, is_last=is_last) as seen:
            out = work(tree.value)
        former_calls = self._optimizer_calls.get(number, seen.optimizer_calls)
        refusals = objections_to(seen, former_calls=former_calls)
        too_many = self._too_many_keys()
        if too_many is not None:
            refusals.append(too_many)
        self._optimizer_calls[number] = seen.optimizer_calls
        self._num_runs[number] += 1
        self._note_unlike(tree)
        return out, refusals

    def _too_many_keys(self) -> Refusal | None:
        if len(self._num_runs) <= _MAX_KEYS:
            return None
        return Refusal(
            "too_many_keys",
            f"there are more than {_MAX_KEYS:,} kinds of batches, by shapes and plain values",
        )

    def _note_unlike(self, tree: Tree) -> None:
        """Say so if no two batches of the first many have one key."""
        if len(self._num_runs) == _NUM_UNLIKE - 1:
            self._former = tree
        elif self._former and len(self._num_runs) == _NUM_UNLIKE == self._num_runs.total():
            self.note = (
                f"no two of {_NUM_UNLIKE} batches are alike, so nothing is captured: "
                f"{self._former.difference(tree)} differs; pad tensors to fewer shapes, and keep "
                "other values out of the batch"
            )
            self._former = None
