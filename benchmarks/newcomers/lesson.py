"""The first lesson: 300 pairs, no flag, two cores. A model that cannot repeat what it read learned nothing."""

from __future__ import annotations

import os
import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.newcomers.cuts import FIRST_LESSON, TOKENISERS
from benchmarks.newcomers.runs import CommandError, bleu, environment, gapless, translations


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.newcomers.cuts import Pair


NUM_CORES = 2
MOST_SECONDS = 120.0
LEAST_BLEU = 40.0

_KILLED_AFTER_SECONDS = 900.0


def taught(
    pairs: Sequence[Pair], repeated: Sequence[Pair], *, folder: Path, flags: Sequence[str] = ()
) -> dict[str, Any]:
    """Train on pairs, English to Chinese, on two cores; return seconds and BLEU, or the problem.

    The processor's seconds tell whether the cores were busy with something else.

    Args:
        pairs: to train on.
        repeated: some of them, to be translated.
        folder: to work in, which is made.
        flags: none, but in a trial of the benchmark itself.
    """
    folder.mkdir(parents=True)
    data = folder / "pairs.tsv"
    lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
    data.write_text(lines, encoding="utf-8", newline="")
    env = {**environment(folder), "CUDA_VISIBLE_DEVICES": ""}
    env.pop("OMP_NUM_THREADS", None)
    found: dict[str, Any] = {"cut": FIRST_LESSON, "run": "defaults", "flags": list(flags)}
    found |= {"max_time": None, "problem": None}
    with _few_cores():
        command = ["train", "--data", str(data), "--columns", "en,zh", *flags]
        before = _processor_seconds()
        try:
            found["seconds"] = gapless(
                command, folder=folder, env=env, limit=_KILLED_AFTER_SECONDS
            )
            found["processor_seconds"] = round(_processor_seconds() - before, 2)
            written = translations(repeated, folder=folder, env=env, flags=[])
        except CommandError as error:
            return {**found, "problem": str(error)}
    return {**found, "bleu": bleu(written, repeated, tokenise=TOKENISERS["zh"])}


@contextmanager
def _few_cores() -> Iterator[None]:
    """Let commands that this thread starts have two cores."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:NUM_CORES])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
