"""Run one program of `benchmarks.recipes`, as written or with its lines: the process of one row.

    python -m benchmarks.recipes.worker NAME --lines --device cuda

A JSON line after each window of updates; then the process waits for "go" or "stop". The last line says what the
weights are, and what was captured.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import torch

from benchmarks.recipes.clock import Stopped, clock
from benchmarks.recipes.sources import source_of
from gapless.graphs.in_place.captor import captor_of


def digest(names):
    """Return the sum of all weights, buffers and states of optimizers, in the order of their names."""
    sums = hashlib.sha256()

    def add(value):
        if isinstance(value, torch.Tensor):
            sums.update(
                value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            )
        elif isinstance(value, dict):
            for key in value:
                add(value[key])
        elif isinstance(value, list):
            for part in value:
                add(part)

    for name in sorted(names):
        if isinstance(names[name], torch.nn.Module | torch.optim.Optimizer):
            add(names[name].state_dict())
    return sums.hexdigest()[:16]


def reports(names):
    """Yield a name and a report for all that is captured."""
    seen = set()
    for name, value in names.items():
        inside = value.named_modules() if isinstance(value, torch.nn.Module) else [("", value)]
        for inner, part in inside:
            captor = None if isinstance(part, type) else captor_of(part)
            report = getattr(captor or part, "report", None)
            if id(part) not in seen and hasattr(report, "num_replays"):
                seen.add(id(part))
                yield f"{name}.{inner}".rstrip("."), report


def summary(names):
    """Return what is said of a run at its end."""
    found = {}
    for name, report in reports(names):
        done = report.num_replays
        if done + report.num_eager:
            found[name] = {
                "replayed": done,
                "calls": done + report.num_eager,
                "refusals": sorted({str(each) for each in report.refusals}),
                "text": str(report),
            }
    replayed, calls = (sum(each[key] for each in found.values()) for key in ("replayed", "calls"))
    return {
        "digest": digest(names),
        "share": round(replayed / calls, 4) if calls else 0.0,
        "captured": found,
    }


def run(text, name, names):
    """Run a program until it is stopped."""
    with contextlib.suppress(Stopped):
        exec(compile(text, name, "exec"), names)


def main():
    """Take a turn after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--lines", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--others", type=Path, default=Path("runs/others"))
    options = parser.parse_args()
    clock.tiny = options.tiny
    text, words, path = source_of(options.name, lines=options.lines, others=options.others)
    sys.argv = ["program", *words]
    sys.path[:0] = path
    names = {"__name__": "__main__", "__file__": f"{options.name}.py", "clock": clock}
    # So that what it looks up by its own name is found, such as dataclasses.
    module = type(sys)("__main__")
    module.__dict__.update(names)
    sys.modules["__main__"] = module
    with contextlib.ExitStack() as stack:
        if options.device == "simulated":
            sys.path.append(str(Path(__file__).parents[2] / "tests"))
            clock.device = stack.enter_context(__import__("recipes").simulated()).torch_device
        else:
            clock.device = torch.device(options.device)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(contextlib.chdir(folder))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        warnings.simplefilter("ignore")
        warnings.filterwarnings("default", module="gapless")
        try:
            # Frames of a captured program are looked for by its file.
            Path(folder, "program.py").write_text(text, encoding="utf-8")
            module.__dict__["__file__"] = str(Path(folder, "program.py"))
            run(text, str(Path(folder, "program.py")), module.__dict__)
            told = summary(module.__dict__)
        except Exception as error:
            traceback.print_exc()
            told = {"error": f"{type(error).__name__}: {error}"[:300]}
        sys.__stdout__.write(json.dumps(told) + "\n")
        sys.__stdout__.flush()
    # Environments and loaders have threads of their own.
    os._exit(0)


if __name__ == "__main__":
    main()
