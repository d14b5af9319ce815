"""Which way round the sides of a text are: row by row, or by the text of another file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from gapless.nmt.data.languages import find_language, looks, written_in


if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence


_Key = TypeVar("_Key")

# Rows, evenly over a file, of which both sides are looked at; two letters of a row say how it is written.
_MOST_ROWS, _LETTERS_OF_A_ROW = 20_000, 2

# Fewer rows the other way round are a slip of whoever wrote them.
_FEWEST_EXCHANGED = 5
# A text that is so almost everywhere was named the other way round.
_ALL_EXCHANGED = 0.95

# Says into which language a row is to be translated, where a model learns both directions.
_TAG = re.compile(r"\s*(?:<[^<>\s]{1,20}>|>>[^<>\s]{1,20}<<|\[[\w-]{2,10}\]|__[\w-]{2,10}__)")
_TAGGED_SHARE = 0.8

# Sentences whose words are compared, and how much more alike sides must be the other way round.
_MOST_COMPARED, _CLEARLY_MORE_ALIKE = 2_000, 0.1

# Words of scripts that set them apart; of others, single characters.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_]+")


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """Rows that are the other way round.

    Attributes:
        numbers: of these rows, from 0 on.
        looked_at: number of rows that were looked at.
        way: in what their source and their target sides are written.
        against: what the other way is that of.
    """

    numbers: list[int]
    looked_at: int
    way: tuple[str, str]
    against: str

    @property
    def share(self) -> float:
        """Of the rows that were looked at."""
        return len(self.numbers) / self.looked_at

    def told(self, where: str, *, of: int, places: Sequence[str]) -> str:
        """Return a line for people.

        Args:
            where: name of the file or files.
            of: all rows of it.
            places: of the first of these rows.
        """
        seen = "" if self.looked_at == of else " that were looked at"
        return (
            f"{len(self.numbers):,} of {self.looked_at:,} rows of {where}{seen} are the other way round than "
            f"{self.against}, such as {', '.join(places)}: the source side {looks(self.way[0])}, and the target "
            f"side {looks(self.way[1])}; exchange their sides"
        )


def exchanged_rows(
    src: Sequence[str], tgt: Sequence[str], *, sides: tuple[str, str]
) -> Exchanged | None:
    """Return the rows that are the other way round, None if there are few or that cannot be said.

    Which way is right is told by the names of the sides, or else by most rows.

    Args:
        src: the source side.
        tgt: the target side.
        sides: their names, which may be those of languages.
    """
    languages = [find_language(side) for side in sides]
    if any(language is not None and language.has_two_scripts for language in languages):
        return None
    every = -(-len(src) // _MOST_ROWS) or 1
    looked_at = range(0, len(src), every)
    if are_tagged([src[number] for number in looked_at]):
        return None
    ways: dict[tuple[str, str], list[int]] = {}
    for number in looked_at:
        one, other = (written_in([side[number]], fewest=_LETTERS_OF_A_ROW) for side in (src, tgt))
        if one is not None and other is not None and one != other:
            ways.setdefault((one, other), []).append(number)
    one, other = (None if language is None else language.writing for language in languages)
    if one is None or other is None or one == other:
        right = max(ways, key=lambda way: len(ways[way]), default=("", ""))
        against = "the others"
    else:
        right, against = (one, other), "`src` and `tgt` say"
    way = right[::-1]
    found = Exchanged(
        numbers=ways.get(way, []), looked_at=len(looked_at), way=way, against=against
    )
    if len(found.numbers) < _FEWEST_EXCHANGED or found.share >= _ALL_EXCHANGED:
        return None
    return found


def are_tagged(sources: Sequence[str]) -> bool:
    """Return whether most sources begin with a tag that names a direction, of which there are several."""
    tags = [found.group() for source in sources if (found := _TAG.match(source))]
    return len(set(tags)) > 1 and len(tags) >= _TAGGED_SHARE * len(sources)


def words(sentences: Iterable[str]) -> list[str]:
    """Return the words of some text, in lower case; of scripts without spaces, the characters."""
    return _WORD.findall("\n".join(sentences).casefold())


@dataclass(frozen=True, kw_only=True)
class KnownText:
    """Text whose sides are known, with which others are compared.

    Attributes:
        where: name of its file or files.
        words: of the source side, and of the target side.
    """

    where: str
    words: tuple[frozenset[str], frozenset[str]]

    @classmethod
    def of(cls, src: Sequence[str], tgt: Sequence[str], *, where: str) -> KnownText:
        """Return what is known by the first sentences of both sides."""
        source, target = (frozenset(words(side[:_MOST_COMPARED])) for side in (src, tgt))
        return cls(where=where, words=(source, target))

    def likeness(self, src: Sequence[str], tgt: Sequence[str]) -> float:
        """Return how well the first sentences of two sides go with the words of these, from 0 to 1."""
        shares = [
            share_known(side[:_MOST_COMPARED], known)
            for side, known in zip((src, tgt), self.words, strict=True)
        ]
        return sum(shares) / len(shares)

    def most_alike(self, sides: Mapping[_Key, tuple[Sequence[str], Sequence[str]]]) -> _Key:
        """Return which of several sides are clearly more like these than the first; else the first.

        Args:
            sides: source and target, by anything.
        """
        alike = {key: self.likeness(*both) for key, both in sides.items()}
        first = next(iter(sides))
        best = max(alike, key=lambda key: alike[key])
        return best if alike[best] >= alike[first] + _CLEARLY_MORE_ALIKE else first


def share_known(sentences: Iterable[str], known: Container[str]) -> float:
    """Return the share of the words of some text that are known; 0 if it has none."""
    found = words(sentences)
    return sum(word in known for word in found) / len(found) if found else 0.0
