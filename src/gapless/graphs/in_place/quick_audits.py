"""Audits of quick updates: now and then one is compared with `step()` as written.

Weights, gradients and state are saved, the quick update runs, all is put back, and `step()` runs as
written. When, and what an interlude is, says `gapless.graphs.audit`. Behind an audit one update runs as written alone, unless it is known what that takes:
quick updates save the rest of it. A difference lets go of the lists
that were collected; they are collected anew once, and a second one ends quick updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.account import CallTimes
from gapless.graphs.audit import Audits
from gapless.graphs.proof.device_state import DeviceState
from gapless.graphs.proof.fingerprints import KeptFingerprints
from gapless.graphs.proof.packing import KeptChunks, chunks_of, regions_of
from gapless.graphs.proof.python_side import PythonSide, tensors_of
from gapless.graphs.proof.same_results import NotProved, prove
from gapless.graphs.reads.addresses import address_of
from gapless.graphs.refusal import Refusal
from gapless.graphs.replay.kept_tensors import KeptTensors
from gapless.graphs.side_stream import ONE_AT_A_TIME
from gapless.graphs.updates.update_rules import OF_A_SCALER, name_of, weights_of


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

    from gapless.graphs.callee import Callee
    from gapless.graphs.proof.packing import Region
    from gapless.graphs.updates.quick_updates import QuickUpdates


# Differences, before no update is quick any more.
_MAX_DIFFERENCES = 2


@dataclass(eq=False)
class QuickAudits:
    """When the quick updates of one optimizer are audited, and how.

    Attributes:
        memory_budget_bytes: device memory of the process that a copy may lead to.
    """

    quick: QuickUpdates
    optimizer: Optimizer
    callee: Callee
    every: int | None
    memory_budget_bytes: int | None
    _num_differences: int = 0

    def __post_init__(self) -> None:
        self._report = report = self.callee.report
        # The same operations, with less of the host.
        self._times = CallTimes(report.spent)
        self._fingerprints, self._chunks = KeptFingerprints(), KeptChunks()
        self._audits = Audits(
            report, every=self.every, account=self.callee.account, seed=report.audits.seed
        )
        self._turn = self._audits.turn_of(self.quick)

    def update(self) -> Callable[[Callable[[], Any]], Any] | None:
        """Update quickly; if that is not to be, return what takes `step()` as written and runs it."""
        if not self._may_be_quick():
            return self._run
        if not self.quick.run():
            self._chunks = KeptChunks()
            self._audits.forget_call()
            return self.quick.run_as_written
        self._audits.end_call(self._times, "replay")
        self._report.num_quick += 1
        return None

    def _may_be_quick(self) -> bool:
        audit = self._audits.open
        if audit is not None:
            if not audit.verdict.arrived():
                return False
            if audit.verdict.holds:
                self._audits.end_good(audit)
            else:
                self._note_difference(self._audits.end_bad(audit))
        if self._times.as_written_s is None and self._report.audits.num:
            return False
        return not self._turn.begin_call()

    def _run(self, step: Callable[[], Any]) -> Any:
        """Update as written, and compare this with a quick update, unless a verdict is awaited."""
        if self.quick.is_over:
            self._audits.forget_call()
            return step()
        is_unknown = self._times.as_written_s is None and self._report.audits.num
        if self._audits.open is not None or is_unknown:
            return self._run_plain(step)
        if not self.quick.is_ready():
            self._chunks = KeptChunks()
            self._audits.forget_call()
            return self.quick.run_as_written(step)
        if not self.callee.account.has_room_for(self._times, "audit"):
            return self._run_plain(step)
        self._audits.begin_call()
        try:
            out = self._audit(step)
            self._audits.end_call(self._times, "audit")
            return out
        except NotProved as error:
            self._audits.end_all()
            self._report.note = f"no further audits: {error}"
        except Exception:
            # Of the quick update, or what the step as written is about to raise again.
            self.quick.forget_lists()
        self._audits.forget_call()
        return step()

    def _run_plain(self, step: Callable[[], Any]) -> Any:
        self._audits.begin_call()
        try:
            out = step()
        except BaseException:
            self._audits.forget_call()
            raise
        self._audits.end_call(self._times, "plain")
        return out

    def _audit(self, step: Callable[[], Any]) -> Any:
        optimizer, weights = self.optimizer, weights_of(self.optimizer)
        gradients = [(weight, weight.grad) for weight in weights]
        device, is_on_device = self.callee.device, self.callee.is_on_device
        names = {
            address_of(weight): f"weight {number} of {name_of(optimizer)}"
            for number, weight in enumerate(weights)
        }
        staying = [(weight, names[address_of(weight)]) for weight in weights]
        staying += tensors_of(optimizer, names)
        passing = [
            (gradient, f"the gradient of {names[address_of(weight)]}")
            for weight, gradient in gradients
            if gradient is not None
        ]
        of_scaler = ((vars(optimizer).get(name), name) for name in OF_A_SCALER)
        passing += [(one, name) for one, name in of_scaler if isinstance(one, torch.Tensor)]
        on_host = [one for one, _ in [*staying, *passing] if not is_on_device(one)]

        def regions_on_device(pairs: list[tuple[torch.Tensor, str]]) -> list[Region]:
            found = [pair for pair in pairs if is_on_device(pair[0])]
            return regions_of([one for one, _ in found], [name for _, name in found])

        def left() -> list[Any]:
            return [weight.grad for weight in weights] + on_host

        def quick() -> list[Any]:
            self.quick.run()
            return left()

        def as_written() -> list[Any]:
            outs.append(step())
            return left()

        outs: list[Any] = []
        chunks = self._chunks.of(
            [one for one, _ in staying],
            lambda: regions_on_device(staying),
            device.current_stream(),
        )
        kept = KeptTensors([], on_device=self.callee.is_on_device)
        with ONE_AT_A_TIME:
            side = PythonSide(gradients, [optimizer], kept, on_device=self.callee.is_on_device)
            _, verdict = prove(
                device,
                DeviceState(
                    [],
                    device,
                    fingerprints=self._fingerprints,
                    chunks=[*chunks, *chunks_of(regions_on_device(passing))],
                ),
                replay=quick,
                as_written=as_written,
                reset=side.restore,
                memory_budget_bytes=self.memory_budget_bytes,
                num_written=1,
            )
        self._audits.begin(None, self.quick, verdict)
        return outs[0]

    def _note_difference(self, text: str) -> None:
        self._num_differences += 1
        self._chunks = KeptChunks()
        self.quick.forget_lists()
        if self._num_differences >= _MAX_DIFFERENCES:
            self.quick.end()
            name = name_of(self.optimizer)
            self._report.refuse(
                Refusal(
                    "proved_wrong",
                    f"{name}.step() as written does something else than its operations alone: {text}",
                    is_of_call=True,
                )
            )
