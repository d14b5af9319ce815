"""Measure the plans of this project's origin on its own workload, and judge its claims.

    PYTHONPATH=src python3 -m benchmarks.origin --precision fp32 --out docs/results
    PYTHONPATH=src python3 -m benchmarks.origin --precision bf16 --out docs/results
    PYTHONPATH=src python3 -m benchmarks.origin --precision fp32 --tuning --out docs/results
    PYTHONPATH=src python3 -m benchmarks.origin --small --device cpu --out DIR   # does it run?

The workload is the origin's: a Transformer of width 512, 8 heads, 6 + 6 layers, and batches of 32
sentences. First the bits of every plan are compared with those of a plain loop, then the plans are
timed in turns. Each call writes `origin-PRECISION.json` and, of all such files in the folder, the
page `origin.md`. `--only PLAN,PLAN` measures these again and keeps the other rows of the file.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.facts import place_and_time
from benchmarks.origin_page import write_page
from benchmarks.peers.cases import TINY, base32
from benchmarks.processes import fork_loader_workers, replace_text
from gapless.cli.progress import Steps
from gapless.cli.workloads import in_one_process, translation_workload
from gapless.compare.bench import run_bench
from gapless.compare.compare_plans import REFERENCE, compare_bits
from gapless.compare.ranking import recommend
from gapless.compare.settings import CompareSettings, Rounds, RunSettings
from gapless.compare.timed_plan import TimedPlan
from gapless.device.find import find_device
from gapless.device.instruments.processor import num_cores
from gapless.errors import UserError
from gapless.plans import PLANS, Plan, get_plan
from gapless.records.comparison import ComparisonReport
from gapless.report.json_reports import comparison_json


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.device.base import Device
    from gapless.records.verification import Verdict


# The origin's, then what this project has instead. `auto` chooses between the last two.
COMPARED = tuple(name for name in PLANS if name != "auto")

# Ten minutes are the most that a call may take on some machines: no round begins after so long,
# and what comes after the rounds takes about a minute and a half.
_ROUNDS_SECONDS = 180.0

# Of that time, what the comparison of bits may take before.
_BITS_SHARE = 2 / 3

# Of the origin's advice on how often to read losses, by sentences a batch.
_TUNED_BATCHES = (16, 32, 64)
_TUNED_INTERVALS = (1, 5, 10, 20, 30)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the file and the page; return 0, 1 if bits differ or a plan failed, or 2."""
    options = _parser().parse_args(arguments)
    try:
        run = _Run(options)
    except (UserError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    fork_loader_workers()
    if options.tuning:
        run.tune()
    else:
        run.compare_bits()
        run.compare_times()
    run.write()
    print(f"\nwritten: {run.path}, {write_page(options.out)}")
    return 0 if run.holds else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.origin", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder of results")
    parser.add_argument("--only", help="plans, with commas; others keep their rows in the file")
    parser.add_argument("--tuning", action="store_true", help="time intervals instead of plans")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, help="batches of a round [default: 50, small: 6]")
    parser.add_argument("--rounds", type=int, help="timed rounds [default: 5, small: 2]")
    parser.add_argument(
        "--verify-steps", type=int, help="steps of comparing bits; 0: none [default: 18, small: 6]"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=_ROUNDS_SECONDS,
        help="begin no round after so long, and no bits after two thirds of it [default: 180]",
    )
    parser.add_argument("--small", action="store_true", help="a tiny model, for seconds on a CPU")
    parser.add_argument("--commit", help="commit of the tree, where git cannot tell it")
    return parser


def _command(options: argparse.Namespace) -> str:
    """Return the command without the places of one machine."""
    words = [f"python -m benchmarks.origin --precision {options.precision}"]
    words += [f"--{name}" for name in ("small", "tuning") if getattr(options, name)]
    words += [
        f"--{name.replace('_', '-')} {getattr(options, name)}"
        for name in ("only", "steps", "rounds", "verify_steps")
        if getattr(options, name) is not None
    ]
    return " ".join(words)


class _OutOfTimeError(Exception):
    """Bits have taken long enough."""


