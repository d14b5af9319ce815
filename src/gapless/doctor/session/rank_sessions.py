"""One report from all processes of a run: each puts its session into a folder, one puts them together."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from gapless.records.finding import RankTimes, by_part
from gapless.report.json_reports import read_session, session_json


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gapless.records.finding import Finding, Session, StepTimes


# Names the folder to the processes that a launcher starts; it reports, not they.
FOLDER_VARIABLE = "GAPLESS_DOCTOR_RANKS"

# So long the first process waits for the others after its own end.
_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.1

# From this share of a step on, a process that is later than the others is what holds them back.
_LEAST_LATE_SHARE = 0.10
_PART_NAMES = {
    "data": "its batches",
    "forward": "its forward pass",
    "update": "its updates",
    "other": "other code of its loop",
}


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process of several that run a script together.

    Attributes:
        number: of the process, among all.
        local: number among those of this machine.
        num_local: how many there are on this machine.
        folder: where their sessions meet.
        is_reported: whether somebody else reports: the launcher.
    """

    number: int
    local: int
    num_local: int
    folder: Path
    is_reported: bool

    @property
    def reports(self) -> bool:
        """Whether this process reports for all of its machine."""
        return not self.is_reported and self.local == 0

    def begin(self) -> None:
        """Say that this process is there.

        Raises:
            OSError: the folder cannot be made, or belongs to somebody else.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{self.folder} belongs to somebody else")
        (self.folder / f"{self.local}.pid").write_text(str(os.getpid()), encoding="utf-8")

    def put(self, session: Session, *, is_over: bool = True) -> None:
        """Hand over what this process has seen.

        Args:
            session: what was seen so far.
            is_over: whether the process has come to its end.
        """
        unfinished = self.folder / f"{self.local}.unfinished"
        unfinished.write_text(session_json(session), encoding="utf-8")
        unfinished.rename(self.folder / f"{self.number}.{'session' if is_over else 'early'}")

    def wait_for_others(self) -> None:
        """Wait until all processes of this machine have put their sessions, or have ended."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < until:
            num_there = len(list(self.folder.glob("*.session")))
            if num_there >= self.num_local or not any(self._may_come(n) for n in self._others()):
                return
            time.sleep(_LOOK_SECONDS)

    def _others(self) -> Iterable[int]:
        return (number for number in range(self.num_local) if number != self.local)

    def _may_come(self, local: int) -> bool:
        try:
            os.kill(int((self.folder / f"{local}.pid").read_text(encoding="utf-8")), 0)
        except FileNotFoundError:
            return True  # it has not begun yet
        except (ProcessLookupError, ValueError):
            return False
        except PermissionError:
            return True
        return True


