"""Which finding each wait belongs to: the waits that were seen, and those of the trace. No torch."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from gapless.device.waiting_operations import READING_OPERATORS
from gapless.doctor.diagnose.watched_run import HOST_COSTS
from gapless.doctor.replay.recording import HostInterval
from gapless.doctor.trace.chrome_trace import (
    ALLOCATING,
    calls_named,
    node_around,
    operation_around,
)
from gapless.doctor.trace.join import Joined, join


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.doctor.advice.causes import Cause
    from gapless.doctor.diagnose.watched_run import WatchedRun
    from gapless.doctor.replay.exposed import HostKind
    from gapless.doctor.seen_waits import NodeKey, SeenWait
    from gapless.doctor.trace.chrome_trace import Trace, Wait
    from gapless.records.finding import Site

# Host time that is known by its beginning and its end, not by a call of the runtime.
NAMED_KINDS: dict[str, HostKind] = {"loader": "loader", "collective": "collective", "gc": "gc"}
# A wait that may also go by without a blocking call of the runtime.
_MAY_NOT_BLOCK = (*HOST_COSTS, "query", "empty_cache", "collective", "unknown")

_OF_OPERATION: dict[str, Cause] = {
    **READING_OPERATORS,
    "aten::nonzero": "shape",
    "aten::_unique2": "shape",
    "aten::unique_dim": "shape",
    "aten::masked_select": "shape",
    "aten::index_put_": "shape",
    "aten::_index_put_impl_": "shape",
    "aten::index": "shape",
    "aten::repeat_interleave": "shape",
    "aten::_to_copy": "copy",
    "aten::copy_": "copy",
}

# Threads of one pool, and those that a loop starts anew in each step, differ in a number alone:
# "asyncio_1", "ThreadPoolExecutor-0_3", "Thread-12 (log)".
_NUMBER = re.compile(r"[-_ ]\d+(?=$| \()")


class Key(NamedTuple):
    """What makes two waits one finding."""

    cause: Cause
    call: str
    site: Site | None
    thread: str
    forward: Site | None = None


OF_ALLOCATIONS = Key("allocation", "cudaMalloc", None, "main")


@dataclass(kw_only=True)
class Group:
    """The waits of one finding.

    Attributes:
        num_seen: calls in the window of sites.
        per_step: how often in a step.
        waited_ms: a step, as far as it was measured.
        waits: places in the trace's waits.
        owners: places in what was seen in the times window.
        charged_ms: idle time of a step that was charged to it.
        gain_ms: a step becomes shorter by if it alone is mended.
        detail: of one of its calls.
    """

    num_seen: int = 0
    per_step: float = 0.0
    waited_ms: float | None = None
    waits: set[int] = field(default_factory=set)
    owners: set[int] = field(default_factory=set)
    charged_ms: float | None = None
    gain_ms: float | None = None
    detail: str = ""

    @property
    def exposed_ms(self) -> float | None:
        """What mending it can gain at most.

        Idle time that two causes share, such as a slow loader behind a wait, is charged to one of
        them, but mending the other gains it as well.
        """
        if self.charged_ms is None:
            return None
        return max(self.charged_ms, self.gain_ms or 0.0)


Groups = defaultdict[Key, Group]


class KnownWaits:
    """What is known of the waits of a run: where they were, how long they took, what they belong to.

    Attributes:
        watched: what was noted, with one name for a call of a line.
        trace: of the times window; None where there is none that says something.
        joined: the waits of the trace and what they belong to.
        keys: for each of them the finding that it is a part of.
        intervals: host time of the trace that has a name.
    """

    def __init__(self, watched: WatchedRun) -> None:
        watched = self.watched = _with_full_names(watched)
        trace = watched.trace
        if trace is not None and (not trace.works or len(trace.steps) < 2):
            trace = None
        self.trace = trace
        self.joined = (
            Joined(waits=(), owners=(), marked=frozenset())
            if trace is None
            else join(trace, watched.timed)
        )
        self.keys = [] if trace is None else self._keys_of_waits(trace)
        self.intervals = [] if trace is None else self._intervals(trace)

    def groups(self) -> Groups:
        """Return all waits by the finding that they belong to."""
        groups: Groups = defaultdict(Group)
        watched = self.watched
        knows_autograd = self.trace is not None
        steps = watched.num_seen_steps
        for seen, counts in (
            *((one, True) for one in watched.seen),
            *((one, False) for one in watched.timed),
        ):
            if knows_autograd and seen.thread == "autograd" and seen.site is None:
                continue  # the trace has it, with its node
            group = groups[_key_of(seen)]
            group.detail = group.detail or seen.detail
            if counts and steps:
                group.num_seen += seen.count
                group.per_step = group.num_seen / steps
                if seen.end_ns is not None:
                    took = (seen.end_ns - seen.start_ns) / 1e6 / steps
                    group.waited_ms = (group.waited_ms or 0.0) + took
        for place, seen in enumerate(watched.timed):
            if _key_of(seen) in groups:
                groups[_key_of(seen)].owners.add(place)
        for place, key in enumerate(self.keys):
            groups[key].waits.add(place)
        return groups

    def drop_harmless(self, groups: Groups) -> None:
        """Drop what was expected to wait, but did not in the trace, where all its waits are known."""
        trace = self.trace
        if trace is None:
            return
        unknown = {
            trace.thread_name(wait.thread)
            for wait, key in zip(self.joined.waits, self.keys, strict=True)
            if key.cause == "unknown"
        }
        for key in [
            key
            for key, group in groups.items()
            if key.cause not in _MAY_NOT_BLOCK
            and not group.waits
            and group.owners & self.joined.marked
            and key.thread not in unknown
        ]:
            del groups[key]

    def key_of_charge(self, cause: str, owner: int | None) -> Key | None:
        """Return the finding that idle time of the device is charged to; None if to none."""
        if cause == "wait" and owner is not None:
            return self.keys[owner]
        if cause in NAMED_KINDS and owner is not None:
            return _key_of(self.watched.timed[owner])
        if cause == "allocation":
            return OF_ALLOCATIONS
        return None

    def is_wait(self, place: int) -> bool:
        """Whether a wait of the trace is for the device, not for the driver's memory."""
        return self.joined.waits[place].kind not in ("free", "host allocation")

    def _intervals(self, trace: Trace) -> list[HostInterval]:
        found = [
            HostInterval(kind="allocation", start_us=call.start_us, end_us=call.end_us, owner=None)
            for call in calls_named(trace, ALLOCATING)
            if call.thread == trace.main or call.thread in trace.autograd
        ]
        for place, seen in enumerate(self.watched.timed):
            start, end = trace.to_us(seen.start_ns), trace.to_us(seen.end_ns or seen.start_ns)
            if start is None or end is None:
                continue
            kind = NAMED_KINDS.get(seen.cause)
            # A loader or collective of another thread does not hold up the step; the collector stops all threads.
            if kind is not None and (seen.thread == "main" or kind == "gc"):
                found.append(HostInterval(kind=kind, start_us=start, end_us=end, owner=place))
        return found

    def _keys_of_waits(self, trace: Trace) -> list[Key]:
        places = _places_of_nodes(trace)
        return [
            _key_of(self.watched.timed[owner])
            if owner is not None
            else self._key_of_unseen(trace, wait, places)
            for wait, owner in zip(self.joined.waits, self.joined.owners, strict=True)
        ]

    def _key_of_unseen(self, trace: Trace, wait: Wait, places: dict[int, NodeKey]) -> Key:
        thread = trace.thread_name(wait.thread)
        if wait.kind in ("free", "host allocation"):
            cause: Cause = "allocation" if wait.kind == "free" else "host allocation"
            return Key(cause, wait.name, None, thread)
        node = node_around(trace, thread=wait.thread, at_us=wait.start_us)
        if node is None or node.sequence is None:
            return Key("unknown", wait.name, None, thread)
        line = self._forward_line(node.node, places.get(node.sequence))
        inner = operation_around(trace, thread=wait.thread, at_us=wait.start_us)
        cause = _OF_OPERATION.get(inner.name, "unknown") if inner is not None else "unknown"
        return Key(cause if line else "unknown", f"{node.node} ({wait.name})", line, thread, line)

    def _forward_line(self, name: str, key: NodeKey | None) -> Site | None:
        lines = self.watched.forward_lines
        if key is not None and key in lines:
            return lines[key]
        same = {site for (node, _), site in lines.items() if node == name}
        return same.pop() if len(same) == 1 else None


