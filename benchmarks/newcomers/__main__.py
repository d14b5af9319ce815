"""Judge the defaults of `gapless train`: nothing but data, beside 24 configurations for the same time.

    PYTHONPATH=src python3 -m benchmarks.newcomers --corpora FOLDER --json newcomers.jsonl

`--small` trains tiny models on made-up text on a CPU, to see that it all runs. Runs that the file
holds from the same commit, machine and number of jobs are not made again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from shutil import rmtree
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.facts import place_and_time
from benchmarks.newcomers import cuts, small
from benchmarks.newcomers.grid import NUM_CONFIGURATIONS, configurations
from benchmarks.newcomers.lesson import taught
from benchmarks.newcomers.order import DEFAULTS, Order, configuration_name, make_all
from benchmarks.newcomers.runs import Run, Setting, kill_all, made
from benchmarks.newcomers.verdicts import Verdict, judge, lesson_line, lesson_passes, table
from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Sequence


# What two runs must share to be compared, and not to be made twice.
_SAME = ("commit", "hardware", "host", "versions", "jobs", "gpus", "is_small")

Found = dict[str, Any]


class Records:
    """The runs of one commit and machine, and the file they are appended to.

    Args:
        path: JSON lines, one a run; None keeps them in memory alone.
        facts: beside every run.
    """

    def __init__(self, path: Path | None, facts: Found) -> None:
        self._path = path
        self._facts = facts
        self.found = [
            one for one in _read(path) if all(one.get(at, 1) == facts[at] for at in _SAME)
        ]

    def add(self, found: Found) -> None:
        """Keep a run, in the file as well."""
        self.found.append({**self._facts, **found})
        if self._path:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.found[-1], ensure_ascii=False) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and judge; return 0 if everything passes, 1 if not, 2 if it cannot be measured."""
    options = _parser().parse_args(arguments)
    # As an interrupt does: commands that still run end with this one.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _judge_all(options)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; runs that have ended are in the file", file=sys.stderr)
        return 130
    finally:
        kill_all()
        signal.signal(signal.SIGTERM, before)


def _judge_all(options: argparse.Namespace) -> int:
    start = perf_counter()
    names = _names(options)
    device = "cpu" if options.small else options.device
    facts = place_and_time(device, module="benchmarks.newcomers")
    gpus = tuple(options.gpus.split(",")) if options.gpus else ()
    facts |= {"jobs": options.jobs, "gpus": max(1, len(gpus)), "is_small": options.small}
    records = Records(options.json, facts)
    if options.corpora is None and not options.small:
        raise UserError(
            "the corpora are no part of this project; name their folder with --corpora"
        )
    setting = Setting(
        device=device,
        jobs=options.jobs,
        gpus=gpus,
        defaults=small.DEFAULTS if options.small else (),
    )
    wanted = _wanted(options)

    def tell(line: str) -> None:
        print(f"{perf_counter() - start:7.1f} s  {line}", flush=True)

    def seconds_left() -> float:
        return float(options.time_limit) - (perf_counter() - start)

    tell(f"{facts['hardware']}, {facts['versions']}, commit {facts['commit']}")
    folder = Path(tempfile.mkdtemp(prefix="newcomers-"))
    try:
        if cuts.FIRST_LESSON in wanted:
            _teach(options, records, folder=folder / "lesson", setting=setting)
            tell(lesson_line(_lesson(records)))
        found_cuts = _cuts(options, wanted)
        _measure(options, found_cuts, names, records, folder, setting, seconds_left, tell)
    finally:
        rmtree(folder, ignore_errors=True)
    return _conclude(options, wanted, [cut.name for cut in found_cuts], records)


def _wanted(options: argparse.Namespace) -> list[str]:
    known = [cuts.FIRST_LESSON, *([small.cut().name] if options.small else cuts.names())]
    parts = [part.strip() for part in options.only.split(",")]
    for part in parts:
        if not any(part in name for name in known):
            raise UserError(f"no case has {part!r} in its name; they are {', '.join(known)}")
    found = [name for part in parts for name in known if part in name]
    return list(dict.fromkeys(found))


def _cuts(options: argparse.Namespace, wanted: list[str]) -> list[cuts.Cut]:
    if options.small:
        return [cut for cut in [small.cut()] if cut.name in wanted]
    return sorted(cuts.load(options.corpora, wanted), key=lambda cut: wanted.index(cut.name))


def _teach(
    options: argparse.Namespace, records: Records, *, folder: Path, setting: Setting
) -> None:
    if any(one["cut"] == cuts.FIRST_LESSON for one in records.found):
        return
    pairs, repeated = small.lesson() if options.small else cuts.first_lesson(options.corpora)
    records.add(taught(pairs, repeated, folder=folder, flags=setting.defaults))


