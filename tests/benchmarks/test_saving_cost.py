"""The benchmark of saves: it counts what a run saves, and compares turns."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_both_turns_run_and_all_saves_are_seen(tmp_path):
    """A tiny run on a CPU; both turns save at the ends of epochs and of the run."""
    draw = random.Random(0)
    rows = [
        " ".join(draw.choice("abcdefgh") for _ in range(draw.randint(2, 9))) for _ in range(900)
    ]
    data, out = tmp_path / "d.tsv", tmp_path / "saving.jsonl"
    data.write_text("".join(f"{row}\t{row[::-1]}\n" for row in rows), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.saving_cost", "--data", str(data), "--tiny"]
    command += ["--rounds", "1", "--updates", "60", "--save-every", "20", "--device", "cpu"]

    subprocess.run([*command, "--json", str(out)], check=True, cwd=ROOT)

    (line,) = out.read_text(encoding="utf-8").splitlines()
    found = json.loads(line)
    (saved,), (other,) = found["turns"]["with"], found["turns"]["without"]
    assert saved["num_saves"] == other["num_saves"] + 2  # after updates 20 and 40
    assert saved["host_waits"] == other["host_waits"]
    assert found["disk_bytes_per_second"] > 0
