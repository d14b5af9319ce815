"""The tensors that training reads and writes, by name: batch, weights, gradients, state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from gapless.compare.plain_loop import tensors_of
from gapless.device.torch_private import sparse_parts
from gapless.errors import UserError
from gapless.records.verification import BATCH_TENSOR


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.compare.workload import Workload


class TensorInfo(NamedTuple):
    """Name, dtype and shape of a tensor: what is known without reading its values."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> TensorInfo:
        """Return the description of a tensor."""
        return cls(name, tensor.dtype, tuple(tensor.shape))

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"


def batch_tensors(batch: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a batch by name.

    Raises:
        UserError: a tensor has a layout whose values cannot be compared.

    Sync: Does not block the host.
    """
    found = {str(number): tensor for number, tensor in enumerate(tensors_of(batch))}
    return dict(_dense(BATCH_TENSOR, found))


def state_tensors(workload: Workload) -> dict[str, torch.Tensor]:
    """Return buffers, gradients, optimizer state and parameters by name, as they are now.

    The order is that in which a step computes them, so that the first of several differences is a
    cause of the others and not an effect.

    Raises:
        UserError: a tensor has a layout whose values cannot be compared.

    Sync: Does not block the host.
    """
    parameters = _parameters(workload)
    found = dict(_dense("buffer", dict(workload.model.named_buffers())))
    gradients = {name: weight.grad for name, weight in parameters.items()}
    found |= _dense("gradient of", {n: grad for n, grad in gradients.items() if grad is not None})
    found |= _dense("", _optimizer_state(workload, parameters))
    found |= _dense("parameter", parameters)
    return found


def _parameters(workload: Workload) -> dict[str, torch.Tensor]:
    """Return the parameters of the model, and those that only the optimizer knows."""
    named: dict[str, torch.Tensor] = dict(workload.model.named_parameters())
    known = {id(weight) for weight in named.values()}
    for number, group in enumerate(workload.optimizer.param_groups):
        for position, weight in enumerate(group["params"]):
            if id(weight) not in known:
                named[f"{position} of optimizer group {number}"] = weight
    # A lazy module's parameters have no values before its first forward.
    return {name: weight for name, weight in named.items() if not is_lazy(weight)}


def _optimizer_state(
    workload: Workload, parameters: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    state = workload.optimizer.state
    found = {}
    for name, weight in parameters.items():
        # Asking for what is not there would add it.
        if weight in state:
            for path, tensor in _walk(state[weight]):
                found[f"{path} of {name}"] = tensor
    return found


def _walk(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested lists and dictionaries, with their places."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _walk(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from _walk(part, f"{path}[{number}]")


def _dense(prefix: str, tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in tensors.items():
        full = f"{prefix} {name}".strip()
        if tensor.layout == torch.strided:
            yield full, tensor
        elif tensor.layout == torch.sparse_coo:
            indices, values = sparse_parts(tensor)
            yield f"{full} (indices)", indices
            yield f"{full} (values)", values
        else:
            raise UserError(
                f"{full} has the layout {tensor.layout}, expected a dense or sparse COO tensor; "
                "its values cannot be compared"
            )
