"""The origin's claims beside figures that confirm and refute them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.origin_claims import CLAIMS, check_claims, claims_text, main

from benchmarks import origin_claims
from gapless.plans import PLANS
from gapless.records.comparison import ComparisonReport, PlanRow, Recommendation, Spread
from gapless.report.comparison_json import comparison_json


ROOT = Path(__file__).parents[2]


def make(plan, ms=100.0, *, waits=None, **changed):
    counts = {"batch": 1.0, "loss_read": 1.0} if waits is None else waits
    row = PlanRow(
        plan=plan,
        identical=True,
        ms_per_step=Spread.of([ms]),
        steps_per_epoch=50.0,
        throughput=1.0,
        waits_per_step=sum(counts.values()),
        waited_ms_per_step=25.0,
        waits_by_reason={
            name: {"count": count, "ms": 0.3 * count} for name, count in counts.items()
        },
        data_wait_ms_per_step=0.0,
        launch_ms_per_step=1.0,
        host_cpu_percent=65.0,
        gap_share=0.3,
        nvml_percent=75.0,
        overlap_share=0.0,
        peak_memory_bytes=1000,
    )
    return replace(row, **changed)


def origins_dream():
    """Return rows in which everything is as the origin said it would be."""
    tenth = {"interval": 0.1, "epoch_end": 0.02}
    return {
        row.plan: row
        for row in (
            make("blocking"),
            make("deferred-loss", 97.0, waits={"batch": 1.0, "loss_read": 0.1}, nvml_percent=81.0),
            make("events", 96.0),
            make("interval", 96.0, waits=tenth),
            make(
                "events-interval",
                95.0,
                waits=tenth,
                waited_ms_per_step=2.5,
                host_cpu_percent=82.0,
            ),
            make(
                "four-stream", 90.0, nvml_percent=92.0, overlap_share=0.2, peak_memory_bytes=2500
            ),
            make("full", 87.0, peak_memory_bytes=2500),
        )
    }


def file_of(rows, *, is_accelerator=True):
    """Return what `gapless compare --json` writes of these rows."""
    report = ComparisonReport(
        workload="w.py:make",
        device="cuda:0",
        hardware="NVIDIA H200",
        is_accelerator=is_accelerator,
        torch="2.11.0",
        commit=None,
        unit="steps",
        settings={},
        rows=tuple(rows.values()),
        recommendation=Recommendation(plan=None, reasons=(), scores={}, weights={}),
    )
    return comparison_json(report)


def results(rows, **options):
    """Return the result of every claim, by plan and text."""
    found = check_claims(json.loads(file_of(rows, **options)))
    return {(result.claim.plan, result.claim.text): result for result in found}


def find(found, plan, text):
    (result,) = (one for (name, said), one in found.items() if name == plan and text in said)
    return result


# The one claim that contradicts the others: with streams that gain 10 %, this pays less.
PAYS_BEST = "it pays best"


def test_a_world_as_the_origin_saw_it_confirms_every_claim_but_one():
    """Figures in all claimed ranges confirm all claims but the one that contradicts another."""
    found = results(origins_dream())

    refuted = [text for (_, text), result in found.items() if result.verdict != "confirmed"]
    assert refuted == [claim.text for claim in CLAIMS if PAYS_BEST in claim.text]
    assert all(result.claim.sources and result.measured for result in found.values())


def test_a_world_where_nothing_changes_confirms_only_claims_of_no_change():
    """If every plan does as blocking does, memory and losses are all that is as claimed."""
    rows = {
        name: make(
            name,
            waits={"loss_read": 20.0, "batch": 1.0},
            waits_by_reason={"loss_read": {"count": 1.0, "ms": 0.7}},
            waited_ms_per_step=1.0,
            nvml_percent=50.0,
            host_cpu_percent=10.0,
        )
        for name in origins_dream()
    }

    held = {text for (_, text), result in results(rows).items() if result.verdict == "confirmed"}

    assert held == {"memory does not change", "the losses stay what they were"}


@pytest.mark.parametrize(
    ("change", "plan", "text", "measured"),
    [
        ({"identical": False}, "four-stream", "losses stay", "different"),
        ({"ms": 98.0}, "events", "3 to 5 %", "100.00 -> 98.00 ms a step (-2.0%)"),
        ({"ms": 110.0}, "four-stream", "10 to 15 %", "(+10.0%)"),
        ({"waited_ms_per_step": 10.0}, "events-interval", "90 % less", "25.00 -> 10.00 ms a step"),
        ({"nvml_percent": 89.0}, "four-stream", "90 to 95 %", "NVML 89 %, kernels 70 %"),
        ({"host_cpu_percent": 79.0}, "events-interval", "80 to 85 %", "79 % of one core"),
        ({"peak_memory_bytes": 1100}, "full", "2 to 3 times", "1.10 times the peak memory"),
        ({"peak_memory_bytes": 4000}, "full", "2 to 3 times", "4.00 times the peak memory"),
        (
            {"host_cpu_percent": 300.0},
            "events-interval",
            "80 to 85 %",
            "300 % of one core, more than claimed",
        ),
        (
            {"nvml_percent": 99.0},
            "four-stream",
            "90 to 95 %",
            "NVML 99 %, kernels 70 %, more than claimed",
        ),
        ({"nvml_percent": 90.0}, "deferred-loss", "5 to 10 points", "(+15 points), more than"),
        ({"ms": 50.0}, "four-stream", "10 to 15 %", "(-50.0%), more than claimed"),
        ({"overlap_share": 0.0}, "four-stream", "overlap", "0.0% -> 0.0% of kernel time"),
        (
            {"waits": {"interval": 0.2}, "waits_per_step": 0.3},
            "interval",
            "of N host waits",
            "2.00 -> 0.30 a step (-85%)",
        ),
    ],
)
def test_a_figure_outside_the_claim_refutes_it(change, plan, text, measured):
    """A figure of each kind that just misses its range refutes the claim and is named."""
    rows = origins_dream()
    rows[plan] = make(plan, **change)

    result = find(results(rows), plan, text)

    assert result.verdict == "refuted"
    assert measured in result.measured


def test_a_gain_within_the_noise_confirms_nothing():
    """Five percent of the median refute a claim if the rounds overlap."""
    rows = origins_dream()
    rows["blocking"] = replace(rows["blocking"], ms_per_step=Spread.of([90.0, 100.0, 110.0]))
    rows["events"] = replace(rows["events"], ms_per_step=Spread.of([85.0, 95.0, 105.0]))

    result = find(results(rows), "events", "3 to 5 %")

    assert result.verdict == "refuted"
    assert result.measured.endswith("within the spread of the rounds")


@pytest.mark.parametrize(
    ("rounds", "verdict", "measured"),
    [
        ([60.0, 61.0, 62.0], "confirmed", "full with 87.00"),
        ([78.0, 85.0, 92.0], "refuted", "full with 87.00; within the spread of the rounds: full"),
        ([84.0, 90.0, 96.0], "refuted", "within the spread of the rounds: four-stream, full"),
        ([95.0, 95.5, 95.9], "refuted", "full with 87.00"),
    ],
)
def test_a_plan_pays_best_if_it_is_faster_by_more_than_the_noise(rounds, verdict, measured):
    """A tie confirms nothing, on whichever side its medians lie."""
    rows = origins_dream()
    rows["events-interval"] = make("events-interval", ms_per_step=Spread.of(rounds))

    result = find(results(rows), "events-interval", PAYS_BEST)

    assert result.verdict == verdict
    assert result.measured.endswith(measured)


RANGES = [
    (claim, found.groups())
    for claim in CLAIMS
    if (found := re.search(r"(?<!\()\b([\d.]+) to ([\d.]+) ", claim.text))
]


@pytest.mark.parametrize(
    ("claim", "ends"), RANGES, ids=[f"{claim.plan}: {claim.text}" for claim, _ in RANGES]
)
def test_a_range_that_a_claim_names_is_checked_at_both_ends(claim, ends):
    """The numbers of the table are those of the text."""
    factor = 100.0 if "less time" in claim.text else 1.0

    known = [claim.low * factor, claim.high * factor]

    assert known == pytest.approx([float(end) for end in ends])


def test_a_plan_that_was_not_compared_is_named():
    """Nothing is said of what was not measured."""
    rows = origins_dream()
    del rows["full"]

    found = results(rows)

    assert {result.verdict for result in found.values() if result.claim.plan == "full"} == {
        "not measurable here"
    }
    assert find(found, "full", "10 to 15 %").measured == "full not compared"
    assert find(results({}), "events", "3 to 5 %").measured == "events and blocking not compared"


def test_on_a_cpu_only_counts_and_bits_are_checked():
    """Waits are counted on a CPU as on a GPU; times and utilisation say nothing there."""
    found = results(origins_dream(), is_accelerator=False)

    checked = {text for (_, text), result in found.items() if "not" not in result.verdict}
    assert checked == {
        "the losses stay what they were",
        "of N host waits ceil(N/10) are left (-90 %)",
        "of N reads of the loss ceil(N/10) are left (-90 %)",
    }


def test_bits_that_nobody_compared_neither_confirm_nor_refute():
    """A comparison without its bits says nothing of the losses."""
    rows = {name: replace(row, identical=None) for name, row in origins_dream().items()}

    result = find(results(rows), "deferred-loss", "losses stay")

    assert (result.verdict, result.measured) == ("not measurable here", "bits not compared")


def test_processor_time_of_short_rounds_decides_nothing():
    """Both claims of host CPU utilisation are left open if the rounds are too short for it."""
    rows = {name: replace(row, host_cpu_percent=None) for name, row in origins_dream().items()}

    found = [result for (_, text), result in results(rows).items() if "CPU" in text]

    assert [result.verdict for result in found] == ["not measurable here"] * 2


def test_without_the_driver_the_trace_tells_utilisation():
    """A trace of kernels stands in for NVML; without either nothing is said."""
    rows = origins_dream()
    rows["four-stream"] = make("four-stream", nvml_percent=None, gap_share=0.05)
    result = find(results(rows), "four-stream", "90 to 95 %")
    assert (result.verdict, result.measured) == ("confirmed", "busy 95 %")

    rows["four-stream"] = make("four-stream", nvml_percent=None, gap_share=None)
    result = find(results(rows), "four-stream", "90 to 95 %")
    assert result.verdict == "not measurable here"


def test_every_claim_is_about_a_plan_that_exists_and_names_its_documents():
    """A renamed plan would otherwise be "not compared" for ever."""
    assert {claim.plan for claim in CLAIMS} <= set(PLANS)
    assert {source for claim in CLAIMS for source in claim.sources.split(", ")} == {
        *("000", "001", "002", "003", "004")
    }


def test_claims_stand_under_their_verdict_and_what_is_missing_is_counted():
    """A plan that was not compared takes one line, not one for each claim about it."""
    rows = origins_dream()
    del rows["deferred-loss"]
    rows["blocking"] = replace(rows["blocking"], waited_ms_per_step=1.0)

    text = claims_text(check_claims(json.loads(file_of(rows))))

    confirmed, refuted = text.index("\nconfirmed: "), text.index("\nrefuted: ")
    assert confirmed < text.index("blocking: device utilisation is 70 to 80 % (001, 002)\n")
    assert text.index("    NVML 75 %, kernels 70 %\n") < refuted
    assert refuted < text.index("the host waits 20 to 30 ms a batch")
    assert text.endswith("\nnot measurable here: 5\n  5: deferred-loss not compared")


def test_the_program_prints_the_claims_of_a_file_without_torch(tmp_path):
    """The program needs the file alone: it runs where neither torch nor gapless is installed."""
    (tmp_path / "out.json").write_text(file_of(origins_dream()))

    done = subprocess.run(
        [sys.executable, "-S", "-m", "benchmarks.origin_claims", str(tmp_path / "out.json")],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={},
    )

    assert done.stdout.startswith("The origin's claims, and what was measured")
    assert "\nconfirmed: 28\n" in done.stdout
    assert "gapless" not in vars(origin_claims)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": [1], "is_accelerator": true}'])
def test_a_file_that_is_no_comparison_is_refused(tmp_path, capsys, text):
    """The file and what is expected are named in one line, and the exit code is 2."""
    file = tmp_path / "out.json"
    if text:
        file.write_text(text)

    code = main([str(file)])

    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert str(file) in err
    assert "gapless compare --json" in err
