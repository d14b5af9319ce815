"""The origin's claims beside figures that confirm and refute them."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.origin_claims import CLAIMS, DOCUMENTS, check_claims, claims_text, counts, main
from benchmarks.origin_words import REASONS, VERDICTS

from benchmarks import origin_claims, origin_figures as figures
from gapless.plans import PLANS
from gapless.records.comparison import Spread
from origin_rows import comparison_of, make, origins_dream


ROOT = Path(__file__).parents[2]


def results(rows, **options):
    return check_claims(comparison_of(rows, **options))


def find(found, document, plan, text):
    """Return the one result of a document and plan whose text holds this one."""
    (result,) = (
        one
        for one in found
        if (one.claim.document, one.claim.plan) == (document, plan) and text in one.claim.text
    )
    return result


def test_a_world_as_the_origin_saw_it_refutes_only_what_contradicts_the_rest():
    """Figures in all claimed ranges confirm all claims but those that other claims exclude."""
    refuted = {
        (one.claim.document, one.claim.text)
        for one in results(origins_dream())
        if one.verdict == "refuted"
    }

    assert refuted == {
        # Four streams gain 10 to 15 % by 001 and 002.
        ("003", "an epoch takes 3 to 5 % less time than in stage 1"),
        ("003", "an epoch takes 6 to 10 % less time, both stages together"),
        ("001", "it pays best of the origin's plans"),
        ("002", "it pays best of the origin's plans"),
        # Events gain 3 to 5 % by the same document.
        ("002", "on its own it gains little (less than 3 %)"),
        # The rows are those of a faster GPU.
        ("004", "an epoch of 1,000 batches takes about 120 s"),
        ("004", "an epoch of 1,000 batches takes 115 to 118 s"),
        # Three to five percent of 97 ms are no 20, nor half of the time without a kernel.
        ("001", "the waits waste 20 to 30 s of 1,000 batches"),
        ("001", "the wait of every batch is why the GPU idles"),
        ("002", "the wait of every batch is why the GPU idles"),
        ("002", "too few streams are why the GPU idles"),
    }


def test_a_world_where_nothing_changes_confirms_only_what_stays():
    """If every plan does as every other, what is confirmed is memory, losses and one small gain."""
    rows = {
        name: make(
            name,
            waits={"loss_read": 20.0, "batch": 2.0},
            waited_ms_per_step=1.0,
            nvml_percent=50.0,
            own_cpu_percent=10.0,
            stream_shares=(1.0,),
        )
        for name in origins_dream()
    }

    held = {one.claim.text for one in results(rows) if one.verdict == "confirmed"}

    assert held == {
        "every loss is read, and right",
        "training gives the same",
        "there is hardly any risk: training gives the same",
        "no memory leaks",
        "hardly any memory is added",
        "on its own it gains little (less than 3 %)",
        # 0.3 ms each, as in the rows.
        "a read of the loss blocks the host 0.1 to 0.5 ms",
        "a bulk read blocks the host 0.1 to 0.5 ms",
    }


MISSES = [
    ({"identical": False}, "003", "four-stream", "training gives", "different bits"),
    ({"grown_memory_bytes": 2**21}, "003", "four-stream", "no memory leaks", "+2.00 MiB"),
    ({"ms": 96.0}, "001", "events", "3 to 5 %", "97.00 -> 96.00 ms/batch (-1.0%)"),
    ({"ms": 110.0}, "001", "four-stream", "10 to 15 %", "(+13.4%), less than claimed"),
    ({"ms": 50.0}, "001", "four-stream", "10 to 15 %", "(-48.5%), more than claimed"),
    (
        {"waited_ms_per_step": 10.0},
        "000",
        "events-interval",
        "90 % less",
        "25.00 -> 10.00 ms/batch",
    ),
    ({"waited_ms_per_step": 1.0}, "000", "events-interval", "2 to 3 ms", "1.00 ms/batch, less"),
    ({"nvml_percent": 89.0}, "002", "four-stream", "90 to 95 %", "NVML 89 %, kernels 70 %, less"),
    ({"nvml_percent": 96.0}, "003", "four-stream", "85 to 95 %", "NVML 96 %, kernels 70 %, more"),
    ({"nvml_percent": 99.0}, "003", "four-stream", "10 to 15 points", "(+19), more than claimed"),
    ({"nvml_percent": 90.0}, "004", "deferred-loss", "5 to 10 points", "(+20), more than claimed"),
    (
        {"own_cpu_percent": 79.0},
        "000",
        "events-interval",
        "80 to 85 %",
        "79 % of one core, 5 % of",
    ),
    (
        {"own_cpu_percent": 88.0},
        "002",
        "events-interval",
        "20 to 25 points",
        "62 -> 88 % of one core",
    ),
    ({"peak_memory_bytes": 1100}, "002", "full", "2 to 3 times", "(1.10x), less than claimed"),
    ({"peak_memory_bytes": 1100}, "002", "interval", "hardly any memory", "(1.10x), more"),
    ({"overlap_share": 0.0}, "003", "four-stream", "overlap in part", "0.0% -> 0.0%"),
    ({"stream_shares": (0.85, 0.15)}, "003", "four-stream", "streams of their own", "85% + 15%"),
    (
        {"waits": {"interval": 0.3}},
        "002",
        "interval",
        "of N host waits",
        "1.00 -> 0.30 /batch (-70%)",
    ),
    ({"waits": {"batch": 2.0}}, "000", "deferred-loss", "once every batch", "2.00 /batch, more"),
    (
        {"waits": {"loss_read": 0.4}},
        *("004", "deferred-loss", "of N reads of the loss", "1.00 -> 0.40 /batch (-60%)"),
    ),
    (
        {"waits": {"loss_read": 0.2}},
        *("004", "deferred-loss", "10 to 50 ms", "60.0 ms/1000 batch, more than claimed"),
    ),
    (
        {"waits": {"loss_read": 0.2}},
        *("004", "deferred-loss", "90 % less time", "300.0 -> 60.0 ms/1000 batch (-80%)"),
    ),
    ({"ms": 94.0}, "004", "deferred-loss", "2 to 5 %", "100.00 -> 94.00 ms/batch (-6.0%)"),
    ({"ms": 95.0}, "004", "deferred-loss", "2 to 4 %", "100.00 -> 95.00 ms/batch (-5.0%)"),
]


@pytest.mark.parametrize(
    ("change", "document", "plan", "text", "measured"),
    MISSES,
    ids=[f"{miss[1]} {miss[2]} {miss[3]}" for miss in MISSES],
)
def test_a_figure_outside_the_claim_refutes_it(change, document, plan, text, measured):
    """A figure of each kind that just misses its range refutes the claim and is named."""
    rows = origins_dream()
    ms = change.pop("ms", rows[plan].ms_per_step.median) if "ms" in change else None
    waits = change.get("waits")
    changed = {name: value for name, value in change.items() if name != "waits"}
    rows[plan] = (
        make(plan, ms or rows[plan].ms_per_step.median, waits=waits, **changed)
        if waits or ms
        else replace(rows[plan], **changed)
    )

    result = find(results(rows), document, plan, text)

    assert result.verdict == "refuted"
    assert measured in result.measured()


def test_a_cause_is_confirmed_if_half_of_the_idle_time_goes_with_it():
    """The GPU idles 27 ms a batch before; 13 are less than half of it, 14 are not."""
    rows = origins_dream()
    for ms, verdict in ((83.0, "confirmed"), (84.0, "refuted")):
        rows["events-interval"] = make("events-interval", ms)

        found = find(results(rows), "001", "events-interval", "why the GPU idles")

        assert found.verdict == verdict


def test_a_gain_within_the_noise_confirms_nothing():
    """Four percent of the median refute a claim if the rounds overlap."""
    rows = origins_dream()
    rows["deferred-loss"] = make("deferred-loss", ms_per_step=Spread.of([87.0, 97.0, 107.0]))
    rows["events"] = make("events", ms_per_step=Spread.of([83.0, 93.0, 103.0]))

    result = find(results(rows), "001", "events", "3 to 5 %")

    assert result.verdict == "refuted"
    assert result.measured().endswith("within the spread of the rounds")
    assert find(results(rows), "002", "events", "gains little").verdict == "confirmed"


@pytest.mark.parametrize(
    ("rounds", "verdict", "measured"),
    [
        ([60.0, 61.0, 62.0], "confirmed", "full 84.00"),
        ([78.0, 82.0, 86.0], "refuted", "within the spread of the rounds: full"),
        ([90.0, 90.1, 90.2], "refuted", "full 84.00"),
    ],
)
def test_a_plan_pays_best_if_it_is_faster_by_more_than_the_noise(rounds, verdict, measured):
    """A tie confirms nothing, on whichever side its medians lie."""
    rows = origins_dream()
    rows["events-interval"] = make("events-interval", ms_per_step=Spread.of(rounds))

    result = find(results(rows), "001", "events-interval", "it pays best")

    assert (result.verdict, result.measured().endswith(measured)) == (verdict, True)


RANGES = [
    (claim, found.groups())
    for claim in CLAIMS
    if claim.figure is not figures.tuning
    and (found := re.search(r"(?<!\()\b([\d.]+) to ([\d.]+) ", claim.text))
]


@pytest.mark.parametrize(
    ("claim", "ends"),
    RANGES,
    ids=[f"{claim.document} {claim.plan}: {claim.text}" for claim, _ in RANGES],
)
def test_a_range_that_a_claim_names_is_checked_at_both_ends(claim, ends):
    """The numbers of the table are those of the text, and those of the quote."""
    factor = 100.0 if "less time" in claim.text else 1.0

    known = [claim.low * factor, claim.high * factor]

    assert known == pytest.approx([float(end) for end in ends])
    assert all(end in claim.quote for end in ends)


def test_every_claim_says_where_it_stands_and_is_about_a_plan_that_exists():
    """Each document has claims; each has lines, words in Chinese, and plans that there are."""
    assert {claim.document for claim in CLAIMS} == {document.number for document in DOCUMENTS}
    assert {plan for claim in CLAIMS for plan in (claim.plan, claim.than)} <= set(PLANS)
    for claim in CLAIMS:
        assert re.fullmatch(r"\d+(-\d+)?(, \d+)*", claim.lines)
        assert re.search(r"[\u4e00-\u9fff]", claim.quote + claim.heading)
        assert "|" not in claim.quote + claim.text


def test_claims_are_not_said_twice_of_one_document():
    """What a document repeats stands once, with all its lines."""
    said = [
        (claim.document, claim.plan, claim.text)
        for claim in CLAIMS
        if not claim.text.startswith("it is what") and "GPU idles" not in claim.text
    ]

    assert len(said) == len(set(said))


def test_a_plan_that_was_not_compared_is_named():
    """Nothing is said of what was not measured."""
    rows = origins_dream()
    del rows["full"]

    found = results(rows)

    about = [one for one in found if one.claim.plan == "full"]
    assert {one.verdict for one in about} == {"not measurable here"}
    assert {one.reason() for one in about} == {"The plan was not compared."}
    assert {one.verdict for one in results({})} == {"not measurable here"}


def test_on_a_cpu_only_counts_and_bits_are_checked():
    """Waits are counted on a CPU as on a GPU; times and utilisation say nothing there."""
    found = results(origins_dream(), is_accelerator=False)

    checked = {one.claim.figure.__name__ for one in found if "not" not in one.verdict}
    assert checked == {
        *("same_losses", "tenth_of_waits", "tenth_of_reads"),
        *("waits_of_batches", "reads_of_losses"),
    }


@pytest.mark.parametrize(
    ("missing", "document", "plan", "text"),
    [
        ({"identical": None}, "004", "deferred-loss", "training gives"),
        ({"own_cpu_percent": None, "host_cpu_percent": None}, "000", "deferred-loss", "CPU"),
        ({"nvml_percent": None, "gap_share": None}, "001", "deferred-loss", "GPU utilisation"),
        ({"grown_memory_bytes": None}, "000", "events-interval", "leaks"),
        ({"peak_memory_bytes": None}, "002", "interval", "hardly any memory"),
        ({"stream_shares": None}, "003", "four-stream", "streams of their own"),
        ({"overlap_share": None}, "003", "four-stream", "overlap in part"),
        ({"busy_ms_per_step": None}, "001", "events-interval", "why the GPU idles"),
    ],
)
def test_what_was_not_measured_is_neither_confirmed_nor_refuted(missing, document, plan, text):
    """A figure that is not there decides nothing, and a sentence says so."""
    rows = origins_dream()
    rows[plan] = replace(rows[plan], **missing)

    result = find(results(rows), document, plan, text)

    assert result.verdict == "not measurable here"
    assert result.reason()


def test_without_the_driver_the_trace_tells_utilisation():
    """A trace of kernels stands in for NVML."""
    rows = origins_dream()
    rows["four-stream"] = make("four-stream", nvml_percent=None, gap_share=0.05)

    result = find(results(rows), "002", "four-stream", "90 to 95 %")

    assert (result.verdict, result.measured()) == ("confirmed", "kernels 95 %")


def test_the_reason_names_what_bounds_the_step():
    """Launches bound a step whose launches take longer than its kernels."""
    rows = origins_dream()
    device = find(results(rows), "001", "events", "3 to 5 %").reason()
    rows["deferred-loss"] = replace(rows["deferred-loss"], launch_ms_per_step=96.0)
    launch = find(results(rows), "001", "events", "3 to 5 %").reason()

    assert device.startswith("Kernels bound the step")
    assert launch.startswith("Launches bound the step")


def test_the_reason_says_why_a_plan_is_slower_and_waits_are_longer():
    """Fewer waits are longer where the device is slow; streams cost launches of their own."""
    rows = origins_dream()
    rows["four-stream"] = make("four-stream", 120.0, launch_ms_per_step=9.0)

    longer = find(results(rows), "000", "events-interval", "waits 90 % less").reason()
    slower = find(results(rows), "001", "four-stream", "10 to 15 %").reason()

    assert longer.endswith("fewer waits are longer ones.")
    assert slower.startswith("Its streams, events and transfers cost the host more")


def test_both_languages_say_everything():
    """Each reason, verdict and figure has its words in Chinese, and no English sentence is left."""
    assert REASONS["en"].keys() == REASONS["zh"].keys()
    assert VERDICTS["en"].keys() == VERDICTS["zh"].keys()
    rows = origins_dream()
    rows["four-stream"] = replace(rows["four-stream"], identical=False)
    rows["events"] = make("events", ms_per_step=Spread.of([90.0, 97.0, 99.0]))
    known = {
        "ms",
        "event",
        "batch",
        "NVML",
        "kernels",
        "kernel",
        "MiB",
        "CPU",
        "stream",
        "autograd",
    }
    known |= {"loss", "token", "x", "s", "PyTorch", "GPU"}
    for result in results(rows):
        words = set(re.findall(r"[A-Za-z]+", f"{result.measured('zh')} {result.reason('zh')}"))

        assert words - known - {part for plan in PLANS for part in plan.split("-")} == set()


def test_claims_stand_under_their_document_with_figures_and_reasons():
    """The text has a heading for each document, and ends with how many have which verdict."""
    found = results(origins_dream())

    text = claims_text(found)

    places = [text.index(f"\n{document.number} {document.title}\n") for document in DOCUMENTS]
    assert places == sorted(places)
    assert (
        "  confirmed: deferred-loss: GPU utilisation is 70 to 80 %\n    NVML 76 %, kernels" in text
    )
    assert text.splitlines()[-1] == ", ".join(f"{n} {name}" for name, n in counts(found).items())
    assert sum(counts(found).values()) == len(CLAIMS)


def test_the_program_prints_the_claims_of_a_file_without_torch(tmp_path):
    """The program needs the file alone: it runs where neither torch nor gapless is installed."""
    (tmp_path / "out.json").write_text(json.dumps(comparison_of(origins_dream())))

    done = subprocess.run(
        [sys.executable, "-S", "-m", "benchmarks.origin_claims", str(tmp_path / "out.json")],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONIOENCODING": "utf-8"},
    )

    assert done.stdout.startswith("The origin's claims, and what was measured")
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


def test_open_ends_are_infinite():
    """A claim that names one end alone has no other."""
    ends = [claim.high for claim in CLAIMS if "90 % less" in claim.text]

    assert set(ends) == {math.inf}


def intervals(**ms):
    """Return the times of some intervals, by `every_N`, with a spread of 1 ms both ways."""
    return [
        {"interval": int(name.removeprefix("every_")), "ms": at, "q1": at - 1, "q3": at + 1}
        for name, at in ms.items()
    ]


@pytest.mark.parametrize(
    ("small", "large", "verdict"),
    [
        (
            {"every_1": 30, "every_10": 26, "every_20": 20, "every_30": 21},
            {"every_1": 50, "every_5": 40, "every_10": 41, "every_20": 45},
            "confirmed",
        ),
        (
            {"every_1": 30, "every_10": 22, "every_20": 20, "every_30": 21},
            {"every_1": 50, "every_5": 40, "every_10": 41, "every_20": 45},
            "refuted",
        ),
        ({"every_20": 20, "every_1": 30}, {"every_5": 40, "every_20": 30}, "refuted"),
    ],
)
def test_advised_intervals_have_to_be_clearly_faster(small, large, verdict):
    """Below 20 sentences and above 50; any will do between."""
    tuned = [
        {"sentences": 16, "intervals": intervals(**small)},
        {"sentences": 32, "intervals": intervals(every_1=1, every_30=9)},
        {"sentences": 64, "intervals": intervals(**large)},
    ]
    comparison = {"rows": [], "is_accelerator": True, "tuning": tuned}

    (result,) = [each for each in check_claims(comparison) if each.claim.figure is figures.tuning]

    assert result.verdict == verdict
