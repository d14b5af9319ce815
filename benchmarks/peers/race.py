"""All rows side by side: set up together, then timed in interleaved rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.peers.worker import Order, RowError, RowProcess


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from benchmarks.peers.cases import Case
    from benchmarks.peers.rows import Row


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How much is run, and how long a row may take.

    Attributes:
        rounds: every row once in each.
        warmup: steps before the timed ones of a round.
        steps: timed steps of a round.
        profile_steps: steps whose kernels are watched; 0 watches none.
        setup_limit_s: seconds for a row's set-up.
        run_limit_s: seconds for a row's part of a round.
    """

    rounds: int = 5
    warmup: int = 8
    steps: int = 40
    profile_steps: int = 10
    setup_limit_s: float = 180.0
    run_limit_s: float = 120.0


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

    row: Row
    setup: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    profile: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None


class Race:
    """Run rows of a case.

    Args:
        case: to train on.
        rows: which.
        schedule: how much.
        device: name of the device.
        logs: folder for what frameworks print.
        compiled_shapes: as given to `all_rows`.
        say: takes progress lines.
    """

    def __init__(
        self,
        case: Case,
        rows: Iterable[Row],
        schedule: Schedule,
        *,
        device: str,
        logs: Path,
        compiled_shapes: int,
        say: Callable[[str], None],
    ) -> None:
        self._case = case
        self._schedule = schedule
        self._say = say
        self._started_at = perf_counter()
        self._results = [RowResult(row=row) for row in rows]
        self._processes: dict[str, RowProcess] = {}
        self._device = device
        self._logs = logs
        self._compiled_shapes = compiled_shapes

    def run(self) -> list[RowResult]:
        """Return what every row did, those that failed included."""
        try:
            self._set_up()
            self._warm_up()
            for number in range(self._schedule.rounds):
                self._run_round(number)
            self._profile()
        finally:
            for process in self._processes.values():
                process.end()
        return self._results

    def _set_up(self) -> None:
        for result in self._results:
            name = result.row.name
            self._processes[name] = RowProcess(
                name,
                compiled_shapes=self._compiled_shapes,
                case=self._case,
                device=self._device,
                log=self._logs / f"{name}.log",
            )
        for result, process in self._alive():
            with self._noting(result):
                result.setup = process.wait_ready(limit_s=self._schedule.setup_limit_s)
                self._tell(f"{result.row.name}: ready in {result.setup['setup_seconds']:.1f} s")

    def _warm_up(self) -> None:
        # Allocators, kernels and code paths that a first round would pay for.
        order = Order(warmup=1, steps=self._schedule.steps, first=0)
        for result, process in self._alive():
            with self._noting(result):
                process.run(order, limit_s=self._schedule.run_limit_s)

    def _run_round(self, number: int) -> None:
        schedule = self._schedule
        length = schedule.warmup + schedule.steps
        order = Order(warmup=schedule.warmup, steps=schedule.steps, first=number * length)
        # Another row begins each round, so that none always follows the same.
        alive = list(self._alive())
        turn = number % max(1, len(alive))
        for result, process in alive[turn:] + alive[:turn]:
            with self._noting(result):
                result.rounds.append(process.run(order, limit_s=schedule.run_limit_s))
        speeds = [
            f"{result.row.name} {result.rounds[-1]['steps'] / result.rounds[-1]['seconds']:.1f}"
            for result, _ in self._alive()
        ]
        self._tell(f"round {number + 1} of {schedule.rounds}, steps/s: {', '.join(speeds)}")

    def _profile(self) -> None:
        steps = self._schedule.profile_steps
        if not steps:
            return
        order = Order(warmup=self._schedule.warmup, steps=steps, first=0, profiled=True)
        for result, process in self._alive():
            with self._noting(result):
                result.profile = process.run(order, limit_s=self._schedule.run_limit_s)
        self._tell("profiled")

    def _alive(self) -> Iterator[tuple[RowResult, RowProcess]]:
        for result in self._results:
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
