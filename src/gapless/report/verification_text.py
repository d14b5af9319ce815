"""Verifications as lines of text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gapless.records.verification import BATCH_TENSOR, PLAIN_LOOP


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.records.verification import (
        Closeness,
        Difference,
        LossDifference,
        RunSummary,
        SecondOpinion,
        TensorDifference,
        Verdict,
        Verification,
    )
    from gapless.records.wait_stats import WaitStats


_NOT_REPEATED = (
    "  The difference did not occur again when both were run again. This points at a race or at",
    "  state that outlives a run, not at arithmetic.",
)
_BUILT_DIFFERENTLY = (
    "  The workload is built differently each time: let the function build model, optimizer and",
    "  batches anew, and draw random numbers only from torch, numpy and random, which are seeded.",
)
_OTHER_BATCHES = (
    "  The batches are not the same each time: give the loader a torch.Generator with a fixed",
    "  seed, and let its workers draw from torch.initial_seed() alone.",
)
_NOT_REPRODUCIBLE = (
    "  Look for random numbers that are not seeded, for globals that outlive a run, and for",
    "  kernels that are not deterministic; or compare within a tolerance, such as 1e-5.",
)
_NOT_WITHIN = (
    "  Look for random numbers that are not seeded and for globals that outlive a run, or allow a",
    "  larger tolerance.",
)
_PLAN_MATTERS = (
    "  Under a plan the host need not wait for the device in each step: change no memory on the host",
    "  that queued work still reads.",
)
_REPLAYED = (
    "  A replayed step repeats its kernels: what it reads from Python keeps the value of the capture.",
    "  Pass what changes from step to step in the batch.",
)


# Of what TorchDynamo alone names.
_MOST_NAMES = 8

_TOO_FEW = "no kind of batch came often enough; take more steps, or batches of fewer shapes"


def verification_text(verification: Verification) -> str:
    """Return all verdicts, the host waits of each plan, and what was not verified, as text."""
    lines = [line for verdict in verification.verdicts for line in verdict_lines(verdict)]
    lines += [*waits_lines(verification), *nothing_lines(verification)]
    return "\n".join(lines)


def nothing_lines(verification: Verification) -> list[str]:
    """Return what was not verified, because no step was a replay, and why; empty if all was."""
    lines = []
    for run in verification.show_nothing:
        reasons = run.not_captured or (_TOO_FEW,)
        lines.append(f"{run.plan}: nothing was verified: no step ran as a graph: {reasons[0]}")
        lines += [f"  also: {reason}" for reason in reasons[1:]]
    return lines


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return what came out, where the runs differ, and what can be done about it.

    Two runs of a plain loop show whether the workload is reproducible at all; the lines say so.
    """
    lines = list(_verdict(verdict))
    return [*lines, *_passes_line(verdict.theirs)] if verdict.is_of_one_plan else lines


def why_not_comparable(itself: Verdict) -> tuple[str, ...]:
    """Return why nothing can be compared with a reference, and what to do; empty if it can.

    Args:
        itself: two runs of a plain loop.
    """
    if itself.holds:
        return ()
    if not itself.agrees:
        return (
            "the workload does not equal itself, so whether a plan computes the same is not known",
            "seed all random numbers and use deterministic algorithms, or allow a larger tolerance",
        )
    return (
        f"{_nonfinite_loss(itself)}, so whether a plan computes the same is not known",
        "find the cause, or compare only the steps before it",
    )


def waits_lines(verification: Verification) -> list[str]:
    """Return a line with the host waits of each plan's run, by reason; none if no plan was run."""
    runs = {run.plan: run for found in verification.plans for run in (found.theirs, found.ours)}
    runs.pop(PLAIN_LOOP, None)
    waits = [f"{name} {_waits(run.waits)}" for name, run in runs.items()]
    return [f"host waits: {'; '.join(waits)}"] if waits else []


def second_opinion_lines(opinion: SecondOpinion) -> list[str]:
    """Return what both name, what only one does, and where TorchDynamo stopped."""
    stopped = [f"  TorchDynamo stopped at: {'; '.join(opinion.failures)}"]
    if not opinion.has_traced:
        reason = opinion.failures[0] if opinion.failures else "it found no graph in the step"
        return [f"second opinion: none by TorchDynamo: {reason}"]
    return [
        "second opinion: TorchDynamo on one step",
        f"  reads: {len(opinion.both)} named by both, {len(opinion.only_gapless)} only by gapless, "
        f"{_listed(opinion.only_dynamo)}",
        f"  compared in other ways: {len(opinion.of_updates)} of optimizers and gradients by themselves, "
        f"{len(opinion.of_libraries)} of libraries by audits",
        f"  writes: gapless saw {len(opinion.written)}, {_listed(opinion.written_only_by_dynamo)}",
        *(stopped if opinion.failures else []),
    ]


