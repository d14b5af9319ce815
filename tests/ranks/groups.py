"""Groups of ranks under test: started, watched, harmed one by one, and ended in any case.

`fork_ranks` makes copies of the fork server with the environment that torchrun gives: it costs no
import of torch, and nobody ends the others when one rank ends. `torchrun` is the real one. Both
give a `Group`, whose `end` waits with a limit. Past the limit it raises `HungError` with the stacks of
all ranks, and leaves no process.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch.distributed

from faults.processes import all_processes, environment
from ranks.rank_program import FOLDER, STACKS, file_of


# Seconds after which a group counts as hung. Far more than any of them needs.
LIMIT = 150

# Seconds in which stacks are written by a rank that can write them.
_SECONDS_FOR_STACKS = 2.0

# torchrun says here which of its ranks failed, and how.
_FAILED_RANK = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\s+exitcode\s*: (-?\d+)")


class HungError(AssertionError):
    """A group was not where it should be within its limit; the text has the stacks of its ranks."""


@dataclass(frozen=True)
class EndedRank:
    """How a rank ended: its output, and the seconds from the fault until it was gone.

    `code` is None if torchrun did not say it, as it does of ranks that end with 0.
    """

    code: int | None
    out: str
    err: str
    seconds: float

    @property
    def errors(self):
        """The lines of error that this rank wrote."""
        return [line for line in self.err.splitlines() if line.startswith("gapless: error: ")]


@dataclass(frozen=True)
class Ended:
    """How a group ended.

    Attributes:
        code: of torchrun; of ranks without it, the first that is not 0.
        ranks: how each ended, those of the last attempt.
        out: of all ranks of all attempts.
        err: likewise, without what torchrun itself writes.
        launcher: what torchrun itself wrote.
        seconds: from the fault until all processes were gone.
    """

    code: int
    ranks: list[EndedRank]
    out: str
    err: str
    launcher: str
    seconds: float

    @property
    def errors(self):
        """The lines of error of all ranks."""
        return [line for line in self.err.splitlines() if line.startswith("gapless: error: ")]

    @property
    def text(self):
        """The last of what was written, for messages."""
        return f"{self.err[-3000:]}{self.out[-1000:]}{self.launcher[-2000:]}"

    def check_done(self):
        """Check that all ranks did what was asked."""
        assert self.code == 0, self.text
        assert "Traceback" not in self.out + self.err, self.text

    def check_refused(self, *parts, code=2):
        """Check that one line of error, of one rank, holds all parts, and all ended with a code."""
        assert "Traceback" not in self.out + self.err, self.text
        assert len(self.errors) == 1, self.text
        missing = [part for part in map(str, parts) if part not in self.errors[0]]
        assert missing == [], f"{missing} is not in {self.errors[0]}"
        assert {rank.code for rank in self.ranks} == {code}, [rank.code for rank in self.ranks]


class Group:
    """The ranks of one run, and all that they started."""

    def __init__(self, world, folder):
        self.world = world
        self.folder = folder
        self._began = time.monotonic()
        self._gone = {}

    def pid(self, rank):
        """Return the number of the process of a rank in the newest attempt; None before its start."""
        with contextlib.suppress(FileNotFoundError):
            return int(file_of(self.folder, "pid", rank, self.attempt).read_text())
        return None

    @property
    def attempt(self):
        """The newest attempt of which a rank has begun."""
        names = [path.name for path in self.folder.glob("attempt-*.pid")]
        return max((int(name.split("-")[1]) for name in names), default=0)

    @property
    def pids(self):
        """The numbers of process of all ranks that have begun, of all attempts."""
        return {int(path.read_text()) for path in self.folder.glob("attempt-*.pid")}

    def send(self, rank, number):
        """Send a signal to the process of one rank."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid(rank), number)

    def ask_to_end(self, number):
        """Send a signal that all ranks get: to torchrun, which passes it on, or to each."""
        for rank in range(self.world):
            self.send(rank, number)

    def fault_is_now(self):
        """Count the seconds of `end` from this moment on."""
        self._began = time.monotonic()

    def seconds(self):
        """Return the seconds since the fault."""
        return time.monotonic() - self._began

    def until(self, condition, *, what, limit=LIMIT):
        """Wait until something is so, while all ranks run."""
        end = time.monotonic() + limit
        while not condition():
            if self.has_lost_a_rank() or time.monotonic() > end:
                if condition():
                    return
                raise self._stopped(f"not seen: {what}")
            time.sleep(0.005)

    def until_gone(self, rank, *, limit=LIMIT):
        """Wait until the process of one rank is gone."""
        end = time.monotonic() + limit
        while self.pid(rank) in self._look():
            if time.monotonic() > end:
                raise self._stopped(f"rank {rank} is left after {limit:.0f} s")
            time.sleep(0.01)

    def end(self, *, limit=LIMIT):
        """Wait until every process of the group is gone.

        Raises:
            HungError: some are left after so many seconds; they are killed.
        """
        end = time.monotonic() + limit
        while (left := self._look()) or self.poll() is None:
            if time.monotonic() > end:
                raise self._stopped(f"{len(left)} processes are left after {limit:.0f} s")
            time.sleep(0.01)
        seconds = self.seconds()
        self.close()
        return self._ended(seconds)

    def stop(self):
        """Kill every process of the group, each by its number."""
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 10
        while self.members() and time.monotonic() < end:
            time.sleep(0.01)
        self.close()

    def stacks(self):
        """Return the stacks of all ranks that still run."""
        running = {rank: pid for rank in range(self.world) if (pid := self.pid(rank))}
        alive = set(self.members())
        for number in (STACKS, signal.SIGCONT):
            # A stopped rank shows where it stands only when it goes on, and then the others do too.
            for pid in set(running.values()) & alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(_SECONDS_FOR_STACKS / 2)
        texts = []
        for rank, pid in running.items():
            text = file_of(self.folder, "stacks", rank, self.attempt).read_text()
            texts.append(f"--- rank {rank}, {text or ('silent' if pid in alive else 'gone')}")
        return "\n".join(texts)

    def _look(self):
        """Return the members that are alive; note when each rank was gone."""
        left = set(self.members())
        for pid in self.pids - left - set(self._gone):
            self._gone[pid] = time.monotonic()
        return left

    def _seconds(self, rank):
        return max(0.0, self._gone.get(self.pid(rank), time.monotonic()) - self._began)

    def _stopped(self, reason):
        """Stop the group; return the error that says why, and where its ranks were."""
        stacks = self.stacks()
        self.stop()
        return HungError(f"{reason}\n{stacks}\n{self._ended(0.0).text}")

    def members(self):
        """Return the numbers of all processes of the group that are not dead."""
        raise NotImplementedError

    def poll(self):
        """Return the exit code of the group; None while it runs."""
        raise NotImplementedError

    def has_lost_a_rank(self):
        """Whether the group can go no further as a whole."""
        return self.poll() is not None

    def close(self):
        """Give back what the group needed of this process."""

    def _ended(self, seconds):
        raise NotImplementedError


