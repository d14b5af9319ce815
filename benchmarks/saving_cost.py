"""What it costs to save while training: the same run with and without saves, in turns.

    PYTHONPATH=src python3 -m benchmarks.saving_cost --data train.tsv.gz --rounds 5 --json saving.jsonl

Each turn is `gapless train` in a process of its own: a Transformer base, batches of 8,192 tokens, captured.
Target tokens a second and host waits are those of its training steps, from `summary.json`; saves are those
whose folders were seen, beside the states that were due. Both turns save at their end. The speed of the disk is
that of one checkpoint of the size of the first, written and synced. `--json` adds a line to a file.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from benchmarks.facts import place_and_time
from gapless.checkpoint import CheckpointStore


NEVER = 10**9
BASE = [
    *("--plan", "captured", "--batch-tokens", "8192", "--precision", "bf16"),
    *("--epochs", "1000", "--val-interval", "1000", "--average", "1", "--beam", "1"),
]
TINY = [
    *(
        "--plan",
        "captured",
        "--batch-size",
        "16",
        "--d-model",
        "16",
        "--heads",
        "2",
        "--ffn",
        "32",
    ),
    *("--encoder-layers", "1", "--decoder-layers", "1", "--val-interval", "1000", "--beam", "1"),
    *("--epochs", "1000", "--tokenizer", "none", "--average", "1"),
]


class SavesSeen:
    """Sees the states that a run saves, and keeps none.

    Args:
        run: its folder.
    """

    def __init__(self, run):
        self._run, self._steps, self._is_over = run, set(), threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self):
        while not self._is_over.wait(0.05):
            self._note()

    def _note(self):
        self._steps |= {path.name for path in self._run.glob("checkpoints/step-*")}

    def __enter__(self):
        self._thread.start()
        return self._steps

    def __exit__(self, *error):
        self._is_over.set()
        self._thread.join()
        self._note()


def turn(folder, options, *, save_every):
    """Train once; return target tokens a second, host waits and saves."""
    run = folder / "run"
    command = [
        *(
            sys.executable,
            "-m",
            "gapless",
            "train",
            "--data",
            str(options.data),
            "--columns",
            "en,zh",
        ),
        *("--run-dir", str(run), "--max-steps", str(options.updates), "--device", options.device),
        *("--save-every", str(save_every), *(TINY if options.tiny else BASE), *options.rest),
    ]
    with SavesSeen(run) as saves:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    size = max(
        sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        for path in run.glob("checkpoints/step-*")
    )
    waits = {reason: one["count"] for reason, one in summary["host_waits"].items()}
    shutil.rmtree(run)
    return {
        "tokens_per_second": summary["tokens_per_second"],
        "host_waits": waits,
        "num_saves": len(saves),
        "bytes": size,
    }


def disk_speed(folder, num_bytes):
    """Return bytes a second of one checkpoint, written, hashed and synced."""
    store = CheckpointStore(folder / "speed")
    tensors = {"x": torch.zeros(num_bytes, dtype=torch.uint8)}
    start = perf_counter()
    store.save(1, tensors, {})
    return num_bytes / (perf_counter() - start)


def main():
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--save-every", type=int, default=500, help="updates")
    parser.add_argument("--tiny", action="store_true", help="on a CPU: does it all run?")
    parser.add_argument("--json", type=Path, help="add a line to this file")
    parser.add_argument("rest", nargs="*", help="more options of gapless train, behind --")
    options = parser.parse_args()
    facts = place_and_time(options.device, module="benchmarks.saving_cost")
    turns = {"without": [], "with": []}
    with tempfile.TemporaryDirectory(prefix="saving-cost-") as name:
        folder = Path(name)
        for number in range(options.rounds):
            for kind in sorted(turns, reverse=bool(number % 2)):
                every = options.save_every if kind == "with" else NEVER
                turns[kind].append(turn(folder, options, save_every=every))
                print(f"round {number + 1}, {kind} saves: {turns[kind][-1]}", flush=True)
        num_bytes = turns["with"][0]["bytes"]
        speed = disk_speed(folder, num_bytes)
    ratios = [
        one["tokens_per_second"] / other["tokens_per_second"]
        for one, other in zip(turns["with"], turns["without"], strict=True)
    ]
    print(
        f"with saves every {options.save_every} updates: {median(ratios):.4f} of the tokens a second "
        f"without ({min(ratios):.4f} to {max(ratios):.4f}); {num_bytes / 1e6:.0f} MB a save, and the "
        f"disk takes {speed / 1e6:.0f} MB/s"
    )
    if options.json:
        entry = {**facts, "turns": turns, "ratios": ratios, "disk_bytes_per_second": speed}
        with options.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
