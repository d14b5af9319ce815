"""Say once what an integration does and what it does not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Sequence


def announce(name: str, *, does: Sequence[str], does_not: Sequence[str]) -> None:
    """Write to stderr what an integration does and what it does not, a line each.

    Args:
        name: of the framework's part that is captured.
        does: what is done.
        does_not: what stays as the framework does it.

    Sync: Does not block the host.
    """
    lines = [f"gapless: {name}"]
    lines += [f"  does: {line}" for line in does]
    lines += [f"  does not: {line}" for line in does_not]
    sys.stderr.write("\n".join(lines) + "\n")
