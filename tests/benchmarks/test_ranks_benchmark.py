"""One GPU beside several: figures, the file of calls and its page, and ranks that fail."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks.peers.race import RowResult
from benchmarks.peers.worker import RowError
from benchmarks.ranks import row_group
from benchmarks.ranks.__main__ import main
from benchmarks.ranks.figures import summarize
from benchmarks.ranks.page import to_markdown
from benchmarks.ranks.row_group import RowGroup, communication
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


def test_efficiency_is_taken_round_by_round():
    """Two GPUs that do twice the tokens in 1.25 of the time have 0.8, also when a round is slow."""
    found = figures_of(
        result("captured", [1.0, 4.0, 1.0]), result("flat", [1.25, 5.0, 2.0], tokens=2000)
    )

    assert found["flat"]["efficiency"] == {"median": 0.8, "min": 0.5, "max": 0.8}
    assert "efficiency" not in found["captured"]


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


def test_of_each_collective_the_rank_counts_that_waited_least():
    """A kernel of NCCL lasts until the last rank has come, which is no time of the sum."""
    early_then_late = [(9.0, 8.0), (2.0, 1.0)]
    late_then_early = [(3.0, 2.5), (7.0, 6.0)]

    found = communication([early_then_late, late_then_early], steps=2)

    assert found["collectives_per_step"] == 1.0
    assert found["collective_ms_per_step"] == (3.0 + 2.0) / 2
    assert found["traced_exposed_ms_per_step"] == (2.5 + 1.0) / 2


# --- ranks ---


def started(monkeypatch, tmp_path, *answers):
    """Start a group of ranks, each of which gives the answers in turn; None: it never answers."""
    ranks = iter(answers)

    class Process:
        def __init__(self, make, *, case, device, log):
            self.channel, self._theirs = multiprocessing.Pipe()
            self.log = log
            self.killed = False
            for one in next(ranks):
                self._theirs.send(one)

        def send(self, order):
            pass

        def receive(self, what):
            found = self.channel.recv()
            if isinstance(found, str):
                raise RowError(found)
            return found

        def let_go(self):
            pass

        def kill(self):
            self.killed = True

    monkeypatch.setattr(row_group, "RowProcess", Process)
    row = SimpleNamespace(name="flat")
    return RowGroup(row, case=None, devices=["cpu"] * len(answers), logs=tmp_path)


def test_a_rank_that_fails_ends_all_with_its_own_reason(monkeypatch, tmp_path):
    """Another rank that ended because of it says less."""
    group = started(
        monkeypatch, tmp_path, ["ended during its set-up"], ["failed in its set-up: planted"]
    )

    with pytest.raises(RowError, match="rank 1 failed in its set-up: planted"):
        group.wait_ready(limit_s=60)

    assert all(rank.killed for rank in group._ranks)


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "flat,no-such"], "unknown row 'no-such'; the rows are plain, "),
        (["--only", "flat+acumulate=4"], "unknown setting 'acumulate' of `gapless train`"),
        (["--only", "ddp+accumulate=2"], "row 'ddp' is not one of gapless"),
        (["--ranks", "1"], "--ranks is 1, expected at least 2"),
        (["--data", "no/such", "--case", "base8192"], "no/such"),
    ],
)
def test_a_mistake_is_told_in_one_line(tmp_path, capsys, options, message):
    """Nothing is run; exit code 2."""
    assert main(["--device", "cpu", "--json", str(tmp_path / "x.json"), *options]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


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
