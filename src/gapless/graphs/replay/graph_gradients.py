"""The gradients that graphs hand out: whose memory they are, and who holds them."""

from __future__ import annotations

import weakref
from collections import Counter
from itertools import chain, count
from operator import attrgetter
from sys import getrefcount
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gapless.graphs.reads.same_tensors import (
    OtherTensorError,
    allow_comparisons,
    are_the_same,
    forbid_comparisons,
)
from gapless.pipeline.tree.tensor_layout import has_address


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from gapless.graphs.reads.weight_guards import Gradients


class PoolGradients:
    """Gradients that the graphs of one pool of memory have handed out.

    Somebody may read them after another graph was replayed. Memory that was free in the capture of
    that graph is written by each of its replays, and a graph that was captured later may have made
    gradients there. So these get memory of their own before the replay. Gradients of graphs that
    were captured earlier stay: their memory was not free.

    Attributes:
        handed_out: those of these graphs. They hold the memory until nobody reads it, also where their graph is
            gone.
    """

    def __init__(self) -> None:
        self.handed_out: list[GraphGradients] = []
        self._graphs: weakref.WeakSet[GraphGradients] = weakref.WeakSet()
        self._oldest, self._of_change = -1, -1

    def know(self, gradients: GraphGradients) -> None:
        """Know a graph of the pool for as long as it is there."""
        self._graphs.add(gradients)

    def note(self, gradients: GraphGradients) -> None:
        """Take note that a graph has handed out its gradients."""
        if gradients not in self.handed_out:
            self.handed_out.append(gradients)

    def may_overwrite(self, graph: GraphGradients) -> bool:
        """Return whether nobody keeps a view of what a replay of a graph could overwrite.

        Sync: Does not block the host.
        """
        handed_out = self.handed_out
        if not handed_out or handed_out == [graph]:
            return True
        return all(one.have_no_views() for one in handed_out if one.is_after(graph))

    def let_go(self, graph: GraphGradients) -> None:
        """Give memory of their own to gradients that a replay of a graph could overwrite.

        Sync: Does not block the host.
        """
        handed_out = self.handed_out
        if handed_out and handed_out != [graph]:
            oldest = self._number_of_oldest()
            self.handed_out = [
                one
                for one in handed_out
                if one.number > oldest
                and (one is graph or one.make_way_for(graph) or not one.have_no_views())
            ]

    def _number_of_oldest(self) -> int:
        """Return the number of the graph whose gradients no other can overwrite: all came later."""
        if self._of_change != _holders.num_changes:
            self._of_change = _holders.num_changes
            self._oldest = min((one.number for one in list(self._graphs)), default=-1)
        return self._oldest


