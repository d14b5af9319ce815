"""Every part of the core once, without anything that only an extra brings; prints what came out.

Run as a script, in an environment where torch and gapless are all there is:

    python core_loops.py FOLDER [BLOCKED ...]

FOLDER takes what commands write. Packages named after it cannot be imported.
"""

from __future__ import annotations

import io
import json
import sys
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path


WORKLOAD = """
import torch
import gapless


def make(device):
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))

    def step(batch):
        inputs, targets = batch
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    loader = torch.utils.data.DataLoader(data, batch_size=8)
    return gapless.Workload(model=model, optimizer=optimizer, batches=loader, step=step)
"""


LOOP = """\
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
print("trained")
"""


def own_loop():
    """Return the mean loss of a loop of the user's own, captured and prefetched."""
    import torch

    import gapless

    workload = _workload(torch.device("cpu"))
    losses = gapless.DeferredLoss("cpu")
    step = gapless.capture(workload.step, device="cpu")
    for batch in gapless.prefetch(workload.batches, "cpu"):
        losses.add(step(batch), weight=len(batch[0]))
    return losses.mean()


def every_plan():
    """Return the mean loss of an epoch under each plan, all from one seed."""
    import torch

    import gapless

    means = {}
    for plan in gapless.PLANS:
        workload = _workload(torch.device("cpu"))
        with gapless.TrainLoop(plan=plan, device="cpu") as loop:
            means[plan] = loop.run_epoch(workload.batches, workload.step).mean_loss
    return means


def commands(folder):
    """Return exit code, output and errors of commands."""
    from gapless.cli.main import run_command

    (folder / "work.py").write_text(WORKLOAD)
    (folder / "loop.py").write_text(LOOP)
    work = ["--workload", str(folder / "work.py:make"), "--device", "cpu"]
    few = ["--steps", "4", "--rounds", "1", "--warmup-rounds", "1", "--verify-steps", "4"]
    report = ["--json", str(folder / "report.json"), "--html", str(folder / "page.html")]
    asked = {
        "version": ["--version"],
        "help": ["--help"],
        "train --help": ["train", "--help"],
        "plans": ["plans"],
        "completion": ["completion", "bash"],
        "verify": ["verify", "--steps", "4", *work],
        "compare": ["compare", "--plans", "blocking,auto", *few, *report, *work],
        "train": ["train"],
        "translate": ["translate", "run", "text"],
        "evaluate": ["evaluate", "run"],
        "verify without workload": ["verify"],
        "compare without workload": ["compare"],
        "doctor --static": ["doctor", "--static", str(folder / "loop.py")],
        # The last: from then on the process is the script's.
        "doctor": ["doctor", "--out", str(folder / "doctor.txt"), str(folder / "loop.py")],
    }
    found = {}
    for name, arguments in asked.items():
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = _attempt(run_command, arguments)
        found[name] = {"code": code, "out": out.getvalue(), "err": err.getvalue()}
    return found


def _attempt(part, *arguments):
    """Return what a part returns, or its traceback: one that fails must not hide the others."""
    try:
        return part(*arguments)
    except Exception:
        return traceback.format_exc()


def _workload(device):
    import torch

    torch.manual_seed(1)
    names = {}
    exec(compile(WORKLOAD, "work.py", "exec"), names)
    return names["make"](device)


def main(folder, blocked):
    """Print one JSON object: what every part returned."""
    sys.modules |= dict.fromkeys(blocked)
    warnings.simplefilter("error")
    # Torch warns once if there is no numpy, which it does without.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    found = {
        "own_loop": _attempt(own_loop),
        "every_plan": _attempt(every_plan),
        "commands": commands(folder),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
