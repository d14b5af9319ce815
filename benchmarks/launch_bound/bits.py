"""All numbers that a training gave, bit by bit: what it logged, and its weights at the end."""

from __future__ import annotations

import hashlib
import os
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import torch

import gapless
from benchmarks.launch_bound.args import Args, FixedTurns
from benchmarks.launch_bound.variants import load
from gapless.device.numerics import seed_generators, set_numerics


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless.device.base import Device


# Steps of an epoch whose bits are compared, at most, and epochs.
STEPS = 12
EPOCHS = 2

_COMPILED_PREFIX = "_orig_mod."


def trained(
    name: str,
    variant: str,
    *,
    device: Device,
    steps: int,
    is_small: bool,
    change: Callable[[int], Callable[[int], None] | None] | None = None,
    **settings: Any,
) -> dict[str, str]:
    """Train a script for a few steps with deterministic algorithms; return what it gave, by name.

    Numbers that it logged are in hexadecimal, tensors of its models as digests. The process is left with
    deterministic algorithms.

    Args:
        name: of the script.
        variant: of the script.
        device: where it trains.
        steps: of an epoch, of which a few are trained.
        is_small: whether sizes are for a CPU.
        change: is called with the steps of all epochs, and returns what is called before each step.
        settings: others of the script's arguments.
    """
    steps = min(steps, STEPS)
    args = Args(
        device=device.torch_device,
        steps=steps,
        is_small=is_small,
        turns=FixedTurns(EPOCHS),
        before_step=change(steps * EPOCHS) if change is not None else None,
        **settings,
    )
    set_numerics(device, "fp32", deterministic=True)
    # Whether a script that has others repeats itself is seen by comparing two runs of it.
    torch.use_deterministic_algorithms(True, warn_only=True)
    seed_generators(1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic.*", category=UserWarning)
        kept = load(name, variant).train(args)
    found = {
        f"{title} {number}": value.hex() if isinstance(value, float) else str(value)
        for title, column in args.numbers.items()
        for number, value in enumerate(column)
    }
    models = kept if isinstance(kept, tuple) else (kept,)
    for number, model in enumerate(models):
        found |= {
            f"{title.removeprefix(_COMPILED_PREFIX)} of model {number}": digest(value)
            for title, value in model.state_dict().items()
        }
    return found


def digest(value: Any) -> str:
    """Return a digest of a tensor's shape, type and bits."""
    host = value.detach().cpu().contiguous()
    content = host.reshape(-1).view(torch.uint8).numpy().tobytes()
    kind = f"{host.dtype} {tuple(host.shape)}".encode()
    return hashlib.sha256(kind + content).hexdigest()


def first_difference(ours: dict[str, str], theirs: dict[str, str]) -> str | None:
    """Return what differs first, None if nothing does."""
    if ours.keys() != theirs.keys():
        return f"{len(ours)} against {len(theirs)} numbers and tensors"
    return next((name for name in ours if ours[name] != theirs[name]), None)


@contextmanager
def capture_off() -> Iterator[None]:
    """Let everything that is captured in the body run as written."""
    before = os.environ.get("GAPLESS_CAPTURE")
    os.environ["GAPLESS_CAPTURE"] = "off"
    try:
        yield
    finally:
        os.environ.pop("GAPLESS_CAPTURE")
        if before is not None:
            os.environ["GAPLESS_CAPTURE"] = before


class Captured:
    """Everything that was given to `gapless.capture`, as long as this is entered."""

    def __init__(self) -> None:
        self._found: list[tuple[str, Any]] = []

    def __enter__(self) -> Self:
        self._capture = gapless.capture

        def capture(given: Any = None, /, *others: Any, **options: Any) -> Any:
            if given is None:
                return lambda step: capture(step, **options)
            captured = self._capture(given, *others, **options)
            found = captured if others else [captured]
            self._found += zip(map(_name_of, (given, *others)), found, strict=True)
            return captured

        vars(gapless)["capture"] = capture
        return self

    def __exit__(self, *_: object) -> None:
        vars(gapless)["capture"] = self._capture

    def reports(self) -> list[dict[str, Any]]:
        """Return what their reports say."""
        return [{"of": name, **_report_of(captured)} for name, captured in self._found]


def _name_of(given: Any) -> str:
    return str(getattr(given, "__name__", None) or type(given).__name__)


def _report_of(captured: Any) -> dict[str, Any]:
    # What is captured in place is the very object, and has no report of its own.
    if isinstance(captured, torch.nn.Module | torch.optim.Optimizer):
        report = gapless.capture_report(captured)
    else:
        report = captured.report
    return {
        "num_replays": report.num_replays,
        "num_eager": report.num_eager,
        "num_fast": report.num_replays,
        "num_audits": report.audits.num,
        "num_equal": report.audits.num_equal,
        "differences": report.audits.differences,
        "text": str(report),
    }
