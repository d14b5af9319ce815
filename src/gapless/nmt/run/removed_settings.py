"""Settings that older runs have in their `config.yaml`, and that are no settings any more.

Importing this file must load neither torch nor yaml: the command line imports it for its help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Removed:
    """A setting that was removed.

    Attributes:
        default: value of runs that did not set it, which is what all runs do now.
        now: says in a few words what all runs do now, for those who had another value.
    """

    default: Any
    now: str


REMOVED: Mapping[str, Removed] = {}