def _lesson(records: Records) -> Found:
    return next(one for one in records.found if one["cut"] == cuts.FIRST_LESSON)


def _measure(
    options: argparse.Namespace,
    found_cuts: list[cuts.Cut],
    names: list[str],
    records: Records,
    folder: Path,
    setting: Setting,
    seconds_left: Any,
    tell: Any,
) -> None:
    chosen = {cut.name: _configurations(options, cut) for cut in found_cuts}
    num_places = len(setting.places)
    order = Order(
        found_cuts,
        chosen,
        defaults=setting.defaults,
        jobs=num_places,
        seconds=options.seconds,
        names=names,
    )
    order.know(records.found)
    number = itertools.count()
    lock = threading.Lock()
    free: SimpleQueue[str | None] = SimpleQueue()
    for gpu in setting.places:
        free.put(gpu)

    def make(run: Run) -> Found:
        with lock:
            own = folder / str(next(number))
        gpu = free.get()
        try:
            return made(run, folder=own, setting=setting, gpu=gpu)
        finally:
            free.put(gpu)
            rmtree(own, ignore_errors=True)

    def ended(found: Found, num_left: int) -> None:
        records.add(found)
        came = found["problem"] or f"BLEU {found['bleu']:.2f} in {found['seconds']:.0f} s"
        tell(f"{found['cut']}, {found['run']}: {came} ({num_left} left)")

    make_all(order, make, jobs=num_places, seconds_left=seconds_left, tell=ended)
    if len(order):
        tell(f"the time is over; {len(order)} runs wait for the next call")


def _names(options: argparse.Namespace) -> list[str]:
    names = [name.strip() for name in options.runs.split(",") if name.strip()]
    known = [DEFAULTS, *map(configuration_name, range(options.configurations))]
    for name in names:
        if name not in known:
            raise UserError(f"no run is named {name!r}; they are {', '.join(known)}")
    return names


def _configurations(options: argparse.Namespace, cut: cuts.Cut) -> list[list[str]]:
    if options.small:
        return small.CONFIGURATIONS
    return configurations(cut.size, (cut.source, cut.target))[: options.configurations]


def _conclude(
    options: argparse.Namespace, wanted: list[str], names: list[str], records: Records
) -> int:
    num = len(small.CONFIGURATIONS) if options.small else options.configurations
    begun = {one["cut"] for one in records.found if one["run"] == DEFAULTS}
    verdicts: list[Verdict] = [
        judge(records.found, cut=name, num_configurations=num) for name in names if name in begun
    ]
    if verdicts:
        print(table(verdicts))
    passes = [verdict.word == "passes" for verdict in verdicts]
    if cuts.FIRST_LESSON in wanted:
        print(lesson_line(_lesson(records)))
        passes.append(lesson_passes(_lesson(records)))
    return 0 if len(passes) == len(wanted) and all(passes) else 1


def _read(path: Path | None) -> list[Found]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.newcomers", description=__doc__.splitlines()[0]
    )
    add = partial(parser.add_argument)
    add("--corpora", type=Path, metavar="FOLDER", help="of the parallel corpora")
    add(
        "--only", default="", metavar="TEXT,TEXT",
        help=f"cases with one of these in their names, such as {cuts.FIRST_LESSON} or tatoeba-zh-en-500; "
        "in this order",
    )  # fmt: skip
    add("--configurations", type=int, default=NUM_CONFIGURATIONS, help="how many of them")
    add(
        "--runs", default="", metavar="NAME,NAME",
        help=f"make only these, such as {DEFAULTS} or '{configuration_name(6)}'; without {DEFAULTS}, "
        "give --seconds",
    )  # fmt: skip
    add("--jobs", type=int, default=1, help="runs beside each other on a device")
    add(
        "--gpus", default="", metavar="GPU,GPU",
        help="spread the runs over these, named as CUDA_VISIBLE_DEVICES names them",
    )  # fmt: skip
    add(
        "--seconds", type=int, metavar="SECONDS",
        help="of each configuration, more than the defaults need; else as many as these took, "
        "so that they must end first",
    )  # fmt: skip
    add("--device", default="auto")
    add("--json", type=Path, help="file of JSON lines to append to, and to go on from")
    add(
        "--time-limit", type=float, default=float("inf"), metavar="SECONDS",
        help="begin no run that is known to need longer",
    )  # fmt: skip
    add("--small", action="store_true", help="tiny models and made-up text on a CPU: does it run?")
    return parser


if __name__ == "__main__":
    sys.exit(main())
