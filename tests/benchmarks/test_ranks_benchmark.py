"""One GPU beside several: figures, the file of calls and its page, and ranks that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.peers.race import RowResult
from benchmarks.ranks.figures import summarize
from benchmarks.ranks.page import to_markdown
from benchmarks.ranks.rows import SILENT, all_rows


ROOT = Path(__file__).parents[2]


def result(name, seconds, *, tokens=1000, profile=None, **facts):
    """A row that took so many seconds in each round of ten steps."""
    row = next(row for row in all_rows() if row.name == name)
    rounds = [
        {"steps": 10, "seconds": one, "target_tokens": tokens, "loss": 7.0, "peak_memory_bytes": 0}
        for one in seconds
    ]
    return RowResult(row=row, rounds=[one | facts for one in rounds], profile=profile or {})


def figures_of(*results):
    return {row["name"]: row for row in summarize(results, world=2)}


# --- figures ---


def test_a_row_is_compared_with_one_gpu_of_its_own_kind():
    """DDP with the plain loop; without that row there is no figure."""
    both = figures_of(
        result("plain", [1.0]), result("captured", [0.5]), result("ddp", [2.0], tokens=2000)
    )
    one = figures_of(result("captured", [0.5]), result("ddp", [2.0], tokens=2000))

    assert both["ddp"]["efficiency"]["median"] == 0.5
    assert "efficiency" not in one["ddp"]


def test_exposed_time_is_what_a_step_takes_longer_than_without_sums():
    """In milliseconds a step, round by round; only rows with the same batches have it."""
    found = figures_of(
        result("plain", [1.0, 1.0]),
        result("ddp", [1.0, 1.0]),
        result("flat", [0.30, 0.72]),
        result(SILENT, [0.20, 0.60]),
    )

    assert found["flat"]["exposed_ms"] == pytest.approx({"median": 11.0, "min": 10.0, "max": 12.0})
    assert "exposed_ms" not in found["ddp"]
    assert "exposed_ms" not in found[SILENT]


# --- the command ---


def call_of(*results, case="base32", commit="abc", **more):
    facts = dict.fromkeys(
        ("model", "hardware", "versions", "date", "command", "batches", "measured"), "x"
    )
    facts |= {"case": case, "commit": commit, "is_tiny": False, "gpus": 2, "environment": []}
    return {**facts, "shortened": None, "rows": summarize(results, world=2), **more}


def test_the_page_has_the_newest_call_of_each_case_and_choice_of_rows():
    """Older calls stay in the file; a row that failed stays in the table with its reason."""
    failed = result("flat", [])
    failed.problem = "did not finish its set-up in 240 s"
    calls = [
        call_of(result("captured", [1.0]), commit="old"),
        call_of(result("captured", [0.5]), commit="new"),
        call_of(failed, commit="other-rows"),
        call_of(result("captured", [0.5]), case="big25k", commit="other-case"),
    ]

    text = to_markdown(calls)

    assert [name in text for name in ("commit old", "commit new", "commit other-")] == [
        False,
        True,
        True,
    ]
    assert text.count("## ") == 3
    assert "| did not finish its set-up in 240 s |" in text
    assert "captured steps: 0.9 ms." in text
    assert "captured steps: 2.4 ms." in text


def run_command(file, *options):
    """Run the command in a process of its own; return the last call in its file."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.ranks", "--json", file, "--tiny", *options]
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(file.read_text(encoding="utf-8"))[-1]


@pytest.mark.multi_gpu
def test_on_gpus_all_steps_are_captured_and_sums_are_seen(tmp_path):
    """The profile has as many sums of NCCL in each step; traces are kept."""
    file = tmp_path / "calls.json"
    names = ["captured", "flat", SILENT]

    call = run_command(
        file, "--only", ",".join(names), "--rounds", 2, "--steps", 6, "--traces", "--workers", 1
    )

    rows = {row["name"]: row for row in call["rows"]}
    assert [row["problem"] for row in rows.values()] == [None] * len(names)
    for name in ("captured", SILENT):
        assert rows[name]["profile"]["collectives_per_step"] == 0.0, name
    profile = rows["flat"]["profile"]
    assert profile["collectives_per_step"] >= 1.0
    assert 0.0 <= profile["traced_exposed_ms_per_step"] <= profile["collective_ms_per_step"]
    assert (tmp_path / "calls-logs" / "flat-1.trace.json.gz").stat().st_size > 0


@pytest.mark.slow
def test_the_command_appends_a_call_and_writes_the_page(tmp_path):
    """Ranks are real processes, which take turns; calls of before stay in the file."""
    file = tmp_path / "calls.json"
    file.write_text(json.dumps([call_of(result("captured", [1.0]))]))

    call = run_command(
        file,
        *("--device", "cpu", "--precision", "fp32", "--workers", 0, "--rounds", 2),
        *("--steps", 2, "--warmup", 1, "--only", "captured,flat"),
    )

    before = json.loads(file.read_text(encoding="utf-8"))[0]
    captured, flat = call["rows"]
    assert [row["name"] for row in before["rows"]] == ["captured"]
    assert [row["gpus"] for row in call["rows"]] == [1, 2]
    assert [len(row["rounds"]) for row in call["rows"]] == [2, 2]
    assert 0.0 < flat["efficiency"]["median"] < 2.0
    assert len(flat["rounds"][0]["seconds_of_ranks"]) == 2
    assert flat["rounds"][0]["target_tokens"] > 1.5 * captured["rounds"][0]["target_tokens"]
    assert "## base32: tiny" in file.with_suffix(".md").read_text(encoding="utf-8")
