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


_ONE_SUM = "the gradients of several ranks are summed in one piece after the backward pass"

REMOVED: Mapping[str, Removed] = {
    "sum": Removed(default="flat", now=_ONE_SUM),
    "sum_bucket_mib": Removed(default=25.0, now=_ONE_SUM),
    "sum_in_place": Removed(default=False, now=_ONE_SUM),
    "sum_precision": Removed(default="fp32", now=_ONE_SUM + ", as they are"),
    "sum_priority": Removed(default="normal", now=_ONE_SUM),
    "sum_channels": Removed(default=None, now=_ONE_SUM),
}
