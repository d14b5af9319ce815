"""Say what becomes of each case where every replay is audited: right, refused, told, or wrong in silence.

    cd tests && PYTHONPATH=.:../src python -m hazards.verdicts verdicts.jsonl
    cd tests && PYTHONPATH=.:../src python -m hazards.verdicts verdicts.jsonl --table

The first runs what the file does not have yet, in one process: captured steps, objects in place, footguns in
their four forms and channels of state, on the simulated device under each scheduler, or on a GPU (`--gpu`).
The second prints the table.

* right: all that the loop gives is as written, some of it by graphs.
* refused: so it is, and nothing was a graph.
* told: an audit has told of a difference; or an error or a warning has, where that is known
  (`in_place_known.py`).
* silent: the loop gives something else, and nothing tells.
* not repeatable: as written it gives something else than under `asap`.
* asserts: the case asserts how many calls were replays, and with audits there are others.
* fails: something else was raised.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from unittest import mock

import torch

from ample_room import AMPLE
from gapless.device.find import find_device
from gapless.graphs import account, audit
from gapless.testing.simulated.simulated_device import SimulatedDevice
from graphs.audits import harness as channel_loops
from graphs.audits.channels import CHANNELS
from graphs.audits.footgun_classes import FOOTGUNS
from graphs.audits.footguns import FORMS, trained
from hazards import captured_harness, in_place_harness
from hazards.captured_harness import GPU, HOLDS, SIMULATED, differences
from hazards.in_place_known import xfail_marks
from hazards.themes import CAPTURED_CASES, IN_PLACE_CASES


SCHEDULES = [("asap", 0), ("lazy", 0), ("random", 0)]
VERDICTS = ["right", "refused", "told", "silent", "not repeatable", "asserts", "fails"]

# All calls of a channel's loop, and before which of them the change is made.
_CALLS, _AT = 16, 10


def _kind_of(scheduler):
    return GPU if scheduler == "gpu" else SIMULATED


def _device_of(scheduler, seed):
    if scheduler == "gpu":
        return find_device("cuda")
    return SimulatedDevice(scheduler=scheduler, seed=seed)


def _of_loop(case, harness, scheduler, seed):
    """Return the verdict on a loop of `tests/hazards`, and what is said."""
    kind, schedule = _kind_of(scheduler), {"scheduler": scheduler, "seed": seed}
    schedule = {} if kind == GPU else schedule
    if harness is captured_harness:
        run, one = captured_harness.run, (case, kind)
        product = captured_harness.product_of(*one, **schedule)
        reference = captured_harness._PLACES[kind](is_plain=True, waits=case.waits, **schedule)
    else:
        run, one = in_place_harness._run, (case, kind)
        product = in_place_harness.product_of(kind, **schedule)
        reference = in_place_harness.reference_of(kind, **schedule)
    try:
        outcome = run(case, product)
    except Exception as error:
        if case.expect != HOLDS:
            raise
        return "asserts", f"{type(error).__name__}: {error}"
    expected = outcome.result if case.expect == HOLDS else harness.expected_of(*one)
    wrong = differences(expected, outcome.result)
    wrong += [f"race: {race}" for race in outcome.races]
    reports = product.reports()
    told = [text for report in reports for text in report.audits.differences]
    graphs = sum(report.num_replays + report.audits.num for report in reports)
    if "AssertionError" in outcome.error and not case.raises:
        return "asserts", outcome.error
    if told:
        return "told", told[0]
    if not wrong:
        return ("right" if graphs else "refused"), f"{graphs} of {outcome.num_calls}"
    if differences(expected, run(case, reference).result):
        return "not repeatable", wrong[0]
    if harness is in_place_harness and xfail_marks(case, kind):
        return "told", wrong[0]
    return "silent", "; ".join([*wrong, outcome.error, outcome.said])


def _of_footgun(footgun, form, scheduler, seed):
    """Return the verdict on one form of a footgun, and what is said."""

    def run(**options):
        device = _device_of(scheduler, seed)
        with tempfile.TemporaryDirectory() as folder:
            return trained(footgun, form, Path(folder), device=device, **options)

    return _compared(run(options={}), run())


def _of_channel(channel, scheduler, seed):
    """Return the verdict on a channel of state, and what is said."""

    def run(options):
        device = _device_of(scheduler, seed)
        with tempfile.TemporaryDirectory() as folder:
            return channel_loops.run(
                channel, Path(folder), calls=_CALLS, at=_AT, options=options, device=device
            )

    return _compared(run({}), run(None))


def _compared(found, plain):
    said = found.reports[-1].splitlines()[0]
    if found.told_at() is not None:
        is_right = "right" if found.results == plain.results else "wrong"
        return "told", f"{is_right}: {channel_loops.lines_of_audits(found.reports[-1])}"
    if found.results != plain.results:
        return "silent", said
    if found.refusals and " audit" not in said:
        return "refused", found.refusals[0]
    return "right", said


def all_runs(schedules=SCHEDULES):
    """Yield a key, a function and its arguments for each run."""
    for schedule in schedules:
        for form, cases, harness in (
            ("captured step", CAPTURED_CASES, captured_harness),
            ("in place", IN_PLACE_CASES, in_place_harness),
        ):
            for case in cases:
                if _kind_of(schedule[0]) in case.devices:
                    yield (form, str(case), *schedule), _of_loop, (case, harness, *schedule)
    for schedule in schedules:
        for channel in CHANNELS:
            yield ("channel", str(channel), *schedule), _of_channel, (channel, *schedule)
        for form in FORMS:
            for footgun in FOOTGUNS:
                key = (f"footgun, {form}", str(footgun), *schedule)
                yield key, _of_footgun, (footgun, form, *schedule)


def _run_rest(out, num, schedules):
    known = {tuple(json.loads(line)["key"]) for line in out.read_text().splitlines()}
    for key, run, arguments in all_runs(schedules):
        if key in known:
            continue
        try:
            verdict, said = run(*arguments)
        except Exception as error:  # one that fails otherwise is looked at
            verdict, said = "fails", f"{type(error).__name__}: {error}"
        with out.open("a", encoding="utf-8") as file:
            print(json.dumps({"key": key, "verdict": verdict, "said": said[:2000]}), file=file)
        num -= 1
        if not num:
            return


def _table(out):
    counts = Counter()
    for line in out.read_text().splitlines():
        row = json.loads(line)
        form, _, scheduler, _ = row["key"]
        counts[form, scheduler, row["verdict"]] += 1
    print("| | scheduler |", " | ".join(VERDICTS), "|")
    print("|---" * (2 + len(VERDICTS)) + "|")
    for form, scheduler in dict.fromkeys((form, scheduler) for form, scheduler, _ in counts):
        row = [str(counts[form, scheduler, one]) for one in VERDICTS]
        print(f"| {form} | {scheduler} |", " | ".join(row), "|")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--audit-every", type=int, default=1)
    parser.add_argument("--gpu", action="store_true", help="run on a GPU instead")
    parser.add_argument("--num", type=int, default=-1, help="most runs of this call")
    options = parser.parse_args()
    if options.table:
        _table(options.out)
        return
    options.out.touch()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with (
        mock.patch.object(audit, "DEFAULT_EVERY", options.audit_every),
        mock.patch.multiple(account, **AMPLE),
    ):
        _run_rest(options.out, options.num, [("gpu", 0)] if options.gpu else SCHEDULES)


if __name__ == "__main__":
    main()
