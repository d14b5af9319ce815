"""One run as a user makes it: `gapless train`, then `gapless translate`, then a score by sacrebleu."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacrebleu.metrics.bleu import BLEU

from gapless.device.instruments.processor import num_cores


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.newcomers.cuts import Cut, Pair


SRC = Path(__file__).parents[2] / "src"

# What a run may take beyond the time it was given, before it counts as one that does not end.
GRACE_SECONDS = 120.0
LONGEST_SECONDS = 3600.0

# Runs beside it may hold the memory that a translation needs; they end, and its time is not counted.
TRIES = 8
SECONDS_BETWEEN_TRIES = 15.0

# Where `gapless train` writes unless it is told.
_RUN = Path("runs") / "train"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all runs of a command share.

    Attributes:
        device: as `gapless train` takes it.
        jobs: runs beside each other on a device; those of all devices share the processor's cores.
        gpus: indices or UUIDs of the devices, as `CUDA_VISIBLE_DEVICES` takes them; empty: one device,
            which gapless chooses.
        defaults: flags that stand for none, in a trial of the benchmark itself.
    """

    device: str
    jobs: int
    gpus: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()

    @property
    def places(self) -> list[str | None]:
        """The GPU of each run that can be made at the same time; None where none is named."""
        return list(self.gpus or (None,)) * self.jobs

    @property
    def on_device(self) -> list[str]:
        """Flags that choose the device; none where the device is left to gapless."""
        return [] if self.device == "auto" else ["--device", self.device]

    def environment(self, folder: Path, *, gpu: str | None) -> dict[str, str]:
        """Return the environment of one run, whose caches are its own and empty."""
        threads = max(1, num_cores() // len(self.places))
        found = {**environment(folder), "OMP_NUM_THREADS": str(threads)}
        return found if gpu is None else {**found, "CUDA_VISIBLE_DEVICES": gpu}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run of a cut.

    Attributes:
        cut: what it trains on.
        name: `defaults`, or which configuration.
        flags: beside data and languages.
        max_time: as `--max-time` takes it, None for as long as it likes.
    """

    cut: Cut
    name: str
    flags: tuple[str, ...]
    max_time: str | None = None

    @property
    def seconds(self) -> float:
        """How long it may train; 0 where nobody knows."""
        return float(self.max_time.removesuffix("s")) if self.max_time else 0.0


class CommandError(Exception):
    """A command failed, or did not end."""


def made(run: Run, *, folder: Path, setting: Setting, gpu: str | None = None) -> dict[str, Any]:
    """Make a run in a folder of its own; return its seconds and scores, or its problem.

    Seconds are those of the whole command, from its start to its end.
    """
    folder.mkdir(parents=True)
    cut = run.cut
    data = folder / "pairs.tsv"
    cut.write(data)
    command = ["train", "--data", str(data), "--src", cut.source, "--tgt", cut.target]
    command += ["--columns", f"{cut.source},{cut.target}", *run.flags, *setting.on_device]
    if run.max_time:
        command += ["--max-time", run.max_time]
    limit = run.seconds * 2 + GRACE_SECONDS if run.max_time else LONGEST_SECONDS
    environment = setting.environment(folder, gpu=gpu)
    found: dict[str, Any] = {"cut": cut.name, "run": run.name, "flags": list(run.flags)}
    found |= {"max_time": run.max_time, "problem": None}
    try:
        found["seconds"] = gapless(command, folder=folder, env=environment, limit=limit)
        unseen = [*cut.test, *cut.choosing]
        translate = partial(translations, unseen, folder=folder, env=environment)
        written = _once_memory_is_free(partial(translate, flags=setting.on_device))
    except CommandError as error:
        return {**found, "problem": str(error)}
    num_test = len(cut.test)
    found["bleu"] = bleu(written[:num_test], cut.test, tokenise=cut.tokeniser)
    found["choosing_bleu"] = bleu(written[num_test:], cut.choosing, tokenise=cut.tokeniser)
    found["config"] = (folder / _RUN / "config.yaml").read_text(encoding="utf-8")
    return found


def _once_memory_is_free(translate: Callable[[], list[str]]) -> list[str]:
    for _ in range(TRIES - 1):
        try:
            return translate()
        except CommandError as error:
            if "memory" not in str(error):
                raise
            time.sleep(SECONDS_BETWEEN_TRIES)
    return translate()


def translations(
    pairs: Sequence[Pair], *, folder: Path, env: dict[str, str], flags: Sequence[str]
) -> list[str]:
    """Return what the folder's run makes of the source sides.

    Raises:
        CommandError: the command failed, or has another number of lines.
    """
    sources = folder / "sources.txt"
    sources.write_text("".join(f"{source}\n" for source, _ in pairs), encoding="utf-8", newline="")
    out = folder / "translations.txt"
    command = ["translate", str(_RUN), "--file", str(sources), *flags]
    gapless(command, folder=folder, env=env, limit=LONGEST_SECONDS, out=out)
    lines = out.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    if len(lines) != len(pairs):
        raise CommandError(f"{len(pairs)} sentences gave {len(lines)} translations")
    return lines


def bleu(written: Sequence[str], pairs: Sequence[Pair], *, tokenise: str) -> float:
    """Return sacrebleu's score against the target sides."""
    references = [target for _, target in pairs]
    return round(float(BLEU(tokenize=tokenise).corpus_score(written, [references]).score), 2)


def environment(folder: Path) -> dict[str, str]:
    """Return this process's environment, with caches of vocabularies and kernels in a folder."""
    paths = [str(SRC), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache" / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "cache" / "triton"),
    }


def gapless(
    command: Sequence[str],
    *,
    folder: Path,
    env: dict[str, str],
    limit: float,
    out: Path | None = None,
) -> float:
    """Run a command of gapless in a folder; return its seconds.

    Args:
        command: without the program's name.
        folder: working folder, which keeps what the command says.
        env: its environment.
        limit: seconds after which it is killed.
        out: file for what it prints; None: beside its errors.

    Raises:
        CommandError: it failed, or did not end; the message has its last two lines of error.
    """
    said = folder / f"{command[0]}.log"
    start = time.perf_counter()
    with said.open("wb") as errors, out.open("wb") if out else said.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gapless", *command],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        with _running(process):
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                raise CommandError(
                    f"gapless {command[0]} did not end within {limit:.0f} s"
                ) from None
    if code:
        lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        # Above the line of an error that gapless did not expect stands the error.
        raise CommandError(f"gapless {command[0]}: exit code {code}: {' | '.join(lines[-2:])}")
    return round(time.perf_counter() - start, 2)


_processes: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()


def kill_all() -> None:
    """End every command that still runs, with its loader workers."""
    with _lock:
        for process in _processes:
            _kill(process)


@contextmanager
def _running(process: subprocess.Popen[bytes]) -> Iterator[None]:
    with _lock:
        _processes.add(process)
    try:
        yield
    finally:
        with _lock:
            _processes.discard(process)
        if process.poll() is None:
            _kill(process)
            process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