class ForkedGroup(Group):
    """Ranks without torchrun: the first of them that ends ends alone."""

    def __init__(self, folder, running, store):
        super().__init__(len(running), folder)
        self._running = running
        self._store = store

    def members(self):
        sessions = {one.pid for one in self._running}
        return [pid for pid, _, session in all_processes() if session in sessions]

    def poll(self):
        codes = [one.code for one in self._running]
        if None in codes:
            return None
        return next((code for code in codes if code), 0)

    def has_lost_a_rank(self):
        return not all(one.is_running for one in self._running)

    def close(self):
        self._store = None

    def _ended(self, seconds):
        ranks = [
            EndedRank(one.code, one.out, one.err, self._seconds(rank))
            for rank, one in enumerate(self._running)
        ]
        out, err = ("".join(getattr(one, name) for one in ranks) for name in ("out", "err"))
        return Ended(self.poll() or 0, ranks, out, err, "", seconds)


class TorchrunGroup(Group):
    """Ranks of a real torchrun, each with its output in files of its own."""

    def __init__(self, folder, world, command, environment):
        super().__init__(world, folder)
        self._mark = f"{FOLDER}={folder}".encode()
        self._said = folder / "torchrun.txt"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ask_to_end(self, number):
        self._process.send_signal(number)

    def members(self):
        found = []
        for pid, _, _ in all_processes():
            with contextlib.suppress(OSError):
                if self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def poll(self):
        return self._process.poll()

    def close(self):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _written(self, name, rank="*", attempt="*"):
        pattern = f"logs/*/attempt_{attempt}/{rank}/{name}.log"
        files = sorted(self.folder.glob(pattern))
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)

    def _ended(self, seconds):
        said = self._said.read_text(encoding="utf-8", errors="replace")
        codes = {int(rank): int(code) for rank, code in _FAILED_RANK.findall(said)}
        code = self._process.poll()
        ranks = [
            EndedRank(
                0 if code == 0 else codes.get(rank),
                *(self._written(name, rank, self.attempt) for name in ("stdout", "stderr")),
                self._seconds(rank),
            )
            for rank in range(self.world)
        ]
        out, err = (self._written(name) for name in ("stdout", "stderr"))
        return Ended(-1 if code is None else code, ranks, out, err, said, seconds)


