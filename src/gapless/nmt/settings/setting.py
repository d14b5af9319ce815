"""One setting of a run: its field, which says all that the help and a check need, and its check.

Importing this file must load neither torch nor yaml: the command line imports it for its help.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING, Any

from gapless.errors import DataError, DeviceError, UserError


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from dataclasses import Field


# Of sizes: more than any machine has room for, and less than torch can count to.
MOST = 2**31 - 1


def setting(
    default: Any,
    text: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    choices: Sequence[str] | None = None,
    auto: str | None = None,
    form: Callable[..., Any] | None = None,
) -> Any:
    """Return the field of a setting.

    Args:
        default: value of a run that does not set it.
        text: says in the help, and in `config.yaml`, what it is.
        at_least: lowest value; None: no limit.
        at_most: highest value; None: no limit.
        below: values must be lower than this; None: no limit.
        choices: all values; None: any.
        auto: of what it is a number, where it may be `auto` as well; None: it may not.
        form: checks what limits alone do not say, with the setting's `name`; None: they say all.
    """
    return field(
        default=default,
        metadata={
            "help": text,
            "at_least": at_least,
            "at_most": at_most,
            "below": below,
            "choices": choices,
            "auto": auto,
            "form": form,
        },
    )


def check_setting(item: Field[Any], value: Any) -> None:
    """Check the value of one setting; None is left open.

    Args:
        item: its field, made by `setting`.
        value: to check.

    Raises:
        UserError: it is out of range, or names something that does not exist.
    """
    name, limits = f"`{item.name}`", item.metadata
    if value is None:
        return
    if limits["form"] is not None:
        limits["form"](value, name=item.name)
    if limits["auto"] is not None and isinstance(value, str):
        if value != "auto":
            raise UserError(
                f"{name} must be auto or a number of {limits['auto']}, but is {value!r}"
            )
        return
    if limits["choices"] is not None and value not in limits["choices"]:
        kind = DeviceError if item.name == "precision" else DataError
        raise kind(f"{name} must be one of {', '.join(limits['choices'])}, but is {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name} must be a finite number, but is {value}")
    least, below = limits["at_least"], limits["below"]
    if below is not None and not least <= value < below:
        raise UserError(f"{name} must be {least:g} or more and below {below:g}, but is {value}")
    if least is not None and value < least:
        raise UserError(f"{name} must be at least {least}, but is {value}")
    most = limits["at_most"]
    if most is not None and value > most:
        raise UserError(f"{name} must be at most {most}, but is {value}")