class GraphGradients:
    """What the capture of a graph did with the gradients of its weights.

    A graph writes to the memory that gradients had in the capture, also when the loop has set
    them to None since. A loop may keep a gradient: it gets memory of its own before the next
    replay. A loop may keep a view, such as `weight.grad.detach()`, which cannot: then the next step
    runs as written, and from then on gradients are handed out as copies.

    A step may give weights tensors of its own as gradients, such as views of a flat one that it
    keeps. These stay what and where they are.

    Args:
        before: weights and their gradients before the capture; those that they have now are the
            capture's own.
        cuts: gradients that each call between two segments of the graph finds.
        pool: of the graph's memory.
        unused: ids of weights whose gradients a run as written did not use before it let them go.
        others: tensors that were there before the capture, beside these gradients.

    Attributes:
        expected: weights, and the gradients that every replay has to find.
        number: counts the captures of the process.
    """

    def __init__(
        self,
        before: Gradients,
        cuts: Sequence[list[torch.Tensor | None]] = (),
        *,
        pool: PoolGradients,
        unused: Collection[int] = (),
        others: Iterable[torch.Tensor] = (),
    ) -> None:
        self.expected: Gradients = []
        self._weights: list[torch.Tensor] = []
        self._made: list[torch.Tensor | None] = []
        for weight, found in before:
            left = weight.grad
            # If one tensor took the place of another, the step began by letting go of the first,
            # or the proof fails.
            if found is None or left is found or (left is None and id(weight) not in unused):
                self.expected.append((weight, found))
            # Also if the step used them up: user code may read `.grad` after a replay.
            if left is not found:
                self._weights.append(weight)
                self._made.append(left)
        # What was there before is the loop's own, and stays where it is.
        there = {_memory_of(found) for _, found in before if found is not None}
        there |= set(map(_memory_of, others))
        own = [
            [
                tensor
                for tensor in tensors
                if tensor is not None and _memory_of(tensor) not in there
            ]
            for tensors in [*cuts, self._made]
        ]
        self._own = own[-1]
        self._all_own = own
        self._lists: list[list[Any]] = [*cuts, self._made, *own]
        self.replaces = frozenset(map(id, self._weights))
        self.adds_to = {id(weight) for weight, found in self.expected if found is not None}
        # The pool outlives its graphs, and holds some of them.
        self._pool = weakref.ref(pool)
        self.number = next(_numbers)
        self._are_in_place = False
        self._are_copies = False
        self.ids: frozenset[int] = frozenset()
        self._note_ids()
        pool.know(self)
        _holders.add(self)
        self._look_anew()

    def _note_ids(self) -> None:
        """Know what is held by now; who holds it is counted anew."""
        self.ids = frozenset(map(id, self.held()))
        self._of_change = -1

    def _look_anew(self) -> None:
        """Count who holds these gradients if no one but graphs and their weights does."""
        self._of_change = _holders.num_changes
        graphs = [graph for graph in _holders.alive() if not self.ids.isdisjoint(graph.ids)]
        times = Counter(id(tensor) for graph in graphs for tensor in graph.held())
        made = set(map(id, self._made))
        keys = [list(map(id, tensors)) for tensors in self._all_own]
        by_weights = [[key in made for key in some] for some in keys]
        # What `_counts_of` says of each where no weight holds it, and where its weight does.
        self._unheld = [
            ([_UNHELD - 1 + times[key] for key in some], [1] * len(some)) for some in keys
        ]
        self._expected = [
            (
                [ref + _HELD_BY_WEIGHT * is_held for ref, is_held in zip(refs, held, strict=True)],
                [use + is_held for use, is_held in zip(uses, held, strict=True)],
            )
            for (refs, uses), held in zip(self._unheld, by_weights, strict=True)
        ]
        held = chain.from_iterable(graph.held() for graph in graphs)
        self._storages, self._num_holders = _holders_of(chain.from_iterable(self._all_own), held)

    def held(self) -> Iterator[Any]:
        """Return all that is held here, as often as it is."""
        return chain.from_iterable(self._lists)

    def is_after(self, other: GraphGradients) -> bool:
        """Return whether another graph was captured before this one."""
        return self.number > other.number

    def let_go_of(self, before: Gradients) -> list[torch.Tensor]:
        """Return gradients that were there before, and whose values no replay may depend on."""
        expected = {id(weight) for weight, _ in self.expected}
        made = {_memory_of(gradient) for gradient in self._made if gradient is not None}
        return [
            found
            for weight, found in before
            if found is not None and id(weight) not in expected and _memory_of(found) not in made
        ]

    def made_of(self, before: Gradients) -> list[torch.Tensor]:
        """Return gradients that an earlier replay has made, and that the next one replaces."""
        expected = {id(weight) for weight, _ in self.expected}
        made = {_memory_of(gradient) for gradient in self._made if gradient is not None}
        return [
            found
            for weight, found in before
            if found is not None and id(weight) not in expected and _memory_of(found) in made
        ]

    def may_overwrite(self) -> bool:
        """Return whether nobody keeps a view of gradients, which a replay would overwrite.

        Once somebody did, gradients are handed out as copies.

        Sync: Does not block the host.
        """
        pool = self._pool()
        return self.have_no_views() and (pool is None or pool.may_overwrite(self))

    def have_no_views(self) -> bool:
        """Return whether nobody keeps a view of gradients of this graph.

        Sync: Does not block the host.
        """
        if self._of_change != _holders.num_changes:
            self._look_anew()
        if list(map(_num_holders_of, self._storages)) == self._num_holders:
            return True
        self._are_copies = True
        return False

    def are_as_left(self) -> bool:
        """Return whether all is as a replay has left it: then nobody has to let go of any, nor to hand them out.

        Sync: Does not block the host.
        """
        pool = self._pool()
        if (
            self._are_copies
            or self._of_change != _holders.num_changes
            or (pool is not None and pool.handed_out != [self])
            or list(map(_num_holders_of, self._storages)) != self._num_holders
        ):
            return False
        gradients = list(map(_gradient_of, self._weights))
        # As `are_the_same`, one call less.
        forbid_comparisons()
        try:
            if self._made != gradients:
                return False
        except OtherTensorError:
            return False
        finally:
            allow_comparisons()
        # They are counted below.
        del gradients
        for own, expected in zip(self._all_own, self._expected, strict=True):
            if (list(map(getrefcount, own)), list(map(_num_uses_of, own))) != expected:
                return False
        return True

    def let_go(self) -> None:
        """Give memory of their own to gradients that somebody keeps from an earlier replay.

        Sync: Does not block the host.
        """
        pool = self._pool()
        if pool is not None:
            pool.let_go(self)
        self._are_in_place = not self._made or _have(self._weights, self._made)
        if not self._are_in_place:
            # Some may be gradients of their weights, and some not: make all alike.
            self._hand_out(self._made)
        if self._of_change != _holders.num_changes:
            self._look_anew()
        counts = list(map(_counts_of, self._all_own))
        if counts != self._expected:
            _give_memory_to(self._differing(counts, self._expected))
            self._are_in_place = False

    def _differing(self, counts: _Counts, expected: _Counts) -> list[torch.Tensor]:
        """Return the gradients of this graph that are held otherwise than was expected."""
        return [
            tensor
            for tensors, found, known in zip(self._all_own, counts, expected, strict=True)
            for tensor, *numbers in zip(tensors, *found, *known, strict=True)
            if numbers[:2] != numbers[2:]
        ]

    def make_way_for(self, graph: GraphGradients) -> bool:
        """Give memory of their own to what a replay of another graph could overwrite.

        That are gradients that somebody keeps, and those of weights that the other graph knows nothing
        of: it leaves them, where it replaces others. Return whether one is still held in this memory.

        Sync: Does not block the host.
        """
        if self._of_change != _holders.num_changes:
            self._look_anew()
        counts = list(map(_counts_of, self._all_own))
        if counts == self._unheld:
            return False
        # As mostly: the weights hold them, nobody else does, and the other graph replaces all.
        if (
            counts == self._expected
            and self.replaces <= graph.replaces
            and _have(self._weights, self._made)
        ):
            return True
        if self.is_after(graph):
            _give_memory_to(self._read_after(graph, counts))
        return True

    def _read_after(self, graph: GraphGradients, counts: _Counts) -> list[torch.Tensor]:
        """Return the gradients that somebody may read after a replay of another graph."""
        pairs = zip(self._weights, self._made, strict=True)
        weights = {id(made): weight for weight, made in pairs if weight.grad is made}
        if_held = set(map(id, self._differing(counts, self._expected)))
        if_not = set(map(id, self._differing(counts, self._unheld)))
        kept = []
        for tensor in {id(one): one for one in chain.from_iterable(self._all_own)}.values():
            weight = weights.get(id(tensor))
            if weight is None:
                is_read = id(tensor) in if_not
            elif id(weight) in graph.adds_to:
                # It lies in memory that was held in the other graph's capture.
                is_read = False
            else:
                is_read = id(weight) not in graph.replaces or id(tensor) in if_held
            if is_read:
                kept.append(tensor)
        return kept

    def put(self, places: dict[int, torch.Tensor]) -> None:
        """Hold other tensors of the same memory, by the ids of those that are held."""
        for tensors in self._lists:
            tensors[:] = [places.get(id(tensor), tensor) for tensor in tensors]
        self._note_ids()

    def hand_out(self) -> None:
        """Give the weights the gradients that a replay made."""
        if self._are_copies:
            # One that two weights have stays one.
            copies = {
                id(made): made.clone() for made in {id(one): one for one in self._own}.values()
            }
            self._hand_out([copies.get(id(made), made) for made in self._made])
            return
        if not self._are_in_place:
            self._hand_out(self._made)
        pool = self._pool()
        if pool is not None:
            pool.note(self)

    def _hand_out(self, gradients: list[torch.Tensor | None]) -> None:
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = gradient


