"""What is asked of the doctor for one run of a script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.doctor.variant import Variant


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """How a script is watched.

    Attributes:
        step: what a step is: "auto", "optimizer", "loader", the class of an optimizer, or the name of
            a function of the script.
        warm_up: steps before the first window.
        num_steps: of the windows of plain steps and of sites.
        stops_after: whether the script is ended when the windows are over.
        is_exact: whether torch's own callbacks are used, which stay in the process.
        variants: returns variants to be measured; called once torch is there.
        tries_all: whether all of them are measured, not only those that may mend a finding.
    """

    step: str = "auto"
    warm_up: int = 10
    num_steps: int = 20
    stops_after: bool = False
    is_exact: bool = False
    variants: Callable[[], Sequence[Variant]] | None = None
    tries_all: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no number of steps and no name.

        Raises:
            UserError: a setting cannot be; names it.
        """
        step: object = self.step
        if not isinstance(step, str) or not step:
            raise UserError(f"`step` names what a step is, but is {step!r}")
        for name, value, least in (("warm_up", self.warm_up, 0), ("num_steps", self.num_steps, 1)):
            if type(value) is not int or value < least:
                raise UserError(
                    f"`{name}` must be a whole number of {least} or more, but is {value!r}"
                )
