"""A million pairs in three commands: what is compared at a joint, and parts that are killed and resumed."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest
from benchmarks.million import growth, joint, main, speed
from benchmarks.training_command import processes_of


TINY = (
    "--precision fp32 --vocab-size 330 --d-model 16 --heads 2 --ffn 32 --encoder-layers 1 "
    "--decoder-layers 1 --batch-tokens 512 --workers 0 --loss-interval 1 --save-every 3"
)


def test_each_update_of_a_joint_is_compared():
    """Those that were saved have to be there as they were; those trained twice need the same bits."""
    before = {n: (4.0 - n / 10, 100) for n in range(6)}
    saved = {n: before[n] for n in range(3)}
    other = before | {1: (0.0, 100), 4: (before[4][0] + 1e-15, 100), 6: (3.0, 100)}

    assert joint(before, saved, before | {6: (3.0, 100)}) == {
        "updates_saved": 3,
        "saved_losses_that_differ": 0,
        "updates_trained_twice": 3,
        "their_losses_that_differ": 0,
    }
    found = joint(before, saved, other)
    assert (found["saved_losses_that_differ"], found["their_losses_that_differ"]) == (1, 1)


def test_speed_and_memory_are_those_of_the_samples():
    """Tokens between the first sample and the last; a slope is that of the second half."""
    sizes = [100, 500, 600, 601, 602, 603]
    samples = [{"s": 30.0 * n, "update": 2 * n, "resident": size} for n, size in enumerate(sizes)]

    losses = dict.fromkeys(range(50), (1.0, 75))

    assert speed(samples, losses) == {"target_tokens_per_s": 5, "updates_per_s": 0.07}
    assert growth(samples, "resident") == {
        "first_half_mib": 400,
        "second_half_mib": 602,
        "highest_mib": 603,
        "slope_mib_a_minute": 2.0,
    }


def test_processes_of_other_sessions_are_found():
    """As ranks under torchrun are: below a child, in a session of their own."""
    wait = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'input()'], "
    wait += "stdin=sys.stdin, start_new_session=True); print(child.pid, flush=True); child.wait()"
    with subprocess.Popen(
        [sys.executable, "-c", wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())

        found = processes_of(parent.pid)

        parent.communicate("\n")
    assert found == [parent.pid, child]


@pytest.mark.slow  # Three commands.
def test_a_run_is_killed_twice_and_goes_on(tmp_path):
    """Two ranks: each part resumes what the one before had saved, with its losses; the last ends in order."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=4)) for _ in range(60)]
    rows = ["\t".join(" ".join(draw.choices(words, k=6)) for _ in range(2)) for _ in range(300)]
    table, folder = tmp_path / "pairs.tsv", tmp_path / "folder"
    table.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    given = [str(folder), str(table), "--no-header", "--tgt", "de", "--device", "cpu"]
    given += ["--pairs", "9000", "--gpus", "2", "--seconds", "3", "--every", "0.7"]

    codes = [main([*given, "--options", TINY, "--part", part]) for part in "123"]

    assert codes == [0, 0, 0]
    first, second, third = (
        json.loads((folder / f"gpus-2-part-{part}.json").read_text()) for part in "123"
    )
    assert (first["ended"], second["ended"]) == ("SIGKILL", "SIGKILL")
    assert third["ended"].startswith("SIGTERM")
    assert first["joint"] is None
    for before, after in ((first, second), (second, third)):
        assert after["joint"]["updates_saved"] >= before["updates_saved"] > 0
        assert after["updates"] > after["joint"]["updates_saved"]
        assert after["joint"]["saved_losses_that_differ"] == 0
        assert after["joint"]["their_losses_that_differ"] == 0
        assert after["samples"][-1]["processes"] >= 3
        assert after["memory"]["anonymous"]["highest_mib"] > 0
    assert third["updates_saved"] == third["updates"]
