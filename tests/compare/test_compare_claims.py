"""The origin's claims, beside figures that confirm and refute them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gapless.compare.claims import CLAIMS, check_claims
from gapless.plans import PLANS
from gapless.records.comparison import PlanRow, Spread


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


def verdicts(rows, **options):
    found = check_claims(rows, **{"is_accelerator": True, **options})
    return {(claim.plan, claim.claim): claim for claim in found}


def find(found, plan, text):
    (claim,) = (claim for (name, said), claim in found.items() if name == plan and text in said)
    return claim


# The one claim that contradicts the others: with streams that gain 10 %, this pays less.
PAYS_BEST = "it pays best"


def test_a_world_as_the_origin_saw_it_confirms_every_claim():
    """But the one that another of its claims contradicts."""
    found = verdicts(origins_dream())

    refuted = [claim.claim for claim in found.values() if claim.verdict != "confirmed"]
    assert refuted == [claim.text for claim in CLAIMS if PAYS_BEST in claim.text]
    assert all(claim.sources and claim.measured for claim in found.values())


def test_a_world_where_nothing_changes_refutes_them():
    """Every plan does as blocking does: only claims of no change hold, and those about before."""
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

    held = {text for (_, text), claim in verdicts(rows).items() if claim.verdict == "confirmed"}

    assert held == {
        "memory does not change",
        "the losses stay what they were",
    }


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
            {"waits": {"interval": 0.2}},
            "interval",
            "of N host waits",
            "2.00 -> 0.20 a step (-90%)",
        ),
    ],
)
def test_a_figure_outside_the_claim_refutes_it(change, plan, text, measured):
    """Each kind of claim, just missed, with the figures named."""
    rows = origins_dream()
    rows[plan] = make(plan, **change)
    if "waits" in change:
        rows[plan] = replace(rows[plan], waits_per_step=0.3)
        measured = "2.00 -> 0.30 a step (-85%)"

    claim = find(verdicts(rows), plan, text)

    assert claim.verdict == "refuted"
    assert measured in claim.measured


def test_a_gain_within_the_noise_confirms_nothing():
    """Five percent of the median, with rounds that lie across each other."""
    rows = origins_dream()
    rows["blocking"] = replace(rows["blocking"], ms_per_step=Spread.of([90.0, 100.0, 110.0]))
    rows["events"] = replace(rows["events"], ms_per_step=Spread.of([85.0, 95.0, 105.0]))

    claim = find(verdicts(rows), "events", "3 to 5 %")

    assert claim.verdict == "refuted"
    assert claim.measured.endswith("within the spread of the rounds")


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

    claim = find(verdicts(rows), "events-interval", PAYS_BEST)

    assert claim.verdict == verdict
    assert claim.measured.endswith(measured)


RANGES = [
    (claim, found.groups())
    for claim in CLAIMS
    if (found := re.search(r"(?<!\()\b([\d.]+) to ([\d.]+) ", claim.text))
]


@pytest.mark.parametrize(
    ("claim", "ends"), RANGES, ids=[f"{claim.plan}: {claim.text}" for claim, _ in RANGES]
)
def test_a_range_that_a_claim_names_is_checked_at_both_ends(claim, ends):
    """A check that knows one end of "80 to 85 %" would follow another rule than the others."""
    cells = [cell.cell_contents for cell in claim.check.__closure__]
    known = sorted(value for value in cells if isinstance(value, float))

    factor = 100.0 if "less time" in claim.text else 1.0
    assert [value * factor for value in known] == pytest.approx([float(end) for end in ends])


def test_a_plan_that_was_not_compared_is_told_so():
    """Nothing is said of what was not measured."""
    rows = origins_dream()
    del rows["full"]

    found = verdicts(rows)

    assert {claim.verdict for claim in found.values() if claim.plan == "full"} == {
        "not measurable here"
    }
    assert find(found, "full", "10 to 15 %").measured == "full not compared"
    assert find(verdicts({}), "events", "3 to 5 %").measured == "events and blocking not compared"


def test_on_a_cpu_only_counts_are_checked():
    """Waits are counted there as on a GPU; times and utilisation say nothing."""
    found = verdicts(origins_dream(), is_accelerator=False)

    checked = {text for (_, text), claim in found.items() if "not" not in claim.verdict}
    assert checked == {
        "the losses stay what they were",
        "of N host waits ceil(N/10) are left (-90 %)",
        "of N reads of the loss ceil(N/10) are left (-90 %)",
    }


def test_bits_that_nobody_compared_confirm_nothing():
    """Nor refute."""
    rows = {name: replace(row, identical=None) for name, row in origins_dream().items()}

    claim = find(verdicts(rows), "deferred-loss", "losses stay")

    assert (claim.verdict, claim.measured) == ("not measurable here", "bits not compared")


def test_processor_time_of_short_rounds_decides_nothing():
    """Two claims rest on it."""
    rows = {name: replace(row, host_cpu_percent=None) for name, row in origins_dream().items()}

    found = [claim for claim in verdicts(rows).values() if "CPU" in claim.claim]

    assert [claim.verdict for claim in found] == ["not measurable here"] * 2


def test_without_the_driver_the_trace_tells_utilisation():
    """And without either nothing is claimed."""
    rows = origins_dream()
    rows["four-stream"] = make("four-stream", nvml_percent=None, gap_share=0.05)
    claim = find(verdicts(rows), "four-stream", "90 to 95 %")
    assert (claim.verdict, claim.measured) == ("confirmed", "busy 95 %")

    rows["four-stream"] = make("four-stream", nvml_percent=None, gap_share=None)
    claim = find(verdicts(rows), "four-stream", "90 to 95 %")
    assert claim.verdict == "not measurable here"


def test_every_claim_is_about_a_plan_that_exists_and_names_its_documents():
    """A renamed plan would otherwise be "not compared" for ever."""
    assert {claim.plan for claim in CLAIMS} <= set(PLANS)
    assert {source for claim in CLAIMS for source in claim.sources} == {
        *("000", "001", "002", "003", "004")
    }
