"""What language a name means: for columns, keys and endings of files, and for the tokenizer of scores.

A plain code such as en or zh-CN is read here. Names such as Chinese or 中文, and codes such as zho_Hans, are
read by `langcodes`, where it is installed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gapless.errors import DataError


if TYPE_CHECKING:
    from collections.abc import Sequence


# Two letters, then a script, a country or both.
_PLAIN_CODE = re.compile(r"([a-z]{2})((?:-(?:[a-z]{4}|[a-z]{2}|\d{3}))*)")


@dataclass(frozen=True, kw_only=True)
class Language:
    """A language.

    Attributes:
        code: such as zh; all Chinese that is not a language of its own has this one.
        variant: its script or country, such as hant; empty if the name does not say it.
    """

    code: str
    variant: str


@cache
def find_language(name: str) -> Language | None:
    """Return the language that a code or a name means; None: none, or nobody here knows it."""
    text = name.strip()
    tag = text.casefold().replace("_", "-")
    plain = _PLAIN_CODE.fullmatch(tag)
    if plain is not None:
        return Language(code=plain[1], variant=plain[2].removeprefix("-"))
    try:
        import langcodes

        is_code = langcodes.tag_is_valid(tag)
        found = langcodes.get(tag) if is_code else langcodes.find(text)
    except (ImportError, LookupError, ValueError):
        return None
    code, _, variant = found.prefer_macrolanguage().to_tag().casefold().partition("-")
    return Language(code=code, variant=variant)


def is_same_language(name: str, other: str) -> bool:
    """Return whether two names mean one language, in scripts or countries that do not differ."""
    one, two = find_language(name), find_language(other)
    if one is None or two is None or one.code != two.code:
        return False
    return one.variant == two.variant or not (one.variant and two.variant)


def matching_names(wanted: str, names: Sequence[str]) -> list[int]:
    """Return which of some names is the one wanted: one number, none, or several if nobody can say.

    The same name comes first, then one in other capitals, then those of the same language.

    Args:
        wanted: a side, as its user calls it.
        names: of columns, keys or files.

    Raises:
        DataError: it may be the name of a language, but `langcodes` is not installed.
    """
    folded = wanted.strip().casefold()
    found = [n for n, name in enumerate(names) if name == wanted] or [
        n for n, name in enumerate(names) if name.strip().casefold() == folded
    ]
    if found:
        return found
    if _PLAIN_CODE.fullmatch(folded.replace("_", "-")) is None and find_spec("langcodes") is None:
        raise DataError(
            f"none of {', '.join(names)} is {wanted!r}, and langcodes, which reads names of languages, cannot be "
            "found; give a code such as en, or one of these names"
        )
    return [n for n, name in enumerate(names) if is_same_language(wanted, name)]
