"""Makes docs/findings.md from what the codes say, and runs its examples on the CPU.

`python -m doctor.findings_page`, in `tests` with the sources on the path, writes the page.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import textwrap
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils.data import DataLoader

from gapless.doctor.advice.explanations import CODES, GIVEN


PAGE = Path(__file__).resolve().parents[2] / "docs" / "findings.md"

_HEAD = """\
# What the doctor finds

A GPU works beside the host: the script queues work and goes on before it is done. Where the script asks for a
result, the host waits until the GPU has come that far, and queues nothing; then the GPU stands idle until there is
more. That idle time is all that a mend can win: where the GPU has enough to do, a wait costs nothing.

Each kind of finding has a code, which stays. `gapless explain` lists them; `gapless explain GAP001` shows what stands
here.
"""

_EXAMPLES = """
All examples go on from these lines. `dataset` has rows `(x, y)`, 8 numbers and a label. `loader` is
`DataLoader(dataset, batch_size=8)`, and `batches` are its batches, on the device already.

"""


def page() -> str:
    """Return docs/findings.md as it has to be."""
    sections = "".join(_section(code) for code in CODES)
    return f"{_HEAD}{_EXAMPLES}```python\n{GIVEN}```\n{sections}"


def _section(code: str) -> str:
    its = CODES[code]
    paragraphs = [
        f"## {code}",
        f"{its.title}: {its.meaning}",
        f"**Why.** {its.why}",
        f"**Instead.** {its.mend}",
    ]
    paragraphs = [textwrap.fill(one, 117, break_on_hyphens=False) for one in paragraphs]
    for title, edit in zip(("", "With gapless:"), its.edits(), strict=False):
        paragraphs += [title] * bool(title) + [f"```diff\n{edit}\n```"]
    return "\n" + "\n\n".join(paragraphs) + "\n"


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


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
