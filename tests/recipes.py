"""Runs the scripts of `examples/recipes`, on the CPU, a GPU or the simulated device.

`python -m recipes` (in `tests`, with the sources on the path) writes the differences of all pairs
and the reports of all captured steps into the pages of `docs/recipes`.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib.util
import io
import os
import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import gapless
from gapless import testing
from gapless.graphs.capture_report import CaptureReport
from gapless.graphs.in_place.captor import captor_of


ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "examples" / "recipes"
PAGES = ROOT / "docs" / "recipes"
NAMES = sorted(path.stem.removesuffix("_after") for path in SCRIPTS.glob("*_after.py"))

# Started by torchrun, with a rank for each GPU.
ON_RANKS = [name for name in NAMES if name.endswith("ddp")]

# As the pages say.
NUM_STEPS = 60

# What torch calls the simulated device.
SIMULATED = "cpu:1"

# A recipe whose edit changes the last digits: the script before it, with the edit alone.
OPTIONS_BEFORE = {"lengths": ("--pad-to", "8")}

# What a recipe needs beside torch.
FRAMEWORKS = {
    "accelerate": ("accelerate",),
    "accelerate_ddp": ("accelerate",),
    "fabric_ddp": ("lightning",),
    "hugging_face": ("transformers", "accelerate"),
    "lightning": ("lightning",),
}

# What torchrun says to a rank that is alone.
_ALONE = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_TAKE_DEVICES = (gapless.capture, gapless.prefetch, gapless.DeferredLoss)


@dataclass(frozen=True)
class Run:
    """What a script printed, and what its names stand for at its end."""

    lines: list[str]
    names: dict[str, Any]

    def state(self) -> dict[str, list[bytes]]:
        """Return the bits of the weights and buffers of all modules, by name."""
        modules = {
            name: value for name, value in self.names.items() if isinstance(value, torch.nn.Module)
        }
        return {
            name: [part.detach().cpu().numpy().tobytes() for part in module.state_dict().values()]
            for name, module in modules.items()
        }

    def reports(self) -> list[CaptureReport]:
        """Return the reports of all that is captured, in the order of the script."""
        reports = map(_report_of, self.names.values())
        return [report for report in reports if report is not None]


def _report_of(value: Any) -> CaptureReport | None:
    """Return the report of a captured step, or of what is captured where it stands; else None."""
    while isinstance(value, torch.optim.Optimizer) and "optimizer" in vars(value):
        value = value.optimizer  # of a framework, around torch's
    captor = None if isinstance(value, type) else captor_of(value)
    report = getattr(value if captor is None else captor, "report", None)
    return report if isinstance(report, CaptureReport) else None


def run(script: Path, *options: str) -> Run:
    """Run a script in this process; return what it did."""
    printed, names = io.StringIO(), {"__name__": "__main__"}
    _forget_the_device_of_accelerate()
    code = compile(script.read_text(encoding="utf-8"), str(script), "exec")
    with (
        mock.patch.object(sys, "argv", [str(script), *options]),
        # Torch's compiler changes both.
        mock.patch.object(sys, "path", list(sys.path)),
        mock.patch.dict(os.environ),
        # A process group names its rank in errors.
        mock.patch.object(sys, "excepthook", sys.excepthook),
        torch.random.fork_rng(devices=range(torch.cuda.device_count())),
        contextlib.redirect_stdout(printed),
        warnings.catch_warnings(),
    ):
        if script.stem.startswith("lightning"):
            warnings.simplefilter("ignore")  # it advises more workers
        if script.stem.startswith("ddp") and "RANK" not in os.environ:
            os.environ.update(_ALONE)
        exec(code, names)
    return Run(printed.getvalue().splitlines(), names)


def is_installed(name: str) -> bool:
    """Return whether a recipe's frameworks can be imported."""
    return all(importlib.util.find_spec(each) for each in FRAMEWORKS.get(name, ()))


def _forget_the_device_of_accelerate() -> None:
    if "accelerate" in sys.modules:
        state = sys.modules["accelerate.state"]
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


def run_recipe(name: str, kind: str, device: str) -> Run:
    """Run one script of a recipe on a device.

    Args:
        name: of the recipe.
        kind: "before" or "after".
        device: its name for the script.
    """
    options = ["--device", device, "--steps", str(NUM_STEPS)]
    if kind == "before":
        options += OPTIONS_BEFORE.get(name, ())
    return run(SCRIPTS / f"{name}_{kind}.py", *options)


@contextlib.contextmanager
def simulated():
    """Enter a simulated device that gapless finds by whatever name it is asked for.

    Code is not compiled on it, and its one rank has nobody to sum gradients with: Gloo would read
    memory before the device has written it.
    """
    with contextlib.ExitStack() as patches, testing.SimulatedDevice(scheduler="asap") as device:
        for module in {sys.modules[public.__module__] for public in _TAKE_DEVICES}:
            patches.enter_context(mock.patch.object(module, "find_device", return_value=device))
        patches.enter_context(mock.patch.object(torch, "compile", lambda model: model))
        patches.enter_context(
            mock.patch.object(torch.nn.parallel, "DistributedDataParallel", _Unwrapped)
        )
        patches.enter_context(mock.patch.object(torch.distributed, "all_reduce"))
        patches.enter_context(_frameworks_on(device))
        yield device


