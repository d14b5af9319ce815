"""Whether the environment says that nothing is captured; no torch, so that a command may ask before a script."""

from __future__ import annotations

import os

from gapless.errors import UserError


def is_switched_off() -> bool:
    """Return whether `GAPLESS_CAPTURE` says that nothing is captured.

    Raises:
        UserError: it says something else than on or off.
    """
    value = os.environ.get("GAPLESS_CAPTURE", "")
    if value not in ("", "on", "off"):
        raise UserError(f"GAPLESS_CAPTURE is {value!r} in the environment, expected 'on' or 'off'")
    return value == "off"
