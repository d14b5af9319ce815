"""Prove that a new graph does what its step does, before it is used.

From one saved state of the device the graph runs, and the step runs twice as written, or more often. What they
leave behind is compared by fingerprints on the device. The last run as written is the one that
counts: training goes on with it, whatever the verdict. The verdict is copied to the host behind
this work, and read when it has arrived; nobody waits for it. What the fingerprints say is told in
`gapless.graphs.proof.proof_verdict`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gapless.errors import GaplessError
from gapless.graphs.consent import Alone, Readiness
from gapless.graphs.proof.device_state import DeviceState
from gapless.graphs.proof.proof_verdict import ProofRun, Verdict, form_of


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.device.base import Device
    from gapless.graphs.consent import Consent
    from gapless.graphs.proof.proof_verdict import Distances


# A copy may lead to this share of the device's memory; what is left is for libraries and fragments.
_MEMORY_FRACTION = 0.8

# Runs as written of a step that may give other bits each time, in its proof.
_NUM_UNSTEADY = 4


class NotProved(GaplessError):  # noqa: N818
    """The memory does not allow a proof; everything is as it was before."""


def prove(
    device: Device,
    state: DeviceState,
    *,
    replay: Callable[[], Any],
    as_written: Callable[[], Any],
    reset: Callable[[], None],
    memory_budget_bytes: int | None = None,
    nondeterministic: Sequence[str] = (),
    consent: Consent | None = None,
    num_written: int | None = None,
    distances: Distances | None = None,
    names: Sequence[str] = (),
    beside_bytes: int = 0,
) -> tuple[Any, Verdict]:
    """Run a graph once and its step twice from one state; return the last result and a verdict.

    What the three calls return is compared as well: trees of tensors and plain values, so they may
    return more than the step does, such as gradients.

    Args:
        device: where they run, on the current stream.
        state: everything that they change on the device and that was there before.
        replay: launches the graph.
        as_written: runs the step.
        reset: puts back what they change in Python; called before each run as written.
        memory_budget_bytes: device memory of the process that the copy may lead to; None: four
            fifths of the device's.
        nondeterministic: operators of the step that may give other bits each time.
        consent: of the ranks that prove the same step.
        num_written: runs as written; None: as `num_runs_of` says. One alone does not show whether the
            step repeats its bits: the replay is then compared with that one.
        distances: of two runs as written, as an earlier verdict found them; None if they had the
            same bits.
        names: of the tensors that the three calls return, in order, for texts.
        beside_bytes: further device memory that has to fit beside the copy.

    Raises:
        NotProved: the copy would need more memory, or the device of a rank does not have it.
        BaseException: what the calls raise; the state is then as it was before.
    """
    try:
        before = _saved(
            device, state, memory_budget_bytes, consent or Alone(), beside_bytes=beside_bytes
        )
        runs, between = [ProofRun.of(replay, state, device, names)], list[torch.Tensor]()
        while len(runs) + len(between) <= (num_written or num_runs_of(nondeterministic)):
            if len(runs) > 2:
                # Of these runs the fingerprint is enough; their results would take memory.
                between.append(runs.pop().fingerprint)
            state.restore()
            reset()
            runs.append(ProofRun.of(as_written, state, device, names))
    except BaseException as error:
        if state.is_saved:
            state.restore()
            reset()
        if isinstance(error, torch.OutOfMemoryError):
            raise _too_large(state) from error
        raise
    finally:
        state.forget()
    return runs[-1].out, Verdict(
        device,
        state.chunks,
        before,
        [*runs, runs[-1]][:3],
        between,
        nondeterministic=nondeterministic,
        distances=distances,
    )


def num_runs_of(nondeterministic: Sequence[str], *, several_ranks: bool = False) -> int:
    """Return how many runs as written show whether a step repeats its bits.

    Args:
        nondeterministic: operators of the step that may give other bits each time.
        several_ranks: whether others run with this one: they may see other operators, but run as often.
    """
    return _NUM_UNSTEADY if nondeterministic or several_ranks else 2


def _saved(
    device: Device,
    state: DeviceState,
    budget: int | None,
    consent: Consent,
    *,
    beside_bytes: int,
) -> torch.Tensor:
    """Save the state on all ranks, or on none; return its fingerprint."""
    try:
        _check_budget(device, state, budget, beside_bytes)
        state.save()
        fingerprint = state.checksum()
    except (NotProved, torch.OutOfMemoryError):
        consent.least(Readiness.NEVER)
        raise
    if consent.least(Readiness.READY) is not Readiness.READY:
        raise NotProved("another rank has no memory for a copy of what the step changes")
    return fingerprint


def _too_large(state: DeviceState) -> NotProved:
    return NotProved(
        f"a copy of the {state.num_bytes:,} bytes that the step changes does not fit in the "
        "device's memory"
    )


def _check_budget(
    device: Device, state: DeviceState, budget: int | None, beside_bytes: int
) -> None:
    total = device.total_memory_bytes()
    if budget is None and total is not None:
        budget = int(total * _MEMORY_FRACTION)
    held = device.reserved_memory_bytes()
    if budget is not None and held + state.num_bytes + beside_bytes > budget:
        beside = f" and {beside_bytes:,} bytes of gradients" if beside_bytes else ""
        raise NotProved(
            f"a copy of the {state.num_bytes:,} bytes that the step changes{beside} must fit in the "
            f"memory budget of {budget:,} bytes, but {held:,} are held"
        )


@dataclass(eq=False)
class Comparison:
    """Compares what a graph gives with what the step as written gives, each as it comes.

    Nothing is saved or put back.

    Attributes:
        names: of the results, in order, for texts.
        nondeterministic: operators that may give other bits each time.
        distances: of two runs as written, as of `prove`.
    """

    device: Device
    names: Sequence[str] = ()
    nondeterministic: Sequence[str] = ()
    distances: Distances | None = None
    _replayed: ProofRun | None = None

    def take_replayed(self, results: Any) -> None:
        """Take what the graph gives: a tree of tensors, which is not held."""
        self._replayed = self._run_of(results)
        self._replayed.forget_results()

    def verdict_on(self, written: Any) -> Verdict:
        """Return a verdict on what the step as written gives."""
        assert self._replayed is not None
        run = self._run_of(written)
        return Verdict(
            self.device,
            [],
            run.fingerprint[:0],
            [self._replayed, run, run],
            nondeterministic=self.nondeterministic,
            distances=self.distances,
        )

    def _run_of(self, results: Any) -> ProofRun:
        state = DeviceState([], self.device)
        try:
            run = ProofRun.of(lambda: results, state, self.device, self.names, sees_random=False)
        finally:
            state.forget()
        # Strides and alignment of gradients depend on who holds them.
        run.tree.known_key = (run.tree.structure(), tuple(map(form_of, run.tree.leaves)))
        return run
