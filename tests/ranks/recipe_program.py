"""Run a script of a recipe as one rank, and write what came of it as JSON.

Run as `recipe_program.py NAME KIND DEVICE FOLDER` by a test, once for each rank.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

import recipes


def main(name, kind, device, folder):
    if device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    run = recipes.run_recipe(name, kind, device)
    found = {
        "lines": run.lines,
        "weights": {name: [bits.hex() for bits in parts] for name, parts in run.state().items()},
        "reports": [
            {
                "counts": (report.num_graphs, report.num_replays, report.num_eager),
                "refusals": [refusal.text for refusal in report.refusals],
            }
            for report in run.reports()
        ],
    }
    (Path(folder) / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    # Not by a return: to free the names of a script one by one can hang in torch, where a Gloo group
    # was destroyed before the model under DDP that uses it. Nothing of gapless is needed for that.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
