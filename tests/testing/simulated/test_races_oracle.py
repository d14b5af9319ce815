"""The checker agrees with a brute-force search of all paths, on random programs.

The checker keeps the last write and the reads since, not the whole history: it need not find
every pair. The exact claim is about the first access that races with any earlier one: up to it
nothing is reported, and there something is. After it the program is broken anyway.
"""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from gapless.testing.simulated.history import History
from gapless.testing.simulated.races import HOST, RaceChecker


AGENTS = ["s0", "s1", "s2", "s3"]
EVENTS = range(2)

# Few streams, events and bytes, so that accesses meet often and waits matter.
streams = st.sampled_from(AGENTS[:2]) | st.sampled_from(AGENTS)
spans = st.tuples(st.integers(0, 5), st.integers(1, 3)).map(lambda pair: (pair[0], sum(pair)))
accesses = st.tuples(st.sampled_from(["read", "read", "write"]), spans)
events = st.sampled_from(EVENTS)
steps = st.one_of(
    st.tuples(st.just("launch"), streams, st.lists(accesses, min_size=1, max_size=2)),
    st.tuples(st.just("host"), accesses),
    st.tuples(st.just("record"), events, streams),
    st.tuples(st.just("wait"), events, streams),
    st.tuples(st.just("see"), events),  # synchronize_event, or a query that is True
    # A record that is waited for soon, as most are.
    st.tuples(st.just("edge"), streams, streams),
)


class Paths:
    """The program as a graph of happens-before, searched anew for every question."""

    def __init__(self):
        self.before = []  # of each node: the nodes that it comes directly behind
        self.last = {}
        self.events = {}
        self.accesses = []

    def node(self, agent, *behind):
        self.before.append([node for node in (self.last.get(agent), *behind) if node is not None])
        self.last[agent] = len(self.before) - 1
        return self.last[agent]

    def comes_behind(self, node, earlier):
        seen, todo = set(), [node]
        while todo:
            for found in self.before[todo.pop()]:
                if found == earlier:
                    return True
                if found not in seen:
                    seen.add(found)
                    todo.append(found)
        return False

    def touch(self, node, found):
        """Return whether any access of a node races with one of an earlier node."""
        races = any(
            start < other_end
            and other_start < end
            and "write" in (kind, other_kind)
            and not self.comes_behind(node, other)
            for kind, (start, end) in found
            for other, other_kind, (other_start, other_end) in self.accesses
        )
        self.accesses += [(node, kind, span) for kind, span in found]
        return races

    def take(self, step):
        call = self.node(HOST)
        if step[0] == "launch":
            return self.touch(self.node(step[1], call), step[2])
        if step[0] == "host":
            return self.touch(call, [step[1]])
        if step[0] == "record":
            self.events[step[1]] = self.node(step[2], call)
        elif step[0] == "edge":
            self.node(step[2], call, self.node(step[1], call))
        elif step[0] == "wait":
            self.node(step[2], call, self.events.get(step[1]))
        else:
            self.node(HOST, self.events.get(step[1]))
        return False


class Clocks:
    """The same program told to the checker, in the calls that the simulation makes."""

    def __init__(self):
        self.checker = RaceChecker()
        self.history = History()
        self.events = {}
        for name in AGENTS:
            self.checker.add_stream(name)

    def touch(self, agent, found):
        for kind, span in found:
            self.checker.access(agent, kind, self.history, span, buffer="b", what="w", site="s")

    def take(self, step):
        checker = self.checker
        if step[0] == "launch":
            checker.launch(step[1])
            self.touch(step[1], step[2])
        elif step[0] == "host":
            self.touch(HOST, [step[1]])
        elif step[0] == "record":
            self.events[step[1]] = checker.snapshot(step[2])
        elif step[0] == "edge":
            checker.order(step[2], checker.snapshot(step[1]))
        elif step[1] in self.events:
            agent = step[2] if step[0] == "wait" else HOST
            checker.order(agent, self.events[step[1]])
        return bool(checker.report.races)


def first_race(taker, program):
    """Return the number of the first step that races, or None."""
    return next((number for number, step in enumerate(program) if taker.take(step)), None)


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, min_size=4, max_size=40))
def test_the_first_race_is_found_where_no_path_leads(program):
    """The checker reports a step exactly if it is the first that no path orders."""
    assert first_race(Paths(), program) == first_race(Clocks(), program)


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, min_size=2, max_size=20))
def test_programs_with_every_edge_are_clean(program):
    """A program that waits for everything before every step has no race."""
    clocks = Clocks()
    for step in program:
        for name in AGENTS:
            clocks.take(("record", name, name))
            clocks.take(("see", name))
        clocks.take(step)

    assert clocks.checker.report.races == []
