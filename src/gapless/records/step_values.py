"""What a step's losses and metrics were, once they have reached the host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepValues:
    """The values of one step.

    Attributes:
        step: number of the `add` that gave them, from 0, since the last `reset`; each `DeferredLoss`
            has numbers of its own.
        values: by name; a value that was given by position is named `loss`.
    """

    step: int
    values: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class NonFinite:
    """A value that is NaN or infinite.

    Attributes:
        step: number of the `add` that gave it, from 0, since the last `reset`.
        name: of the value; `loss` if it was given by position.
        value: itself.
    """

    step: int
    name: str
    value: float
