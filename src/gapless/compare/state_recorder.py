"""Record the training state of a workload, step by step, without a host wait.

A checksum of every tensor on the device is queued behind each step, on the step's own stream,
and stays on the device until the run is over. So a plan waits no more often when it is recorded;
only its steps take longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gapless.compare.training_state import TensorInfo, batch_tensors, state_tensors
from gapless.device.bits import Checksums
from gapless.pipeline.step import SplitStep, StepLoss, call_host_part


if TYPE_CHECKING:
    from gapless.compare.workload import Workload
    from gapless.device.base import Device
    from gapless.pipeline.step import WholeStep


class StateRecorder:
    """Collect checksums of a workload's batches and training state.

    Args:
        workload: the workload; its state is recorded at once, as that of step 0.
        device: where its steps run.
        copy_of: number of a step and name of a tensor to copy on the device after that step.

    Attributes:
        tensors: the tensors that each step's checksums are of; those of step 0 first.
        step: the workload's step, which also records each batch. Call `step_done` after every
            step: it is no part of `step`, because a replayed graph does not run `step` again.

    Raises:
        UserError: a tensor of the state cannot be compared.
    """

    def __init__(
        self, workload: Workload, *, device: Device, copy_of: tuple[int, str] | None = None
    ) -> None:
        self._workload = workload
        self._copy_of = copy_of
        self._copy: dict[str, torch.Tensor] = {}
        self._device = device.torch_device
        sizes = [tensor.numel() for tensor in state_tensors(workload).values()]
        self._checksums = Checksums(self._device, num_elements=max(sizes, default=0))
        self._rows: list[torch.Tensor] = []
        self._batch: dict[str, torch.Tensor] = {}
        self._batch_sums = self._checksums.take_all(())
        self.tensors: list[tuple[TensorInfo, ...]] = []
        self.step = _recorded(workload.step, self)
        self.step_done()

    def batch_arrived(self, batch: Any) -> None:
        """Take the checksums of a batch before its step.

        Sync: Does not block the host.
        """
        self._batch = self._on_device(batch_tensors(batch))
        self._batch_sums = self._checksums.take_all(self._batch.values())

    def step_done(self) -> None:
        """Take the checksums of the state that a step left.

        Sync: Does not block the host.
        """
        tensors = self._on_device(state_tensors(self._workload))
        sums = self._checksums.take_all(tensors.values())
        tensors = self._batch | tensors
        if self._copy_of is not None and self._copy_of[0] == len(self._rows):
            name = self._copy_of[1]
            self._copy = {name: tensors[name].detach().clone()} if name in tensors else {}
        found = tuple(TensorInfo.of(*item) for item in tensors.items())
        # Steps share one tuple while nothing changes.
        is_same = self.tensors and self.tensors[-1] == found
        self.tensors.append(self.tensors[-1] if is_same else found)
        self._rows.append(torch.cat((self._batch_sums, sums)))

    def read_checksums(self) -> list[list[int]]:
        """Return the checksums of every step, those of step 0 first.

        Sync: Blocks the host until the last step is done; call it inside a declared wait.
        """
        flat, start, rows = torch.cat(self._rows).tolist(), 0, []
        for row in self._rows:
            rows.append(flat[start : start + len(row)])
            start += len(row)
        return rows

    def read_tensors(self, *, keep_all: bool) -> dict[str, torch.Tensor]:
        """Return copies on the host of the last state, and of the tensor that was copied before.

        Args:
            keep_all: copy tensors on the device too, not only those that are elsewhere.

        Sync: Blocks the host until they are copied; call it inside a declared wait.
        """
        tensors = self._batch | state_tensors(self._workload)
        last = {
            name: tensor.detach().cpu().clone()
            for name, tensor in tensors.items()
            if keep_all or tensor.device != self._device
        }
        return last | {name: tensor.cpu() for name, tensor in self._copy.items()}

    def _on_device(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: item for name, item in tensors.items() if item.device == self._device}


class _HostPart:
    """The host part of a recorded step: it runs for each batch, also before a replay."""

    def __init__(self, step: SplitStep | WholeStep, recorder: StateRecorder) -> None:
        self._step: Any = step
        self._recorder = recorder

    def on_host(self, batch: Any) -> None:
        self._recorder.batch_arrived(batch)
        call_host_part(self._step, batch)


class _RecordedSplitStep(_HostPart):
    """A step in two parts that records its batches."""

    def forward(self, batch: Any) -> StepLoss:
        out: StepLoss = self._step.forward(batch)
        return out

    def backward(self, out: StepLoss) -> None:
        self._step.backward(out)


class _RecordedStep(_HostPart):
    """A whole step that records its batches."""

    def __call__(self, batch: Any) -> StepLoss | torch.Tensor:
        out: StepLoss | torch.Tensor = self._step(batch)
        return out


def _recorded(step: SplitStep | WholeStep, recorder: StateRecorder) -> SplitStep | WholeStep:
    recorded = _RecordedSplitStep if isinstance(step, SplitStep) else _RecordedStep
    return recorded(step, recorder)
