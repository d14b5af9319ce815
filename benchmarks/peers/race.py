"""All rows side by side: set up together, then timed in interleaved rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.peers.worker import Order, RowError
from benchmarks.processes import ending_in_order


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class NamedRow(Protocol):
    """What a race has to know of a row."""

    @property
    def name(self) -> str:
        """By which it is chosen."""

    @property
    def title(self) -> str:
        """For people."""


class Runner(Protocol):
    """What runs a row: a process, or several. Its set-up is under way from the start."""

    def wait_ready(self, *, limit_s: float) -> dict[str, Any]:
        """Return facts of the set-up; raise `RowError` if it failed or is not done in time."""

    def run(self, order: Order, *, limit_s: float) -> dict[str, Any]:
        """Return what the row measured; raise `RowError` if it failed or is not done in time."""

    def let_go(self) -> None:
        """Tell it to end by itself."""

    def end(self) -> None:
        """End it with all of its own."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How much is run, and how long a row may take.

    Attributes:
        rounds: every row once in each.
        warmup: steps before the timed ones of a round.
        steps: timed steps of a round.
        profile_steps: steps whose kernels are watched; 0 watches none.
        setup_limit_s: seconds for a row's set-up.
        run_limit_s: seconds for a row's turn.
        time_limit_s: seconds after which no round begins and no row is profiled; None: no limit.
    """

    rounds: int = 5
    warmup: int = 8
    steps: int = 40
    profile_steps: int = 10
    setup_limit_s: float = 180.0
    run_limit_s: float = 120.0
    time_limit_s: float | None = None


@dataclass(kw_only=True)
class RowResult:
    """What one row did.

    Attributes:
        row: it.
        setup: facts of its set-up.
        rounds: what it measured in each round.
        profile: what the profile showed; empty if there was none.
        problem: why there is nothing more; None if all went well.
    """

    row: NamedRow
    setup: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    profile: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None


class Race:
    """Run rows in turns.

    Args:
        rows: which.
        schedule: how much.
        start: starts the runner of a row.
        say: takes progress lines.
        on_round: called when all rows are set up and after each round.

    Attributes:
        results: of every row so far, those that failed included.
        rounds_done: complete rounds.
    """

    def __init__(
        self,
        rows: Iterable[NamedRow],
        schedule: Schedule,
        *,
        start: Callable[[Any], Runner],
        say: Callable[[str], None],
        on_round: Callable[[Race], None],
    ) -> None:
        self.results = [RowResult(row=row) for row in rows]
        self.rounds_done = 0
        self._on_round = on_round
        self._start = start
        self._schedule = schedule
        self._say = say
        self._started_at = perf_counter()
        self._processes: dict[str, Runner] = {}

    def run(self) -> None:
        """Let every row do its part, until all is done or time is up; no process of a row stays."""
        with ending_in_order():
            try:
                self._set_up()
                self._warm_up()
                self._on_round(self)
                for number in range(self._schedule.rounds):
                    if self._is_late():
                        break
                    self._run_round(number)
                    self.rounds_done += 1
                    self._on_round(self)
                self._profile()
            finally:
                for process in self._processes.values():
                    process.let_go()
                for process in self._processes.values():
                    process.end()

    def shortened(self) -> str | None:
        """Return what the time limit has left out, None if nothing."""
        schedule, left_out = self._schedule, []
        if self.rounds_done < schedule.rounds:
            left_out.append(f"{self.rounds_done} of {schedule.rounds} rounds")
        running = [result for result in self.results if result.problem is None]
        num_profiled = sum(bool(result.profile) for result in running)
        if schedule.profile_steps and num_profiled < len(running):
            left_out.append(f"{num_profiled} of {len(running)} rows profiled")
        return ", ".join(left_out) or None

    def _is_late(self) -> bool:
        limit = self._schedule.time_limit_s
        return limit is not None and perf_counter() - self._started_at > limit

    def _set_up(self) -> None:
        for result in self.results:
            self._processes[result.row.name] = self._start(result.row)
        for result, process in self._alive():
            with self._noting(result):
                result.setup = process.wait_ready(limit_s=self._schedule.setup_limit_s)
                self._tell(f"{result.row.name}: ready in {result.setup['setup_seconds']:.1f} s")

    def _warm_up(self) -> None:
        # Allocators, kernels and code paths that a first round would pay for.
        order = Order(warmup=1, steps=self._schedule.steps, first=0)
        for result, process in self._alive():
            with self._noting(result):
                self._take_turn("warm-up", result, process, order)

    def _run_round(self, number: int) -> None:
        schedule = self._schedule
        length = schedule.warmup + schedule.steps
        order = Order(warmup=schedule.warmup, steps=schedule.steps, first=number * length)
        # Another row begins each round, so that none always follows the same.
        alive = list(self._alive())
        turn = number % max(1, len(alive))
        what = f"round {number + 1} of {schedule.rounds}"
        for result, process in alive[turn:] + alive[:turn]:
            with self._noting(result):
                result.rounds.append(self._take_turn(what, result, process, order))

    def _profile(self) -> None:
        steps = self._schedule.profile_steps
        if not steps:
            return
        order = Order(warmup=self._schedule.warmup, steps=steps, first=0, profiled=True)
        for result, process in self._alive():
            if self._is_late():
                break
            with self._noting(result):
                result.profile = self._take_turn("profile", result, process, order)

    def _take_turn(
        self, what: str, result: RowResult, process: Runner, order: Order
    ) -> dict[str, Any]:
        start = perf_counter()
        answer = process.run(order, limit_s=self._schedule.run_limit_s)
        seconds = answer["turn_seconds"] = perf_counter() - start
        self._tell(
            f"{what}  {result.row.name}: {order.steps} steps in {answer['seconds']:.2f} s, "
            f"turn {seconds:.2f} s, {answer['seconds_before']:.2f} s of it before them"
        )
        return answer

    def _alive(self) -> Iterator[tuple[RowResult, Runner]]:
        for result in self.results:
            if result.problem is None:
                yield result, self._processes[result.row.name]

    def _noting(self, result: RowResult) -> _Noting:
        return _Noting(result, self._tell)

    def _tell(self, line: str) -> None:
        self._say(f"{perf_counter() - self._started_at:6.1f} s  {line}")


class _Noting:
    """A row that fails is out of the race; the others go on."""

    def __init__(self, result: RowResult, tell: Callable[[str], None]) -> None:
        self._result = result
        self._tell = tell

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, RowError):
            return False
        self._result.problem = str(error)
        self._tell(f"{self._result.row.name}: {error}")
        return True
