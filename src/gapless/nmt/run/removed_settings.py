"""Settings that older runs have in their `config.yaml`, and that are no settings any more.

Importing this file must load neither torch nor yaml: the command line imports it for its help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapless.nmt.data.languages import tokenizer_of


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _never(value: Any, others: Mapping[str, Any]) -> bool:
    del value, others
    return False


def _is_scored_as_now(value: Any, others: Mapping[str, Any]) -> bool:
    """Return whether a language of the target leads to the tokenizer that the target's name leads to.

    Runs wrote down by themselves which language or tokenizer (`auto:13a`) their text showed.
    """
    if others.get("score_tokenizer") is not None:
        return True
    found = str(value).removeprefix("auto:")
    return tokenizer_of(str(others.get("tgt"))) in (found, tokenizer_of(found))


@dataclass(frozen=True, kw_only=True)
class Removed:
    """A setting that was removed.

    Attributes:
        default: value of runs that did not set it, which is what all runs do now.
        now: says in a few words what all runs do now, for those who had another value.
        means_the_same: whether another value, beside the other settings of its file, is what all runs do.
    """

    default: Any
    now: str
    means_the_same: Callable[[Any, Mapping[str, Any]], bool] = _never

    def may_be_ignored(self, value: Any, others: Mapping[str, Any]) -> bool:
        """Return whether a run with a value is what it was without the setting.

        Args:
            value: of the setting.
            others: all settings of its file, by name.
        """
        return bool(value == self.default) or self.means_the_same(value, others)


_ONE_SUM = "the gradients of several ranks are summed in one piece after the backward pass"

REMOVED: Mapping[str, Removed] = {
    "sum": Removed(default="flat", now=_ONE_SUM),
    "sum_bucket_mib": Removed(default=25.0, now=_ONE_SUM),
    "sum_in_place": Removed(default=False, now=_ONE_SUM),
    "sum_precision": Removed(default="fp32", now=_ONE_SUM + ", as they are"),
    "sum_priority": Removed(default="normal", now=_ONE_SUM),
    "sum_channels": Removed(default=None, now=_ONE_SUM),
    "check_columns": Removed(default=True, now="a side is what its name says"),
    "tgt_language": Removed(
        default=None,
        now="the target's language is what tgt says, and score_tokenizer sets how to score",
        means_the_same=_is_scored_as_now,
    ),
}
