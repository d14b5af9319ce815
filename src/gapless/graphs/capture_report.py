"""What is captured and what is not, in words."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from gapless.graphs.time_spent import TimeSpent
from gapless.report.figures import megabytes


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gapless.graphs.refusal import Refusal


# Less memory is not spoken of.
_SMALLEST_BYTES = 1 << 20

# Nobody reads more.
_MAX_REFUSALS = 100
_MAX_CHANGES = 20

# Parts of a module that are named.
_MOST_PARTS = 3

# A step that changes too much runs as written for so many calls, and twice as many each time.
_FIRST_REST = 50


@dataclass
class AuditCounts:
    """What audits of graphs in use have shown; see `gapless.graphs.audit`.

    Attributes:
        num: audits so far, each in a call that ran as written as well.
        num_equal: those that gave the same bits as the step as written.
        num_halves: of them that compared the forward pass alone, since no backward pass like those
            before came behind it.
        block: replays of a graph in each of which is an audit: the longest block so far.
        seed: of the places of audits in their blocks.
        differences: what audits have found, each in one line.
    """

    num: int = 0
    num_equal: int = 0
    num_halves: int = 0
    num_halves_in_a_row: int = field(default=0, compare=False, repr=False)
    block: int = 0
    seed: int = 0
    differences: list[str] = field(default_factory=list)
    _num_told: int = field(default=0, compare=False, repr=False)

    def add_all(self, others: AuditCounts) -> None:
        """Take in what audits of another object have shown."""
        self.num += others.num
        self.num_equal += others.num_equal
        self.num_halves += others.num_halves
        self.block, self.seed = max(self.block, others.block), self.seed or others.seed
        self.differences += others.differences

    def untold(self) -> Iterator[str]:
        """Yield the differences that were never yielded before."""
        while self._num_told < len(self.differences):
            self._num_told += 1
            yield self.differences[self._num_told - 1]

    def __str__(self) -> str:
        """Return one line."""
        halves = f" ({self.num_halves} without the backward pass)" if self.num_halves else ""
        return (
            f"{_count(self.num, 'audit')}, {self.num_equal} equal{halves}, 1 in {self.block:,} calls of a "
            f"graph (seed {self.seed})"
        )


@dataclass
class _Rest:
    """How long a step that changes too much runs as written.

    Attributes:
        length: steps of the next rest.
        until: number of the step with which the rest of now ends, None if there is none.
    """

    length: int = _FIRST_REST
    until: int | None = None


@dataclass(kw_only=True)
class CaptureReport:
    """What is captured, and what is not.

    Attributes:
        num_graphs: graphs captured, those that were captured anew included.
        num_replays: steps that ran as a graph.
        num_eager: steps that ran as written.
        seconds: time spent capturing, during which the device is idle.
        captured_bytes: of the device's memory that captures have reserved, for graphs that are gone
            as well.
        refusals: all that forbids to capture more, each with what to write instead; graphs that
            exist are still replayed.
        changes: values that changed after graphs had baked them in, each in one line with its
            name, its line of code and both values.
        batch_reads: `file:line` of values of a batch that runs as written read, and captures do not.
            They are read before each replay, and calls that differ in them have different graphs.
        updates_as_written: updates of optimizers that replays call in Python, each in one line with
            the reason.
        proved: graphs that gave the same bits as the step as written.
        not_proved: graphs that could not be compared, such as for want of memory.
        proof_seconds: time that the host spent on these proofs.
        spent: time that this object has cost, and saved.
        audits: comparisons of graphs in use with the step as written.
        num_compiled: pieces of code that `compile=True` has compiled, for each class of layers, shape and mode.
        compile_seconds: time that this took; in a capture's account it is a time of the loop as written.
        not_compiled: what could not be compiled and runs eagerly, each in one line.
        in_its_place: names of the parts of a module that are captured, as the module as a whole cannot be; what
            is said of them is said here.
        note: what else is worth knowing, None if there is nothing.
    """

    num_graphs: int = 0
    num_replays: int = 0
    num_eager: int = 0
    seconds: float = 0.0
    captured_bytes: int = 0
    refusals: list[Refusal] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    batch_reads: list[str] = field(default_factory=list)
    updates_as_written: list[str] = field(default_factory=list)
    proved: int = 0
    not_proved: int = 0
    proof_seconds: float = 0.0
    spent: TimeSpent = field(default_factory=TimeSpent)
    audits: AuditCounts = field(default_factory=AuditCounts)
    num_compiled: int = 0
    compile_seconds: float = 0.0
    not_compiled: list[str] = field(default_factory=list)
    in_its_place: list[str] = field(default_factory=list)
    note: str | None = None
    _rest: _Rest = field(default_factory=_Rest, compare=False, repr=False)
    _told: set[tuple[str, ...]] = field(default_factory=set, compare=False, repr=False)

    @property
    def refusal(self) -> Refusal | None:
        """The first of the refusals, None if nothing forbids to capture more."""
        return self.refusals[0] if self.refusals else None

    @property
    def num_steps(self) -> int:
        """How many steps there were."""
        return self.num_replays + self.num_eager

    @property
    def forbids_all(self) -> bool:
        """Whether something forbids to capture more, whatever the call."""
        return any(not refusal.is_of_call for refusal in self.refusals)

    @property
    def forbids_all_for_good(self) -> bool:
        """Whether something forbids to capture more, whatever the call and whatever comes."""
        return any(not one.is_of_call and one.is_final for one in self.refusals)

    def refuse(self, refusal: Refusal) -> None:
        """Add a reason, unless it is there already; it may be of all calls from now on."""
        for number, known in enumerate(self.refusals):
            if known.reason == refusal.reason:
                if known.is_of_call and not refusal.is_of_call:
                    self.refusals[number] = refusal
                return
        if len(self.refusals) < _MAX_REFUSALS:
            self.refusals.append(refusal)

    def withdraw(self, refusal: Refusal) -> None:
        """Forget one reason."""
        self.refusals[:] = [known for known in self.refusals if known.reason != refusal.reason]

    def note_change(self, text: str) -> None:
        """Add a change of what graphs had baked in, unless it is there or there are many."""
        if len(self.changes) < _MAX_CHANGES and text not in self.changes:
            self.changes.append(text)

    def note_batch_reads(self, sites: Iterable[str]) -> None:
        """Add reads of the batch that a capture did not make, unless they are there."""
        self.batch_reads += dict.fromkeys(site for site in sites if site not in self.batch_reads)

    def note_updates_as_written(self, lines: Iterable[str]) -> None:
        """Add updates that replays call, unless they are there."""
        self.updates_as_written += [line for line in lines if line not in self.updates_as_written]

    def rest(self, refusal: Refusal) -> None:
        """Add a reason that is to be lifted after a number of steps, which doubles each time."""
        self.refuse(refusal)
        self._rest.until = self.num_steps + self._rest.length
        self._rest.length *= 2

    @property
    def is_rest_over(self) -> bool:
        """Whether there is a reason whose steps are over."""
        return self._rest.until is not None and self.num_steps >= self._rest.until

    @property
    def parts_text(self) -> str:
        """What is captured in the place of a module, in one line; "" if nothing is."""
        names = [f"`{name}`" for name in self.in_its_place]
        if len(names) > _MOST_PARTS:
            names[_MOST_PARTS:] = [f"{len(names) - _MOST_PARTS} more"]
        *but_last, last = names or [""]
        shown = f"{', '.join(but_last)} and {last}" if but_last else last
        return f"in its place {'are' if but_last else 'is'} captured: {shown}" if last else ""

    def untold_parts(self) -> str:
        """Return `parts_text` the first time that there is any, then ""."""
        name = ("in its place",)
        text = "" if name in self._told else self.parts_text
        self._told.update([name] * bool(text))
        return text

    def lift_refusals(self) -> None:
        """Forget reasons that may be gone."""
        self.refusals[:] = [refusal for refusal in self.refusals if refusal.is_final]
        self._rest.until = None

    def untold(self) -> Iterator[str]:
        """Yield the reasons that were never yielded before; those of one line as one text."""
        for refusal in self.refusals:
            if refusal.is_for_the_user and refusal.reason not in self._told:
                alike = [one for one in self.refusals if one.site and one.site == refusal.site]
                alike = [one for one in alike if one.reason not in self._told] or [refusal]
                self._told.update([one.reason for one in alike])
                yield "; ".join([one.text for one in alike])

    def __str__(self) -> str:
        """Return one line on what ran as a graph and what ran as written; more say why."""
        texts = [refusal.text for refusal in self.refusals]
        has_memory = self.captured_bytes >= _SMALLEST_BYTES
        memory = f" and {megabytes(self.captured_bytes)}" if has_memory else ""
        parts = [
            f"captured {_count(self.num_graphs, 'graph')} in {self.seconds:.1f} s{memory}, "
            f"{_count(self.num_replays, 'step')} replayed, {self.num_eager} ran as written"
        ]
        code = _count(self.num_compiled, "piece")
        for is_said, text in (
            (self.proved, f"{self.proved} proved in {self.proof_seconds:.1f} s"),
            (self.not_proved, f"{self.not_proved} not proved"),
            (self.audits.num, str(self.audits)),
            (self.num_compiled, f"compiled {code} of layers in {self.compile_seconds:.1f} s"),
            (texts, f"no further graph: {''.join(texts[:1])}"),
            (self.in_its_place, self.parts_text),
            (self.note, self.note or ""),
        ):
            parts += [text] if is_said else []
        lines = ["; ".join(parts)]
        lines += [f"also: {text}" for text in texts[1:]]
        lines += [str(self.spent)] if self.spent.is_worth_a_line else []
        lines += self.audits.differences
        lines += self.not_compiled
        lines += self.updates_as_written
        lines += [f"changed: {text}" for text in self.changes]
        lines += [
            f"{site} reads a value of the batch, but not while a graph is captured; it is read before "
            "each replay, and each value has a graph of its own"
            for site in self.batch_reads
        ]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; refusals are their texts."""
        texts = [refusal.text for refusal in self.refusals]
        counts = (
            "num_graphs",
            "num_replays",
            "num_eager",
            "seconds",
            "captured_bytes",
        )
        lists = ("changes", "batch_reads", "updates_as_written")
        return {
            **{name: getattr(self, name) for name in counts},
            "refusal": texts[0] if texts else None,
            "refusals": texts,
            **{name: list(getattr(self, name)) for name in lists},
            "proved": self.proved,
            "not_proved": self.not_proved,
            "proof_seconds": self.proof_seconds,
            "watching_seconds": self.spent.watching_s,
            "capturing_seconds": self.spent.capturing_s,
            "auditing_seconds": self.spent.auditing_s,
            "beside_seconds": self.spent.beside_s,
            "saved_seconds": self.spent.saved_s,
            "waiting": self.spent.num_waiting,
            "audits": self.audits.num,
            "audits_equal": self.audits.num_equal,
            "audit_halves": self.audits.num_halves,
            "audit_block": self.audits.block,
            "differences": list(self.audits.differences),
            "num_compiled": self.num_compiled,
            "compile_seconds": self.compile_seconds,
            "not_compiled": list(self.not_compiled),
            "in_its_place": list(self.in_its_place),
            "note": self.note,
        }


def summed(reports: Iterable[CaptureReport]) -> CaptureReport:
    """Return one report that says what several say."""
    found = CaptureReport()
    for report in reports:
        for one in fields(CaptureReport):
            value = getattr(report, one.name)
            if not one.name.startswith("_") and type(value) in (int, float):
                setattr(found, one.name, getattr(found, one.name) + value)
        for refusal in report.refusals:
            found.refuse(refusal)
        for change in report.changes:
            found.note_change(change)
        found.note_batch_reads(report.batch_reads)
        found.note_updates_as_written(report.updates_as_written)
        found.not_compiled += [one for one in report.not_compiled if one not in found.not_compiled]
        found.in_its_place += report.in_its_place
        found.spent.add_all(report.spent)
        found.audits.add_all(report.audits)
        found.note = report.note or found.note
    return found


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