class _Run:
    """One call: what is measured, and the file that it stands in.

    Args:
        options: of the command.

    Raises:
        UserError: a plan or the device is unknown.
        OSError: the folder cannot be made or the file not be read.
        ValueError: the file is no JSON.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._small = options.small
        self._device: Device = find_device(options.device)
        self._lines = Steps("done")
        self._seconds: float = options.seconds
        plans = COMPARED if options.only is None else tuple(options.only.split(","))
        steps = options.steps or (6 if self._small else 50)
        self._settings = CompareSettings(
            run=RunSettings(device=self._device, precision=options.precision),
            rounds=Rounds(
                steps=steps,
                rounds=options.rounds or (2 if self._small else 5),
                warmup_rounds=1 if self._small else 2,
                verify_steps=self._verify_steps(options.verify_steps),
            ),
            plans=plans,
            seconds=options.seconds,
        )
        options.out.mkdir(parents=True, exist_ok=True)
        self.path = options.out / f"origin-{options.precision}.json"
        self._kept: dict[str, Any] = {"rows": [], "bits": {}, "tuning": [], "problems": {}}
        if (options.only or options.tuning) and self.path.exists():
            self._kept |= json.loads(self.path.read_text(encoding="utf-8"))
        facts = place_and_time(options.device, module="benchmarks.origin")
        facts["command"] = _command(options)
        if options.commit:
            facts["commit"] = options.commit
        self._kept |= {"cores": num_cores(), "precision": options.precision}
        self._facts = facts
        self._say("pairs and batches")
        self._case = self._case_of(32)
        self._settings.run.set_numerics(compares=not options.tuning)

    @property
    def holds(self) -> bool:
        """Whether every plan ran and gave the same bits."""
        return not self._kept["problems"] and False not in self._kept["bits"].values()

    def _verify_steps(self, asked: int | None) -> int:
        if asked is not None:
            return asked
        return 6 if self._small else 18

    def _say(self, title: str) -> None:
        self._lines.show(title, 0, of=1)

    def _case_of(self, sentences: int) -> Any:
        sizes: dict[str, Any] = {**TINY, "num_pairs": 600} if self._small else {}
        case = base32(workers=0, precision=self._settings.run.precision, **sizes)
        # One layout for all plans: the one that can be captured, rows padded to few shapes.
        config = replace(
            case.config,
            plan="captured",
            batch_size=sentences,
            fixed_shapes=True,
            pack=False,
            compile=False,
        )
        return replace(case, config=config)

    def _progress(self, title: str, done: int, total: int) -> None:
        self._lines.show(title, done, of=total)

    # --- bits ---

    def compare_bits(self) -> None:
        """Compare every plan with a plain loop; the file has each verdict at once."""
        if not self._settings.rounds.verify_steps:
            return
        case, bits, start = self._case, self._kept["bits"], perf_counter()

        def store(verdict: Verdict) -> None:
            ours = verdict.ours
            self._lines.clear()
            print(f"{ours.plan}: {'bit-identical' if verdict.holds else 'DIFFERENT'}", flush=True)
            if ours.plan in PLANS:
                # Bits of steps that were to be replays, and none was, say nothing of the plan.
                bits[ours.plan] = None if ours.shows_nothing else verdict.holds
                self.write()
            if perf_counter() - start > _BITS_SHARE * self._seconds:
                raise _OutOfTimeError("compare the other plans by --only")

        make = in_one_process(
            case.config, case, plan=get_plan(REFERENCE), steps=self._settings.rounds.steps
        )
        try:
            found = compare_bits(
                make, self._settings, on_progress=self._progress, on_verdict=store
            )
        except Exception as error:
            self._note_problem("bits", error)
            return
        if not found.itself.holds:
            self._kept["problems"]["bits"] = "a plain loop does not equal itself"

    # --- times ---

    def compare_times(self) -> None:
        """Time the plans in turns; if that fails, each by itself, so that one spoils no other."""
        plans = self._settings.plans
        try:
            self._time(plans)
        except Exception as error:
            if len(plans) == 1:
                self._note_problem(plans[0], error)
                return
            self._note_problem("all plans in turns", error)
            for plan in plans:
                try:
                    self._time((plan,))
                except Exception as error:
                    self._note_problem(plan, error)

    def _note_problem(self, what: str, error: Exception) -> None:
        traceback.print_exc()
        self._kept["problems"][what] = f"{type(error).__name__}: {error}".splitlines()[0]
        self.write()

    def _time(self, plans: tuple[str, ...]) -> None:
        settings = replace(self._settings, plans=plans)
        make = translation_workload(self._case.config, self._case, steps=settings.rounds.steps)
        found = run_bench(make, settings, on_progress=self._progress)
        bits = self._kept["bits"]
        rows = tuple(replace(row, identical=bits.get(row.plan)) for row in found.rows)
        report = ComparisonReport(
            workload=self._workload(),
            device=str(self._device.torch_device),
            hardware=self._device.describe(),
            is_accelerator=self._device.is_accelerator,
            torch=self._facts["versions"],
            commit=self._facts["commit"],
            unit=found.unit,
            settings={"steps": settings.rounds.steps, "rounds": settings.rounds.rounds},
            rows=rows,
            recommendation=recommend(rows, is_accelerator=self._device.is_accelerator),
            notes=found.notes,
            in_turns=found.in_turns,
        )
        self._store(json.loads(comparison_json(report)))

    def _workload(self) -> str:
        config = self._case.config
        return (
            f"Transformer {config.d_model}/{config.heads}/{config.encoder_layers}+"
            f"{config.decoder_layers}, batches of {config.batch_size} sentences, "
            f"{self._settings.rounds.steps} of them an epoch"
        )

    def _store(self, measured: dict[str, Any]) -> None:
        """Add new rows in place of those of the same plans, with where they were measured."""
        new = {row["plan"]: {**row, "facts": self._facts} for row in measured.pop("rows")}
        for plan in new:
            self._kept["problems"].pop(plan, None)
        old = {row["plan"]: row for row in self._kept["rows"]}
        rows = {**old, **new}
        order = [plan for plan in PLANS if plan in rows]
        self._kept |= measured | {"rows": [rows[plan] for plan in order], "facts": self._facts}
        self.write()

    # --- tuning ---

    def tune(self) -> None:
        """Time how often losses are read, with small, middle and large batches."""
        rounds = self._settings.rounds
        self._kept["tuning"] = []
        for sentences in _TUNED_BATCHES:
            case = self._case_of(sentences)
            plan = get_plan("deferred-loss")
            plans = [
                replace(plan, name=f"every {interval}", loss_interval=interval)
                for interval in _TUNED_INTERVALS
            ]
            make = translation_workload(case.config, case, steps=rounds.steps)
            timed_plans = [
                TimedPlan(plan, make=make, settings=self._settings.run, steps=rounds.steps)
                for plan in plans
            ]
            try:
                for number, timed in enumerate(timed_plans):
                    self._progress(f"{sentences} sentences, warm-up", number, len(timed_plans))
                    timed.prepare(rounds=1)
                draw = random.Random(1)
                for number in range(rounds.rounds):
                    self._progress(f"{sentences} sentences, rounds", number, rounds.rounds)
                    for timed in draw.sample(timed_plans, k=len(timed_plans)):
                        timed.take_round()
                found = [
                    _tuned(plan, timed) for plan, timed in zip(plans, timed_plans, strict=True)
                ]
            finally:
                for timed in timed_plans:
                    with suppress(AttributeError):
                        timed.close()
            self._kept["tuning"].append({"sentences": sentences, "intervals": found})
            self._kept["tuning_facts"] = self._facts
            self.write()

    def write(self) -> None:
        """Write the file, as far as things are known."""
        text = json.dumps(self._kept, indent=1, ensure_ascii=False)
        replace_text(self.path, f"{text}\n")


def _tuned(plan: Plan, timed: TimedPlan) -> dict[str, Any]:
    row = timed.row()
    spread = row.ms_per_step
    return {
        "interval": plan.loss_interval,
        "ms": spread.median,
        "q1": spread.q1,
        "q3": spread.q3,
        "waits": row.waits_per_step,
        "waited_ms": row.waited_ms_per_step,
    }


if __name__ == "__main__":
    sys.exit(main())