def _of_each(value, world):
    """Return a value for each rank: given as a list, or the same for all."""
    values = list(value) if isinstance(value, list) else [value] * world
    assert len(values) == world
    return values


def fork_ranks(launcher, *arguments, folder, world=2, more=(), before="", cwd=None, **variables):
    """Start a group of copies of the fork server.

    Args:
        launcher: of `faults.processes`.
        arguments: `gapless` or a script, and its arguments.
        folder: that must not exist yet, for what is known of the group.
        world: how many ranks.
        more: arguments after those; a list has those of each rank.
        before: code that a rank runs first; a list has that of each rank.
        cwd: folder to run in, `folder` if None; a list has that of each rank.
        variables: of the environment; a list has the value of each rank.
    """
    folder.mkdir(parents=True)
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    running = []
    options = zip(*(_of_each(one, world) for one in (more, before, cwd)), strict=True)
    for rank, (own_more, own_before, own_cwd) in enumerate(options):
        own = _said_by_torchrun(rank, world, store.port) | {FOLDER: folder}
        own |= {name: _of_each(value, world)[rank] for name, value in variables.items()}
        running.append(
            launcher.start(
                *arguments,
                *own_more,
                folder=own_cwd or folder,
                before=own_before,
                module="ranks.rank_program",
                **own,
            )
        )
    return ForkedGroup(folder, running, store)


def _said_by_torchrun(rank, world, port):
    """Return the environment that torchrun gives to a rank on one host."""
    return {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "GROUP_RANK": 0,
        "GROUP_WORLD_SIZE": 1,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }


def torchrun(*arguments, folder, world=2, options=(), before="", **variables):
    """Start a group with the real torchrun.

    Args:
        arguments: `gapless` or a script, and its arguments.
        folder: that must not exist yet, to run in and for what is known of the group.
        world: how many ranks.
        options: of torchrun, such as `("--max-restarts", 1)`.
        before: code that a rank runs first, in its first attempt; a list has that of each rank.
        variables: of the environment.
    """
    folder.mkdir(parents=True)
    for rank, code in enumerate(_of_each(before, world)):
        file_of(folder, "before.py", rank).write_text(code)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", world, "--redirects", 3, "--log-dir", folder / "logs", *options),
        *("-m", "ranks.rank_program", *arguments),
    ]
    return TorchrunGroup(
        folder,
        world,
        list(map(str, command)),
        {**environment(**variables), FOLDER: str(folder)},
    )