class _Unwrapped:
    """Stands for a class that wraps a model, whose instances frameworks look for."""

    def __new__(cls, model: torch.nn.Module):
        return model


@contextlib.contextmanager
def _frameworks_on(device: testing.SimulatedDevice):
    """Let frameworks that are installed train on a simulated device."""
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.dict(os.environ, ACCELERATE_TORCH_DEVICE=SIMULATED))
        for name in ("accelerate", "transformers"):
            if importlib.util.find_spec(name):
                module = importlib.import_module(f"gapless.integrations.{name}")
                patches.enter_context(
                    mock.patch.object(module, "find_device", return_value=device)
                )
        if importlib.util.find_spec("lightning"):
            patches.enter_context(_lightning_on(device))
        if importlib.util.find_spec("transformers"):
            arguments = importlib.import_module("transformers").TrainingArguments
            set_up = vars(arguments)["_setup_devices"].func
            there = functools.cached_property(lambda self: (set_up(self), device.torch_device)[1])
            there.__set_name__(arguments, "_setup_devices")
            patches.enter_context(mock.patch.object(arguments, "_setup_devices", there))
        yield


@contextlib.contextmanager
def _lightning_on(device: testing.SimulatedDevice):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        integration = importlib.import_module("gapless.integrations.lightning")
        strategies = importlib.import_module("lightning.pytorch.strategies")
    there = property(lambda self: device.torch_device)
    with (
        mock.patch.object(integration, "find_device", return_value=device),
        mock.patch.object(strategies.SingleDeviceStrategy, "root_device", there),
    ):
        yield


def changed_bits(before: Run, after: Run) -> list[Any]:
    """Return in what two runs of a recipe differ: lines printed, and modules by name."""
    assert before.lines
    assert before.state()
    wrong: list[Any] = [
        pair for pair in zip(before.lines, after.lines, strict=False) if pair[0] != pair[1]
    ]
    return wrong + [name for name, bits in before.state().items() if after.state()[name] != bits]


def without_times(text: str) -> str:
    """Return a report without the seconds and the memory that it names."""
    return re.sub(r" in \d+\.\d s( and [\d,]+ MiB)?", "", text)


def difference(name: str) -> str:
    """Return how the scripts of a recipe differ, with two lines around each change."""
    before, after = (
        (SCRIPTS / f"{name}_{kind}.py").read_text(encoding="utf-8").splitlines()
        for kind in ("before", "after")
    )
    lines = list(difflib.unified_diff(before, after, n=2, lineterm=""))[2:]
    return "\n".join("@@" if line.startswith("@@") else line for line in lines)


def blocks(text: str) -> list[tuple[str, str]]:
    """Return the blocks of code of a page, each with its language, "" for none."""
    return [(found[1], found[2].removesuffix("\n")) for found in _BLOCK.finditer(text)]


def report_of(run: Run) -> str:
    """Return what the reports of a run say, without their times."""
    return "\n".join([without_times(str(report)) for report in run.reports()])


def examples_of(text: str) -> list[tuple[str, tuple[str, str]]]:
    """Return the examples of a page, each with the name of its section, before and after."""
    found = []
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        for language, code in blocks(section):
            if language == "diff":
                found.append((section.split("`")[1], (_without(code, "+"), _without(code, "-"))))
    return found


def _without(difference: str, sign: str) -> str:
    lines = [line for line in difference.splitlines() if not line.startswith(sign)]
    return "\n".join([line[1:] for line in lines])


def run_example(
    text: str, example: str, device: torch.device, *, num_batches: int = 20
) -> CaptureReport:
    """Run an example of a page after the lines that all of them go on from; return its report.

    It is that of `step`, or of the captured `model` in an example without one.
    """
    (given,) = [
        code for language, code in blocks(text) if language == "python" and "import" in code
    ]
    draw = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(8, 8, generator=draw), torch.randint(2, (8,), generator=draw))
        for _ in range(num_batches)
    ]
    names: dict[str, Any] = {"device": device, "loader": batches}
    with (
        torch.autograd.set_detect_anomaly(False),
        torch.random.fork_rng(devices=range(torch.cuda.device_count())),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for code in (given, example):
            exec(compile(code, "example.py", "exec"), names)
    report = _report_of(names["step"] if "step" in names else names["model"])
    assert report is not None
    return report


def written_anew(text: str, codes: list[str]) -> str:
    """Return a page with other code in its first blocks."""
    left = iter(codes)
    return _BLOCK.sub(
        lambda found: f"```{found[1]}\n{code}\n```" if (code := next(left, None)) else found[0],
        text,
    )


def _write(name: str) -> None:
    """Put the difference and the report of a recipe into its page."""
    with simulated():
        report = report_of(run_recipe(name, "after", SIMULATED))
    path = PAGES / f"{name}.md"
    text = path.read_text(encoding="utf-8")
    path.write_text(written_anew(text, [difference(name), report]), encoding="utf-8")


if __name__ == "__main__":
    for each in filter(is_installed, NAMES):
        _write(each)