def this_rank(environ: Mapping[str, str] = os.environ) -> Rank | None:
    """Return which of several processes of a run this is; None if there is only one.

    Args:
        environ: of the process, as torchrun, or a launcher that sets the same names, has made it.
    """
    folder = environ.get(FOLDER_VARIABLE)
    number, local, num_local = (
        _number(environ.get(name)) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    )
    if number is None or local is None or num_local is None or (num_local < 2 and not folder):
        return None
    return Rank(
        number=number,
        local=local,
        num_local=num_local,
        folder=Path(folder) if folder else _meeting_place(environ),
        is_reported=bool(folder),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _meeting_place(environ: Mapping[str, str]) -> Path:
    """Return a folder that all processes of one launcher on this machine name alike."""
    words = [str(os.getuid()), str(os.getppid()), environ.get("MASTER_PORT", "")]
    words.append(environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return Path(tempfile.gettempdir()) / f"gapless-doctor-{'-'.join(words)}"


def collect(folder: Path) -> Session | None:
    """Return one session from those of all processes, and remove the folder; None if there is none."""
    early, ended = (_read_sessions(folder, suffix) for suffix in ("early", "session"))
    sessions = {
        **{rank: _as_it_ended_early(one) for rank, one in early.items()},
        **ended,
    }
    num_missing = len(list(folder.glob("*.pid"))) - len(sessions)
    shutil.rmtree(folder, ignore_errors=True)
    if not sessions:
        return None
    found = together(sessions)
    if num_missing > 0:
        note = f"{num_missing} of {num_missing + len(sessions)} processes ended without a report."
        found = replace(found, notes=(*found.notes, note))
    return found


def _read_sessions(folder: Path, suffix: str) -> dict[int, Session]:
    found = {}
    for path in folder.glob(f"*.{suffix}"):
        with contextlib.suppress(OSError):
            found[int(path.stem)] = read_session(path.read_text(encoding="utf-8"), str(path))
    return found


def _as_it_ended_early(session: Session) -> Session:
    note = "It did not come to its end: this is what was known before."
    return replace(session, notes=(*session.notes, note))


def together(sessions: Mapping[int, Session]) -> Session:
    """Return one session from those of all processes, by their numbers.

    Steps and timeline are those of the first process. A finding that all of them have stands once,
    with the figures of the process where it costs most; others name their process.
    """
    first = sessions[min(sessions)]
    if len(sessions) == 1:
        return replace(first, num_ranks=1)
    same: dict[object, dict[int, Finding]] = defaultdict(dict)
    for rank, session in sessions.items():
        for one in session.findings:
            same[one.code, one.site, one.call, one.thread].setdefault(rank, one)
    findings = [_of_all(found, len(sessions)) for found in same.values()]
    findings.sort(key=_cost, reverse=True)
    ranks = _times_of_ranks(sessions)
    return replace(
        first,
        verdict=_straggler(ranks, sessions) or first.verdict,
        ranks=ranks,
        findings=tuple(by_part(findings)),
        notes=tuple(_notes(sessions)),
        num_ranks=len(sessions),
    )


def _times_of_ranks(sessions: Mapping[int, Session]) -> tuple[RankTimes, ...]:
    return tuple(
        RankTimes(
            rank=rank,
            step_ms=steps.mean_ms,
            data_ms=steps.parts_ms.data,
            own_ms=max(0.0, sum(vars(steps.parts_ms).values()) - _others_ms(steps)),
            collective_ms=steps.collective_ms,
        )
        for rank, session in sorted(sessions.items())
        if (steps := session.steps) is not None and steps.parts_ms
    )


def _others_ms(steps: StepTimes) -> float:
    """Return how long a process may wait for others: in its backward pass, or for its device, which does."""
    backward_ms = 0.0 if steps.parts_ms is None else steps.parts_ms.backward
    return backward_ms + (steps.wait_ms or 0.0)


def _straggler(ranks: Sequence[RankTimes], sessions: Mapping[int, Session]) -> str:
    """Return a verdict if one process keeps the others waiting in each step, or nothing.

    It does more on its host than they; or NCCL, which waits within kernels, waits less on its device.
    """
    if len(ranks) < 2:
        return ""
    slowest, late_ms = _latest({one: one.own_ms for one in ranks})
    if late_ms >= _LEAST_LATE_SHARE * slowest.step_ms:
        why = (
            f"most of it for {_PART_NAMES[_latest_part(slowest.rank, sessions)]}; they wait for it"
        )
    else:
        waits = {one: one.collective_ms for one in ranks if one.collective_ms is not None}
        if len(waits) < len(ranks):
            return ""
        slowest, late_ms = _latest({one: -ms for one, ms in waits.items()})
        if late_ms < _LEAST_LATE_SHARE * slowest.step_ms:
            return ""
        why = "on its device; they wait for it in kernels of NCCL"
    return (
        f"STRAGGLER: rank {slowest.rank} takes {late_ms:.1f} ms longer than the others, {why} in each step of "
        f"{slowest.step_ms:.1f} ms."
    )


def _latest(late: Mapping[RankTimes, float]) -> tuple[RankTimes, float]:
    """Return who is the latest, and by how much more than the others."""
    slowest = max(late, key=lambda one: late[one])
    return slowest, late[slowest] - median(ms for one, ms in late.items() if one is not slowest)


def _latest_part(rank: int, sessions: Mapping[int, Session]) -> str:
    """Return the part of a step for which a process takes longest, beside the others."""
    parts = {
        rank: vars(one.steps.parts_ms)
        for rank, one in sessions.items()
        if one.steps is not None and one.steps.parts_ms is not None
    }
    mine = parts.pop(rank)
    of = {
        part: ms - median(its.get(part, 0.0) for its in parts.values())
        for part, ms in mine.items()
        if part != "backward"
    }
    return max(of, key=lambda part: of[part])


def _of_all(found: Mapping[int, Finding], num_ranks: int) -> Finding:
    rank, worst = max(found.items(), key=lambda item: _cost(item[1]))
    return worst if len(found) == num_ranks else replace(worst, rank=rank)


def _cost(one: Finding) -> tuple[float, float]:
    return one.exposed_ms or 0.0, one.waited_ms or 0.0


def _notes(sessions: Mapping[int, Session]) -> Sequence[str]:
    by_note: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(sessions):
        for note in sessions[rank].notes:
            by_note[note].append(rank)
    return [
        note if len(ranks) == len(sessions) else f"Rank {', '.join(map(str, ranks))}: {note}"
        for note, ranks in by_note.items()
    ]
