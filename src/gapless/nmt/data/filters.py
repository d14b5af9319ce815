"""Filters of training pairs: by length, ratio of lengths, and language. Equal pairs are found in `selection.py`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from gapless.errors import DataError
from gapless.nmt.data.languages import find_language
from gapless.nmt.data.text_files import is_blank


# Written without spaces between words: their characters count.
_WITHOUT_SPACES = frozenset(("zh", "yue", "ja", "th", "lo", "km", "my", "bo"))

# By which the likeliest language must lead.
_LEAST_LEAD = 0.5

# Why a pair is left out, by number; 0: it is not.
KEPT, BLANK, LENGTH, RATIO, LANGUAGE = range(5)


@dataclass(frozen=True, kw_only=True)
class Filters:
    """What is left out of the training text, beside pairs with an empty side.

    Attributes:
        src: name of the source side.
        tgt: name of the target side.
        length: fewest and most words of a side, or characters in a language without spaces.
        ratio: most times that the longer side may have the words of the shorter one.
        duplicates: whether pairs that are the same as an earlier one are left out.
        language: whether sides in another language than theirs are.
    """

    src: str = ""
    tgt: str = ""
    length: tuple[int, int] | None = None
    ratio: float | None = None
    duplicates: bool = False
    language: bool = False

    def check(self) -> None:
        """Check what the filter of languages needs, before any text is read.

        Raises:
            DataError: its library is not installed, or does not know a language.
        """
        if self.language:
            _detector()
            for side in (self.src, self.tgt):
                _language(side)

    def why_not(self, src: str, tgt: str) -> int:
        """Return why a pair is left out: the first reason, as a number."""
        if is_blank(src) or is_blank(tgt):
            return BLANK
        if self.length is not None or self.ratio is not None:
            shorter, longer = sorted((_num_words(src, self.src), _num_words(tgt, self.tgt)))
            if (
                self.length is not None
                and not self.length[0] <= shorter <= longer <= self.length[1]
            ):
                return LENGTH
            if self.ratio is not None and longer > self.ratio * shorter:
                return RATIO
        if self.language and not (_is_in(src, self.src) and _is_in(tgt, self.tgt)):
            return LANGUAGE
        return KEPT

    def account(self, left_out: dict[int, int], *, num_repeated: int) -> dict[str, str]:
        """Return for each filter in force what it left out, for people.

        Args:
            left_out: pairs by the number of their reason.
            num_repeated: pairs that were left out as they are the same as an earlier one.
        """
        said = {}
        if self.length is not None:
            least, most = self.length
            said["length"] = (
                f"{left_out[LENGTH]:,} with a side of fewer than {least} or more than {most} words"
            )
        if self.ratio is not None:
            said["ratio"] = (
                f"{left_out[RATIO]:,} with one side more than {self.ratio:g} times as long as the other"
            )
        if self.language:
            said["language"] = (
                f"{left_out[LANGUAGE]:,} with a side that is not {self.src} or {self.tgt}"
            )
        if self.duplicates:
            said["duplicates"] = f"{num_repeated:,} that are the same as earlier ones"
        return {f"filter {name}": text for name, text in said.items()}


@cache
def _has_spaces(side: str) -> bool:
    language = find_language(side)
    return language is None or language.code not in _WITHOUT_SPACES


def _num_words(text: str, side: str) -> int:
    words = text.split()
    return len(words) if _has_spaces(side) else sum(map(len, words))


@cache
def _lingua() -> Any:
    try:
        return import_module("lingua")
    except ImportError:
        raise DataError(
            "`filter_language` needs lingua, which cannot be found; run pip install "
            '"gapless[languages]", or leave it out'
        ) from None


@cache
def _detector() -> Any:
    builder = _lingua().LanguageDetectorBuilder.from_all_languages()
    # A tenth of the memory: 94 MiB in each process. Where it is not sure, nothing is left out: of 3,000 short
    # English sentences it takes 4 % for another language so, and 20 % otherwise.
    return builder.with_low_accuracy_mode().with_minimum_relative_distance(_LEAST_LEAD).build()


@cache
def _language(side: str) -> Any:
    found = find_language(side)
    known = {
        language.iso_code_639_1.name.casefold(): language for language in _lingua().Language.all()
    }
    if found is None or found.code not in known:
        raise DataError(
            f"`filter_language` does not know {side!r}; name the side by a language that lingua knows, or leave "
            "it out"
        )
    return known[found.code]


def _is_in(text: str, side: str) -> bool:
    return _detector().detect_language_of(text) in (None, _language(side))