def _give_memory_to(kept: list[torch.Tensor]) -> None:
    """Let tensors lie in memory of their own, and graphs hold others in what was theirs.

    An update between two segments of any graph may hold the same tensors, and reads their memory.
    """
    if not kept:
        return
    places = {id(tensor): tensor.detach() for tensor in kept}
    for graph in _holders.alive():
        if not graph.ids.isdisjoint(places):
            graph.put(places)
    for tensor in kept:
        tensor.data = tensor.clone()


class _Holders:
    """All graphs of the process that hold gradients.

    Attributes:
        num_changes: of what they hold.
    """

    def __init__(self) -> None:
        self.num_changes = 0
        self._graphs: weakref.WeakSet[GraphGradients] = weakref.WeakSet()
        self._lock = Lock()

    def add(self, graph: GraphGradients) -> None:
        """Know a graph for as long as it is there."""
        with self._lock:
            self._graphs.add(graph)
        weakref.finalize(graph, self.note_change).atexit = False
        self.note_change()

    def alive(self) -> list[GraphGradients]:
        """Return those that are there."""
        with self._lock:
            return list(self._graphs)

    def note_change(self) -> None:
        """Take note that graphs hold something else now."""
        self.num_changes += 1


_holders = _Holders()
_numbers = count()


def _count_of_one_in_a_list() -> int:
    """Return what `getrefcount` says of an object that one list alone holds."""
    (number,) = map(getrefcount, [object()])
    return number


