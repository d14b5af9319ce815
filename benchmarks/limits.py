"""How fast the captured plan trains translation Transformers here, beside what the device can.

    PYTHONPATH=src python3 -m benchmarks.limits --data train.tsv.gz --out runs/results

Every row has a process of its own, one after the other. What is compiled and captured is made
first, then a turn is run that does not count, then the rounds: so many steps to start the loader
and fill queues, and the timed ones, which are an epoch of their own.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks import limits_report
from benchmarks.facts import place_and_time
from benchmarks.peers.cases import PLAIN_LAYOUT, TINY, base32, base8192, big25k
from benchmarks.peers.gapless_peer import GaplessPeer
from benchmarks.peers.worker import Order, RowError, RowProcess
from benchmarks.processes import replace_text
from benchmarks.taken_away import TAKE_AWAY
from gapless.device.find import find_device
from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.peers.cases import Case


_CASES = ("base32", "base8192", "big25k")

# Those that take something away are run when they are named.
_ROWS = "padded,eager,captured,compiled"


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One row: a plan and a layout of batches.

    Attributes:
        name: for `--only`.
        title: for people.
        plan: name of the plan.
        layout: settings of layout and compiling.
        without: what is taken away, a key of `TAKE_AWAY`.
    """

    name: str
    title: str
    plan: str
    layout: dict[str, Any]
    without: str | None = None


def rows_of(case: Case) -> list[Limit]:
    """Return the rows of a case: what cannot be packed is padded to few shapes."""
    by_sentences = case.config.batch_size is not None
    word = "few shapes" if by_sentences else "packed"
    layout = {"pack": not by_sentences, "fixed_shapes": by_sentences, "compile": False}
    best: dict[str, Any] = {"plan": "captured", "layout": layout | {"compile": True}}
    return [
        Limit(name="padded", title="padded, eager", plan="gapless", layout=PLAIN_LAYOUT),
        Limit(name="eager", title=f"{word}, eager", plan="gapless", layout=layout),
        Limit(name="captured", title=f"{word}, captured", plan="captured", layout=layout),
        Limit(name="compiled", title=f"{word}, captured, layers compiled", **best),
        *(
            Limit(
                name=f"no-{what.replace(' ', '-')}",
                title=f"{word}, captured, layers compiled, without {what}",
                without=what,
                **best,
            )
            for what in TAKE_AWAY
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases that were asked for, write JSON and Markdown; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        names = _known(options.cases, _CASES, what="case")
        only = _known(options.only, [row.name for row in rows_of(_case("base32", options))], "row")
        device = str(find_device(options.device).torch_device)
        folder = Path(options.out)
        (folder / "limits-logs").mkdir(parents=True, exist_ok=True)
        cases = [_case(name, options) for name in names]
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    runner = _Runner(options, device=device, logs=folder / "limits-logs")
    facts = _facts(options, device)
    write = partial(_write, folder / "limits", facts)
    for case in cases:
        facts["cases"].append(_describe(case))
        for row in rows_of(case):
            if row.name in only:
                facts["cases"][-1]["rows"].append(runner.run(case, row))
                write()
    print(f"\n{write()}\nwritten: {folder / 'limits'}.json, .md")
    return 0 if any(row["rounds"] for case in facts["cases"] for row in case["rows"]) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__)
    parser.add_argument("--cases", default=",".join(_CASES), help="names, with commas")
    parser.add_argument("--only", default=_ROWS, help="rows: these, no-chunked-loss, ...")
    parser.add_argument("--data", help="folder or file of sentence pairs; none: synthetic ones")
    parser.add_argument("--src", default="en", help="source side of the data")
    parser.add_argument("--tgt", default="zh", help="target side")
    parser.add_argument("--vocab-size", type=int, default=32_000, help="subwords a side")
    parser.add_argument("--out", default="runs/results", help="folder for JSON and table")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="bf16", choices=("fp32", "bf16"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=8, help="steps before the timed ones")
    parser.add_argument(
        "--steps",
        type=int,
        default=200,
        help="timed steps of a round, which audits of a young graph share",
    )
    parser.add_argument("--workers", type=int, default=4, help="loader processes")
    parser.add_argument(
        "--peak-tflops", type=float, default=989.0, help="of the device; H100, H200: 989 in bf16"
    )
    parser.add_argument("--profile", action="store_true", help="name the ten costliest kernels")
    parser.add_argument("--setup-limit", type=float, default=300.0, help="seconds a row may take")
    parser.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="begin no round after so long"
    )
    parser.add_argument("--tiny", action="store_true", help="a small model: does it all run?")
    return parser


