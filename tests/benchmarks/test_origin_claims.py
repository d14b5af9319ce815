"""The origin's claims beside figures that confirm and refute them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.origin_claims import CLAIMS, DOCUMENTS, check_claims, claims_text, counts
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