def _with_full_names(watched: WatchedRun) -> WatchedRun:
    """Return what was noted with one name for a call of a line.

    A wait that had begun before it was watched is known by torch's warning alone: as "item", where the
    others of its line are "Tensor.item".
    """
    full = {
        (one.site, one.call.rpartition(".")[2]): one.call
        for one in (*watched.seen, *watched.timed)
        if "." in one.call
    }

    def named(waits: Sequence[SeenWait]) -> tuple[SeenWait, ...]:
        return tuple(replace(one, call=full.get((one.site, one.call), one.call)) for one in waits)

    return replace(watched, seen=named(watched.seen), timed=named(watched.timed))


def _key_of(seen: SeenWait) -> Key:
    return Key(seen.cause, seen.call, seen.site, _NUMBER.sub("", seen.thread))


def _places_of_nodes(trace: Trace) -> dict[int, NodeKey]:
    """Return for each sequence number the node's name and its place among those of its step."""
    nodes = sorted(
        (
            (operation.start_us, operation)
            for operations in trace.operations.values()
            for operation in operations
            if operation.node and operation.sequence is not None
        ),
        key=lambda one: one[0],
    )
    found: dict[int, NodeKey] = {}
    for begin, end in zip(trace.steps, trace.steps[1:], strict=False):
        counts: Counter[str] = Counter()
        of_step = [node for start, node in nodes if begin <= start < end]
        for node in sorted(of_step, key=lambda one: one.sequence or 0):
            found[node.sequence or 0] = (node.node, counts[node.node])
            counts[node.node] += 1
    return found