def _known(text: str, known: Sequence[str], what: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(f"unknown {what} {unknown[0]!r}; the {what}s are {', '.join(known)}")
    return names


def _case(name: str, options: argparse.Namespace) -> Case:
    common = {"workers": options.workers, "precision": options.precision}
    tiny: dict[str, Any] = {**TINY, "num_pairs": 500} if options.tiny else {}
    if name == "base32":
        return base32(**common, **tiny)
    text = {"data": options.data, "src": options.src, "tgt": options.tgt}
    text["vocab_size"] = 1_000 if options.tiny else options.vocab_size
    if name == "base8192":
        return base8192(**common, **text, **tiny, batch_tokens=400 if options.tiny else 8192)
    return big25k(**common, **text, **tiny, target_tokens=500 if options.tiny else 25_000)


class _Runner:
    """Runs rows one after the other, until time is up."""

    def __init__(self, options: argparse.Namespace, *, device: str, logs: Path) -> None:
        self._options = options
        self._device = device
        self._logs = logs
        self._started_at = perf_counter()

    def run(self, case: Case, row: Limit) -> dict[str, Any]:
        """Return the figures of a row; one that fails has its reason among them."""
        found: dict[str, Any] = {"setup": {}, "rounds": [], "profile": {}, "problem": None}
        name = f"{case.name} {row.name}"
        if self._is_late():
            found["problem"] = "not run, time was up"
        else:
            process = RowProcess(
                partial(GaplessPeer, plan=row.plan, layout=row.layout, without=row.without),
                case=case,
                device=self._device,
                log=self._logs / f"{case.name}-{row.name}.log",
            )
            try:
                self._fill(found, process, partial(self._tell, name))
            except RowError as error:
                found["problem"] = str(error)
                self._tell(name, str(error))
            finally:
                process.end()
        peak = None if self._device == "cpu" else self._options.peak_tflops
        return limits_report.summarize(row.name, row.title, found, peak_tflops=peak)

    def _fill(
        self, found: dict[str, Any], process: RowProcess, tell: Callable[[str], None]
    ) -> None:
        options = self._options
        found["setup"] = process.wait_ready(limit_s=options.setup_limit)
        tell(f"ready in {found['setup']['setup_seconds']:.1f} s")
        length = options.warmup + options.steps
        # Allocators, and code paths that a first round would pay for.
        process.run(Order(warmup=1, steps=options.steps, first=0), limit_s=_TURN_LIMIT_S)
        for number in range(options.rounds):
            if self._is_late():
                found["problem"] = f"{number} of {options.rounds} rounds, time was up"
                return
            order = Order(warmup=options.warmup, steps=options.steps, first=number * length)
            answer = process.run(order, limit_s=_TURN_LIMIT_S)
            found["rounds"].append(answer)
            tell(f"round {number + 1}: {1000.0 * answer['seconds'] / options.steps:.2f} ms a step")
        if options.profile and self._device != "cpu":
            order = Order(warmup=options.warmup, steps=_PROFILED_STEPS, first=0, profiled=True)
            found["profile"] = process.run(order, limit_s=_TURN_LIMIT_S)

    def _is_late(self) -> bool:
        limit = self._options.time_limit
        return limit is not None and perf_counter() - self._started_at > limit

    def _tell(self, name: str, line: str) -> None:
        print(f"{perf_counter() - self._started_at:6.1f} s  {name}: {line}", flush=True)


_PROFILED_STEPS = 10
_TURN_LIMIT_S = 180.0


def _describe(case: Case) -> dict[str, Any]:
    config = case.config
    budget = (
        f"{config.batch_size} sentences"
        if config.batch_size
        else f"{config.batch_tokens:,} tokens of the longer side"
    )
    return {
        "case": case.name,
        "model": f"Transformer {config.d_model}, {config.heads} heads, inner width {config.ffn}, "
        f"{config.encoder_layers} + {config.decoder_layers} layers, vocabularies "
        f"{len(case.vocabs.src):,} and {len(case.vocabs.tgt):,}, {config.precision}",
        "batches": f"{len(case.train):,} {'pairs of text' if config.data else 'synthetic pairs'}, "
        f"batches of {budget}, {case.workers} loader processes",
        "config": asdict(config),
        "rows": [],
    }


def _facts(options: argparse.Namespace, device: str) -> dict[str, Any]:
    return {
        **place_and_time(device, module="benchmarks.limits"),
        "measured": f"{options.rounds} rounds of {options.steps} steps after {options.warmup}, "
        "every row in a process of its own",
        "peak_tflops": options.peak_tflops,
        "cases": [],
    }


def _write(stem: Path, facts: dict[str, Any]) -> str:
    table = limits_report.to_markdown(facts)
    replace_text(stem.with_suffix(".json"), json.dumps(facts, indent=1) + "\n")
    replace_text(stem.with_suffix(".md"), table)
    return table


if __name__ == "__main__":
    sys.exit(main())
