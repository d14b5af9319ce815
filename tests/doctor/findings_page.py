"""Reads the examples of findings.md, and runs them on the CPU."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import re
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.utils.data import DataLoader

from gapless.doctor.advice.explanations import PAGE, explanations


GIVEN = re.search(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)[1]


def edits() -> list[tuple[str, str, str]]:
    """Return the code of each example, and the example before and after its edit."""
    return [
        (code, _side(example, "-"), _side(example, "+"))
        for code, paragraphs in explanations().items()
        for example in paragraphs
        if example.startswith("```diff")
    ]


def _side(example: str, kept: str) -> str:
    lines = example.splitlines()[1:-1]
    return "".join(f"{line[1:]}\n" for line in lines if line[:1] in ("", " ", kept))


class Rows(torch.utils.data.Dataset):
    """Rows `(x, y)` that are the same each time."""

    def __len__(self):
        return 160

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=draw), index % 2


@dataclass(frozen=True)
class Run:
    """What an example printed, the weights that it left, and how often torch says that it waited."""

    printed: list[str]
    weights: dict[str, torch.Tensor]
    num_waits: int


@functools.cache
def run(example: str, device: str = "cpu") -> Run:
    """Run an example after the lines that are given."""
    printed, is_on_gpu = io.StringIO(), device != "cpu"
    names: dict[str, Any] = {"device": torch.device(device), "dataset": Rows()}
    names["loader"] = DataLoader(names["dataset"], batch_size=8)
    names["batches"] = [(x.to(device), y.to(device)) for x, y in names["loader"]]
    with (
        torch.random.fork_rng(devices=range(torch.cuda.device_count())),
        contextlib.redirect_stdout(printed),
        warnings.catch_warnings(record=True) as warned,
        nullcontext() if is_on_gpu else _as_if_there_were_a_gpu(),
        mock.patch("torch.distributed.barrier"),
        mock.patch("torch.nn.Module.compile"),
        # Whoever compiled in this process has switched it off.
        mock.patch("torch.distributions.Distribution._validate_args", True),
    ):
        warnings.simplefilter("always")
        torch.manual_seed(0)
        exec(compile(GIVEN, "given.py", "exec"), names)
        if is_on_gpu:
            torch.cuda.set_sync_debug_mode("warn")
        try:
            exec(compile(example, "example.py", "exec"), names)
        finally:
            gc.unfreeze()
            if is_on_gpu:
                torch.cuda.set_sync_debug_mode("default")
    weights = {name: weight.cpu() for name, weight in names["model"].state_dict().items()}
    names.clear()  # ends the workers of loaders
    waits = [one for one in warned if "called a synchronizing" in str(one.message)]
    return Run(printed.getvalue().splitlines(), weights, len(waits))


@contextlib.contextmanager
def _as_if_there_were_a_gpu():
    """Let calls that need one do nothing: work of a CPU is done when it has been called."""
    event = mock.Mock(**{"query.return_value": True, "elapsed_time.return_value": 1.0})
    patches = {
        "cuda.Event": mock.Mock(return_value=event),
        "cuda.Stream": mock.Mock(),
        "cuda.current_stream": mock.Mock(),
        "cuda.stream": nullcontext,
        "cuda.synchronize": mock.Mock(),
        "cuda.empty_cache": mock.Mock(),
        "Tensor.pin_memory": lambda tensor: tensor,
    }
    with contextlib.ExitStack() as stack:
        for name, stand_in in patches.items():
            stack.enter_context(mock.patch(f"torch.{name}", stand_in))
        yield
