"""All kinds of calls of one captured object."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gapless.graphs.account import CallTimes
from gapless.graphs.entry import MAX_VARIANTS, Entry
from gapless.graphs.reads.batch_reads import without_values
from gapless.graphs.refusal import unlike_values
from gapless.graphs.states import Event


if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from gapless.graphs.capture_report import CaptureReport
    from gapless.graphs.entry import Variant
    from gapless.graphs.fast_path import FastPath
    from gapless.graphs.graph_pool import GraphPool
    from gapless.graphs.reads.batch_reads import BatchReads
    from gapless.graphs.refusal import Refusal
    from gapless.graphs.replay.call_graph import CallGraph
    from gapless.pipeline.tree.flatten import Tree


# Kinds of calls that are refused before no other is tried: if none was captured, and in any case.
_MAX_REFUSED = 3
_MOST_REFUSED = 100

# Beyond so many, kinds of which nothing is known but their times are forgotten.
_MAX_PLAIN = 10_000


@dataclass(eq=False)
class Entries:
    """The record of each kind of call.

    Attributes:
        fast_path: holds on to a graph; it is left as soon as any is dropped.
    """

    report: CaptureReport
    pool: GraphPool
    batch_reads: BatchReads
    fast_path: FastPath
    _by_kind: dict[Hashable, Entry] = field(default_factory=dict)
    # Those without variants, by the hash of their kinds: a kind holds every plain value of its batch.
    _by_number: dict[int, Entry] = field(default_factory=dict)
    # Those that were refused at some time: there may be thousands of others, and each call asks.
    _were_refused: list[Entry] = field(default_factory=list)
    _most_plain: int = _MAX_PLAIN

    def of_call(self, tree: Tree) -> Entry:
        """Return the record of the kind of a call; refuse kinds whose batches have too many values.

        Sync: Blocks the host for each value that belongs to the kind ("batch_value").
        """
        kind = tree.known_key = self.batch_reads.kind_of(tree)
        read = self.batch_reads.with_too_many_values(kind)
        if read is None:
            return self.of(kind)
        base = tree.known_key = without_values(kind)
        self.batch_reads.forget(kind)
        for one in self:
            if without_values(one.kind) == base:
                self.forget(one)
        self.fast_path.forget()
        entry = self.of(base)
        self.refuse(entry, [unlike_values(read.site)])
        return entry

    def of(self, kind: Hashable) -> Entry:
        """Return the record of a kind, which is made at its first call."""
        entry = self._by_kind.get(kind)
        if entry is None:
            number = hash(kind)
            entry = self._by_number.get(number)
            if entry is None:
                entry = self._by_number[number] = Entry(number, CallTimes(self.report.spent))
                if len(self._by_number) > self._most_plain:
                    self._forget_plain(but=entry)
        return entry

    def _forget_plain(self, *, but: Entry) -> None:
        self._by_number = {
            number: one
            for number, one in self._by_number.items()
            if one is but or not one.is_plain
        }
        self._most_plain = len(self._by_number) + _MAX_PLAIN

    def __iter__(self) -> Iterator[Entry]:
        """Yield those that have variants."""
        yield from list(self._by_kind.values())

    def refused(self) -> list[Entry]:
        """Return those that are refused."""
        self._were_refused = [one for one in self._were_refused if one.is_refused]
        return self._were_refused.copy()

    def graphs(self) -> list[CallGraph]:
        """Return the graphs in use."""
        return [one.graph for entry in self for one in entry.in_use if one.graph is not None]

    @property
    def num_graphs(self) -> int:
        """How many graphs there are, those that wait for the verdict on them included."""
        return sum(
            len(entry.in_use) + sum(one.pending is not None for one in entry.variants)
            for entry in self._by_kind.values()
        )

    def forget_fast_path(self) -> None:
        """Let the next call try no graph first."""
        self.fast_path.forget()

    # --- refusals ---

    def refuse(self, entry: Entry, refusals: list[Refusal]) -> None:
        """Refuse calls of a kind; all calls, if no kind was captured and some were refused.

        What a step does depends on its arguments: it may train on some and validate on others.
        """
        if not refusals:
            return
        entry.refusal = max(refusals, key=lambda one: bool(one.is_final))
        if entry not in self._were_refused:
            self._were_refused.append(entry)
        num_refused = len(self.refused())
        is_hopeless = not self.report.num_graphs and num_refused >= _MAX_REFUSED
        is_of_all = is_hopeless or num_refused >= _MOST_REFUSED
        for refusal in refusals:
            self.report.refuse(replace(refusal, is_of_call=not is_of_all))
        if entry.is_refused_for_good:
            self.forget_without_graph(entry)
        if self.report.forbids_all_for_good:
            for one in self:
                self.forget_without_graph(one)

    def lift_refusals(self) -> None:
        """Try again what was refused, if the reason may be gone."""
        for entry in self.refused():
            entry.lift_refusal()

    # --- what is known by watching and capturing ---

    def add(self, entry: Entry, kind: Hashable, variant: Variant) -> None:
        """Add the newest variant of a kind; the oldest of too many goes."""
        if entry.kind is None:
            self._by_number.pop(entry.number, None)
            self._by_kind[kind], entry.kind = entry, kind
        entry.variants.insert(0, variant)
        del entry.variants[MAX_VARIANTS:]

    def change_kind(self, entry: Entry, kind: Hashable) -> None:
        """Let the record of a kind without graphs go on as that of another, with values of its batch."""
        if entry.kind is None:
            self._by_number.pop(entry.number, None)
        else:
            del self._by_kind[entry.kind]
        entry.number, entry.kind = hash(kind), kind
        self._by_kind[kind] = entry

    def use(self, entry: Entry, variant: Variant, graph: CallGraph) -> None:
        """Let the graph of a variant be replayed; the one that was not used for longest may go for it."""
        variant.move(Event.PROVED)
        variant.pending, variant.graph = None, graph
        entry.in_use.insert(0, variant)
        for one in entry.in_use[MAX_VARIANTS:]:
            self._drop(entry, one)
        self.forget_quick_calls()

    def drop(self, entry: Entry, variants: Iterable[Variant]) -> None:
        """Let go of the graphs of variants; what they were captured by stays."""
        for variant in variants:
            self._drop(entry, variant)
        self.forget_quick_calls()
        self._leave_memory_if_unused()

    def drop_graphs(self) -> None:
        """Let go of all graphs and their memory; what they were captured by stays."""
        for entry in self:
            for variant in (*entry.variants, *entry.in_use):
                variant.drop_graph()
            entry.in_use = []
        self.fast_path.forget()
        self.pool.leave_memory()

    def drop_dead(self) -> None:
        """Let go of variants that read memory which is not used any more; one of each kind stays."""
        for entry in self:
            known = [(one, one.failure()) for one in (*entry.variants, *entry.in_use)]
            dead = [one for one, failure in known if failure is not None and failure.is_memory]
            alive = [one for one in entry.variants if one not in dead]
            captured = [one for one in entry.variants if one.graph is not None]
            # One stays, to be compared with.
            entry.variants = alive or (captured or entry.variants)[:1]
            self.drop(entry, [one for one in dead if one in entry.in_use])

    def forget(self, entry: Entry) -> None:
        """Let go of all that was watched and captured of a kind."""
        self.drop(entry, entry.in_use)
        entry.variants = []
        self._let_kind_go(entry)

    def forget_all(self) -> None:
        """Let go of all that was watched and captured."""
        for entry in self:
            self.forget(entry)

    def forget_without_graph(self, entry: Entry) -> None:
        """Let go of what is known of a kind that is not captured any more: it holds its batches."""
        entry.variants = [one for one in entry.variants if one.has_graph]
        if not entry.variants:
            self._let_kind_go(entry)

    def forget_quick_calls(self) -> None:
        """Let quick calls be made anew: they hold on to graphs."""
        for entry in self._by_kind.values():
            for variant in entry.in_use:
                variant.quick_call = None

    def _drop(self, entry: Entry, variant: Variant) -> None:
        variant.drop_graph()
        entry.in_use = [one for one in entry.in_use if one is not variant]

    def _let_kind_go(self, entry: Entry) -> None:
        if entry.kind is not None and not entry.in_use:
            del self._by_kind[entry.kind]
            self._by_number[entry.number], entry.kind = entry, None

    def _leave_memory_if_unused(self) -> None:
        if not any(entry.in_use for entry in self._by_kind.values()):
            self.pool.leave_memory()