def _verdict(verdict: Verdict) -> Iterator[str]:
    ours, theirs = verdict.ours.plan, verdict.theirs.plan
    head = f"{theirs} against itself" if verdict.is_of_one_plan else f"{ours} against {theirs}"
    step = verdict.first_nonfinite_step
    if verdict.agrees and step is not None:
        yield f"{head}: inconclusive: no difference, but the {_nonfinite_loss(verdict)}"
        yield from _advice_on_nonfinite(step)
    elif verdict.is_identical:
        yield f"{head}: bit-identical ({_compared(verdict)})"
    elif verdict.closeness is not None:
        yield from _within(head, verdict.closeness, is_of_one_plan=verdict.is_of_one_plan)
    elif verdict.difference is not None:
        result = "not reproducible" if verdict.is_of_one_plan else "different"
        yield f"{head}: {result}, from {_at(verdict.difference.step)} on"
        yield from _difference_lines(verdict.difference)
        yield from _advice(verdict)


def _listed(names: tuple[str, ...]) -> str:
    text = f"{len(names)} only by TorchDynamo"
    if not names:
        return text
    more = "" if len(names) <= _MOST_NAMES else f" and {len(names) - _MOST_NAMES} more"
    return f"{text}: {', '.join(names[:_MOST_NAMES])}{more}"


def _compared(verdict: Verdict) -> str:
    steps, replays = verdict.ours.num_steps, verdict.ours.num_replays
    text = f"{steps} losses, {verdict.num_tensors} tensors x {steps} steps"
    return f"{text}, {replays} of them replays" if replays else text


def _passes_line(run: RunSummary) -> list[str]:
    if len(run.passes) == 1:
        return []
    return [f"batches: {len(run.passes)} passes over {run.passes[0]} for {run.num_steps} steps"]


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
        return "differed, but not when both were run again"
    elements = difference.elements
    return (
        f"{elements.num_differing} of {elements.num_elements} elements differ, "
        f"{_size(elements.max_abs)}"
    )


def _size(max_abs: float) -> str:
    if math.isnan(max_abs):
        return "and one side is NaN"
    if max_abs == 0.0:
        return "only in the sign of zero"
    return f"by at most {max_abs:.3g}"


def _losses(loss: LossDifference) -> str:
    return f"{loss.ours:.9g} against {loss.theirs:.9g}, difference {loss.size:.3g}"


def _advice(verdict: Verdict) -> tuple[str, ...]:
    difference = verdict.difference
    assert difference is not None
    advice = _REPLAYED if verdict.ours.num_replays else _PLAN_MATTERS
    if difference.step == 0:
        advice = _BUILT_DIFFERENTLY
    elif verdict.is_of_one_plan:
        tensor = difference.tensor
        is_batch = tensor is not None and tensor.name.startswith(BATCH_TENSOR)
        advice = _OTHER_BATCHES if is_batch else _NOT_REPRODUCIBLE
    return advice if difference.is_repeated else (*_NOT_REPEATED, *advice)


def _nonfinite_loss(verdict: Verdict) -> str:
    step = verdict.first_nonfinite_step
    assert step is not None
    return f"loss of step {step} is {verdict.theirs.losses[step - 1]}"


def _advice_on_nonfinite(step: int) -> Iterator[str]:
    yield "  From that step on equal bits show nothing, because NaN spreads to every weight."
    yield "  Look for the cause in the batches, the step or the learning rate."
    if step > 1:
        yield f"  To compare the steps before it, ask for {step - 1} instead."


def _within(head: str, closeness: Closeness, *, is_of_one_plan: bool) -> Iterator[str]:
    size, name = closeness.largest_tensor
    largest = (
        f"losses differ by at most {closeness.largest_loss:.3g} of their size, tensors at the end "
        f"by at most {size:.3g} ({name})"
    )
    bound = f"the tolerance {closeness.tolerance:g}"
    if closeness.is_within:
        yield f"{head}: within {bound}; {largest}"
        return
    first = closeness.first_loss
    where = f", from {_at(first.step)} on" if first else ", though every loss is within it"
    result = "not reproducible within" if is_of_one_plan else "outside"
    yield f"{head}: {result} {bound}{where}"
    if first:
        yield f"  loss of step {first.step}: {_losses(first)}"
    yield f"  {largest}"
    yield f"  {closeness.num_tensors_beyond} of {closeness.num_tensors} tensors are outside at the end"
    if is_of_one_plan:
        yield from _NOT_WITHIN


def _when(step: int) -> str:
    return f"after step {step}" if step else "before the first step"


def _at(step: int) -> str:
    return f"step {step}" if step else "the start"