def _count_for_a_weight() -> int:
    """Return what `getrefcount` says more of a tensor that is the gradient of a weight."""
    held = [torch.zeros(1, device="cpu")]
    weight = torch.nn.Parameter(torch.zeros(1, device="cpu"))
    (before,) = map(getrefcount, held)
    weight.grad = held[0]
    (after,) = map(getrefcount, held)
    return after - before


# How often Python refers to each of some tensors, and how often anybody does, by lists of tensors.
_Counts: TypeAlias = "list[tuple[list[int], list[int]]]"

# Python's count shows one holder in C++; another one, such as a second weight, shows in torch's.
_num_uses_of: Callable[[torch.Tensor], int] = torch.Tensor._use_count  # type: ignore[attr-defined]


def _counts_of(tensors: list[torch.Tensor]) -> tuple[list[int], list[int]]:
    return list(map(getrefcount, tensors)), list(map(_num_uses_of, tensors))


_UNHELD = _count_of_one_in_a_list()
_HELD_BY_WEIGHT = _count_for_a_weight()


def _memory_of(tensor: torch.Tensor) -> int:
    """Return the same for tensors that share memory; None has no address."""
    return tensor.untyped_storage()._cdata if has_address(tensor) else id(tensor)


# There is no public way to ask how many tensors share a storage.
_num_holders_of: Callable[[int], int] = torch._C._storage_Use_Count


def _holders_of(
    tensors: Iterable[torch.Tensor], held: Iterable[torch.Tensor | None]
) -> tuple[list[int], list[int]]:
    """Return the storages of tensors, and how many tensors share each if those that are held do alone.

    Torch counts all handles that Python has of a storage as one more. Gradients that are views of
    one tensor, as parts of a flat one are, hold it.
    """
    storages = dict.fromkeys(
        tensor.untyped_storage()._cdata for tensor in tensors if has_address(tensor)
    )
    found = {id(tensor): tensor for tensor in held if tensor is not None}
    bases = [tensor._base for tensor in found.values()]
    found |= {id(base): base for base in bases if base is not None}
    shared = Counter(
        tensor.untyped_storage()._cdata for tensor in found.values() if has_address(tensor)
    )
    return list(storages), [shared[storage] + 1 for storage in storages]


_gradient_of = attrgetter("grad")


def _have(weights: list[torch.Tensor], gradients: list[torch.Tensor | None]) -> bool:
    return are_the_same(gradients, list(map(_gradient_of, weights)))
