"""Comparisons as lines of text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gapless.compare.model_state import BATCH_TENSOR


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gapless.compare.difference import LossDifference, TensorDifference
    from gapless.compare.plan_run import RunRecord
    from gapless.compare.verify_plan import Closeness, Comparison, Difference
    from gapless.records.wait_stats import WaitStats


_NOT_REPEATED = (
    "  The difference did not occur again when both ran once more. That points at a race, or at",
    "  state that outlives a run, rather than at arithmetic.",
)
_BUILT_DIFFERENTLY = (
    "  The workload is built differently each time: let the function build model, optimizer and",
    "  batches anew, and draw every random number after the seed of torch, numpy and random.",
)
_OTHER_BATCHES = (
    "  The batches are not the same each time: give the loader a torch.Generator with a fixed",
    "  seed, and let its workers draw from torch.initial_seed() alone.",
)
_NOT_REPRODUCIBLE = (
    "  Look for random numbers that no seed reaches, for globals that outlive a run, and for",
    "  kernels that are not deterministic; --tolerance 1e-5 compares within a bound instead.",
)
_NOT_WITHIN = (
    "  Look for random numbers that no seed reaches and for globals that outlive a run, or allow",
    "  more with --tolerance.",
)
_PLAN_MATTERS = (
    "  A plan takes batches ahead of their steps: let them draw from a random generator of their",
    "  own, and keep no view of a batch after its step.",
)


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return what came out, then where runs differ and what can be done.

    Two runs of one plan show whether the workload is reproducible at all, and are told so.
    """
    is_itself = comparison.ours.plan == comparison.theirs.plan
    lines = list(_verdict(comparison, is_itself=is_itself))
    return [*lines, *_rounds_line(comparison.theirs)] if is_itself else lines


def not_finite_text(comparison: Comparison) -> str:
    """Name the first loss of the reference that is no finite number; there has to be one."""
    step = comparison.first_not_finite
    assert step is not None
    return f"loss of step {step} is {comparison.theirs.losses[step - 1]}"


def not_comparable_lines(itself: Comparison) -> tuple[str, ...]:
    """Say why nothing can be compared with a reference, and what to do; nothing if it can.

    Args:
        itself: two runs of the reference.
    """
    if itself.holds:
        return ()
    if not itself.agrees:
        return (
            "the workload does not equal itself, so whether a plan computes the same is not known",
            "seed all that it draws from and let it run deterministic algorithms, or allow more "
            "with --tolerance",
        )
    return (
        f"{not_finite_text(itself)}, so whether a plan computes the same is not known",
        "find out where that comes from, or compare the steps before it with --verify-steps",
    )


def waits_line(runs: Mapping[str, RunRecord]) -> str:
    """Return the host waits of each plan's run, by reason."""
    return "host waits: " + "; ".join(f"{name} {_waits(run.waits)}" for name, run in runs.items())


def _verdict(comparison: Comparison, *, is_itself: bool) -> Iterator[str]:
    ours, theirs = comparison.ours.plan, comparison.theirs.plan
    head = f"{theirs} against itself" if is_itself else f"{ours} against {theirs}"
    not_finite = comparison.first_not_finite
    if comparison.agrees and not_finite is not None:
        yield f"{head}: nothing shown, although no difference was found"
        yield f"  {not_finite_text(comparison)}: from there on equal bits show nothing"
        yield from _advice_on_not_finite(not_finite)
    elif comparison.is_identical:
        steps = comparison.ours.num_steps
        yield (
            f"{head}: bit-identical ({steps} losses, {comparison.num_tensors} tensors x {steps} "
            f"steps{_replays(comparison)})"
        )
    elif comparison.closeness is not None:
        yield from _within(head, comparison.closeness, is_itself=is_itself)
    elif comparison.difference is not None:
        verdict = "not reproducible by itself" if is_itself else "different"
        yield f"{head}: {verdict}, from {_at(comparison.difference.step)} on"
        yield from _difference_lines(comparison.difference)
        yield from _advice(comparison.difference, is_itself=is_itself)


