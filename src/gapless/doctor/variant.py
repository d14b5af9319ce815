"""What the doctor asks of a variant of the script, which it measures against the script as written.

The variants themselves live above this room: the command line hands them in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.records.finding import Finding


class Variant(Protocol):
    """One change of a running script, which can be put in and taken out again.

    All methods are called at the end of a step, in the thread that trains.

    Attributes:
        name: such as "recorded batches".
        change: what it changes, in one sentence.
    """

    name: str
    change: str

    @property
    def refusal(self) -> str:
        """Why it cannot be measured here, or no longer; empty where it can."""

    @property
    def details(self) -> tuple[str, ...]:
        """What was seen while it was in, one sentence each."""

    @property
    def is_settled(self) -> bool:
        """Whether the steps that follow are those to be measured; asked while it is in."""

    @property
    def num_steps_to_recover(self) -> int:
        """Steps as written after which nothing is left of it, such as batches that were loaded ahead."""

    def is_for(self, findings: Sequence[Finding]) -> bool:
        """Return whether it may mend one of these."""

    def start(self, step_ended: Callable[[Any], None]) -> None:
        """Put it in.

        Args:
            step_ended: to be called with an optimizer at the end of its step where torch calls no
                hooks of optimizers.
        """

    def stop(self) -> None:
        """Take it out, so that the script runs as written.

        Nothing happens if it is out.
        """

    def close(self) -> None:
        """Let go of everything; it is out, and is not put in again."""


def those_for(variants: Sequence[Variant], findings: Sequence[Finding]) -> list[Variant]:
    """Return the variants that may mend one of the findings."""
    return [variant for variant in variants if variant.is_for(findings)]
