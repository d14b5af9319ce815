"""Say what a step did that could not be captured, and in which line."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gapless.graphs.reads.code_kinds import OWN_FOLDER, TORCH_FOLDER
from gapless.graphs.refusal import Refusal, Refused, host_read


if TYPE_CHECKING:
    from collections.abc import Sequence


# What torch and CUDA say, and what it means for a step.
_HINTS = {
    "called a synchronizing CUDA operation": " (the host reads a value there, which makes it wait)",
    "uncaptured work": " (a loss of an earlier backward pass is still held; let go of it)",
    "capturable": " (give the optimizer capturable=True)",
}


def capture_failed(error: Exception) -> Refusal:
    """Name the line of the user's code that cannot be captured, and the error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((TORCH_FOLDER, OWN_FOLDER))]
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}: " if own else ""
    what = next(iter(str(error).splitlines()), type(error).__name__)
    hint = next((hint for sign, hint in _HINTS.items() if sign in what), "")
    # Other graphs may be let go.
    is_final = not isinstance(error, torch.OutOfMemoryError)
    return Refusal("capture_failed", where + what + hint, is_final=is_final)


def _reads_for_a_scaler(error: Exception) -> bool:
    """Return whether a GradScaler made the host wait, as it does for unfused optimizers."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(
        frame.filename.endswith("grad_scaler.py") and frame.name == "_maybe_opt_step"
        for frame in frames
    )


def _advice_on_distributions(error: Exception) -> str:
    """Return what to write where a distribution made the host wait, "" if none did."""
    folder = f"torch{os.sep}distributions{os.sep}"
    frames = traceback.extract_tb(error.__traceback__)
    found = [frame for frame in frames if folder in frame.filename]
    if any(one.filename.endswith("normal.py") and one.name == "sample" for one in found):
        return _DRAWS
    return _CHECKS if found else ""


def why_it_failed(error: Exception, host_reads: Sequence[str]) -> list[Refusal]:
    """Return the reasons why a capture failed, all lines that read on the host among them."""
    if isinstance(error, Refused):
        return [error.refusal]
    advice = _advice_on_distributions(error)
    advice = _UNFUSED if _reads_for_a_scaler(error) else advice
    sites = () if isinstance(error, torch.OutOfMemoryError) else dict.fromkeys(host_reads)
    reads = [host_read(site, advice=advice) for site in sites]
    return reads or [capture_failed(error)]


_CHECKS = (
    "a distribution checks its arguments; give it validate_args=False, or call "
    "Distribution.set_default_validate_args(False)"
)
_DRAWS = "torch.normal looks at the deviation; rsample() draws the same and does not"
_UNFUSED = "GradScaler reads for an optimizer that is not fused; give it fused=True"