def _replays(comparison: Comparison) -> str:
    replays = comparison.ours.num_replays
    return f", {replays} of them replays" if replays else ""


def _rounds_line(run: RunRecord) -> list[str]:
    if len(run.rounds) == 1:
        return []
    return [
        f"batches: {run.rounds[0]}, gone through {len(run.rounds)} times for {run.num_steps} steps"
    ]


def _waits(waits: WaitStats) -> str:
    by_reason = ", ".join(f"{reason} {total.count}" for reason, total in waits.by_reason.items())
    return f"{waits.count} ({by_reason})" if by_reason else "0"


def _difference_lines(difference: Difference) -> list[str]:
    tensor, loss = difference.tensor, difference.loss
    of_tensor, of_loss = ["  no tensor differs"], ["  no loss differs"]
    if tensor is not None:
        of_tensor = [
            f"  {tensor.name}: {_tensor_text(difference, tensor)}",
            f"  {tensor.num_tensors} of {tensor.num_compared} tensors differ {_when(tensor.step)}",
        ]
    if loss is not None:
        which = "loss of step" if loss.step == difference.step else "first loss that differs, step"
        of_loss = [f"  {which} {loss.step}: {_losses(loss)}"]
    is_loss_first = tensor is None or (loss is not None and loss.step < tensor.step)
    return [*of_loss, *of_tensor] if is_loss_first else [*of_tensor, *of_loss]


def _tensor_text(difference: Difference, tensor: TensorDifference) -> str:
    if tensor.detail is not None:
        return tensor.detail
    if difference.elements is None:
        return "differs, but not when both ran once more"
    elements = difference.elements
    return (
        f"{elements.num_differing} of {elements.num_elements} elements differ, "
        f"{_size(elements.max_abs)}"
    )


def _size(max_abs: float) -> str:
    if math.isnan(max_abs):
        return "one side is NaN"
    if max_abs == 0.0:
        return "in the sign of a zero alone"
    return f"by at most {max_abs:.3g}"


def _losses(loss: LossDifference) -> str:
    return f"{loss.ours:.9g} against {loss.theirs:.9g}, difference {loss.size:.3g}"


def _advice(difference: Difference, *, is_itself: bool) -> tuple[str, ...]:
    advice = _PLAN_MATTERS
    if difference.step == 0:
        advice = _BUILT_DIFFERENTLY
    elif is_itself:
        tensor = difference.tensor
        is_batch = tensor is not None and tensor.name.startswith(BATCH_TENSOR)
        advice = _OTHER_BATCHES if is_batch else _NOT_REPRODUCIBLE
    return advice if difference.is_repeated else (*_NOT_REPEATED, *advice)


def _advice_on_not_finite(step: int) -> Iterator[str]:
    before = step - 1
    yield "  Look for the cause in the batches, in the step or in the rate of learning."
    if before:
        yield f"  Until then steps can be compared: ask for {before} instead."


def _within(head: str, closeness: Closeness, *, is_itself: bool) -> Iterator[str]:
    size, name = closeness.largest_tensor
    largest = (
        f"losses by at most {closeness.largest_loss:.3g}, tensors at the end by at most "
        f"{size:.3g} ({name})"
    )
    bound = f"{closeness.tolerance:g}"
    if closeness.is_within:
        yield f"{head}: within {bound}; {largest}, relative to their size"
        return
    first = closeness.first_loss
    where = f", from {_at(first.step)} on" if first else ", though every loss is within"
    verdict = "not reproducible by itself within" if is_itself else "beyond"
    yield f"{head}: {verdict} {bound}{where}"
    if first:
        yield f"  loss of step {first.step}: {_losses(first)}"
    yield f"  {largest}, relative to their size"
    yield f"  {closeness.num_tensors_beyond} of {closeness.num_tensors} tensors are beyond at the end"
    if is_itself:
        yield from _NOT_WITHIN


def _when(step: int) -> str:
    return f"after step {step}" if step else "before the first step"


def _at(step: int) -> str:
    return f"step {step}" if step else "the start"
