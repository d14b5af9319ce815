"""Put weights, optimizer state and gradients back to where they were, in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gapless.graphs.refusal import Refusal


if TYPE_CHECKING:
    from collections.abc import Iterator


# State that these make when they first need it is zero; what their constructors make is copied.
_BEGIN_AT_ZERO = frozenset(
    getattr(torch.optim, name)
    for name in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "RAdam", "RMSprop", "SGD")
)


class Snapshot:
    """Copies of everything that a training step changes on the device.

    Args:
        model: whose parameters and buffers are kept.
        optimizer: whose state is kept.
        scaler: of gradients, if there is one.

    Sync: Blocks the host if a scaler is in use.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._scaler = scaler
        self._scaler_state = scaler.state_dict() if scaler is not None else {}
        self._copies = {id(tensor): tensor.detach().clone() for tensor in self._tensors()}

    def objection(self) -> Refusal | None:
        """Return why the optimizer cannot be put back, None if it can."""
        kind, groups = type(self._optimizer), self._optimizer.param_groups
        if kind not in _BEGIN_AT_ZERO:
            return Refusal(
                "cannot_restore", f"cannot restore {kind.__name__}: its initial state is unknown"
            )
        if kind is torch.optim.SGD and any(g["momentum"] and g["dampening"] for g in groups):
            return Refusal(
                "cannot_restore",
                "cannot restore SGD with dampening: its momentum begins as a gradient, not as zero",
            )
        return None

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back, into the same memory.

        State that the optimizer made meanwhile is set to zero, and so are gradients: captured
        work that adds to them has to find them in their place.

        Sync: Does not block the host.
        """
        for tensor in self._tensors():
            copy = self._copies.get(id(tensor))
            if copy is None:
                tensor.zero_()
            else:
                tensor.copy_(copy)
        self._optimizer.zero_grad(set_to_none=False)
        if self._scaler is not None:
            self._scaler.load_state_dict(self._scaler_state)

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from self._model.parameters()
        yield from self._model.buffers()
        for state in self._optimizer.state.values():
            yield from (value for value in _values(state) if isinstance(value, torch.Tensor))


def _values(state: Any) -> list[Any]:
    return list(state.values()) if isinstance(state, dict) else []
