"""The settings of a run's text: where it is, what of it is trained on, and its vocabularies.

Importing this file must load neither torch nor yaml: the command line imports it for its help.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gapless.errors import DataError, UserError
from gapless.nmt.settings.setting import MOST, setting


# Of sacrebleu.
_TOKENIZERS = ("13a", "zh", "ja-mecab", "ko-mecab", "char", "intl")

# A path takes one of the two slashes of an address away.
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
_ONE_SLASH = re.compile(r":/(?!/)")


def check_path(value: str, *, name: str) -> None:
    """Refuse an empty path, such as that of a variable which is not set."""
    if not value.strip():
        raise UserError(
            f"`{name}` is {value!r}, expected a file or folder; name one, or leave it out"
        )


def _check_data(value: str, *, name: str) -> None:
    for path in value.split("\n"):
        _check_one_text(path, name=name)


def _check_one_text(value: str, *, name: str) -> None:
    check_path(value, name=name)
    if value == "-":
        raise DataError(
            f"`{name}` is -, expected a file or folder: the text is read more than once; write it to a file"
        )
    if _ADDRESS.match(value) and not Path(value).exists():
        raise DataError(
            f"`{name}` is the address {_ONE_SLASH.sub('://', value)}, expected a file or folder; download it first"
        )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The text of a run, its sides and its vocabularies."""

    TITLE: ClassVar = "data"

    data: str | None = setting(
        None,
        "folder or file of sentence pairs, one or more; none: embedded corpus",
        form=_check_data,
    )
    weights: str | None = setting(
        None,
        "of several folders or files: the ratio in which their pairs are seen, such as 3,1; none: each pair once an epoch",
    )
    filter_length: str | None = setting(
        None,
        "train on pairs whose sides have so many words, such as 2:80 (characters of languages without spaces)",
    )
    filter_ratio: float | None = setting(
        None,
        "train on pairs whose longer side has at most so many times the words of the shorter one",
        at_least=1.0,
        at_most=float(MOST),
    )
    filter_duplicates: bool = setting(False, "train on the first of equal pairs alone")
    filter_language: bool = setting(
        False, "train on pairs whose sides are in their languages alone"
    )
    src: str = setting("en", "source side, by code or name: a file ending, column or JSON key")
    tgt: str = setting("zh", "target side")
    columns: str | None = setting(
        None, "names of the first columns of a table without a header, in order: en,zh or _,en,zh"
    )
    score_tokenizer: str | None = setting(
        None,
        "sacrebleu tokenizer of BLEU; none: of Chinese, Japanese and Korean their own, else 13a",
        choices=_TOKENIZERS,
    )
    tokenizer: str = setting(
        "sentencepiece",
        "sentencepiece, or none: text is tokenised already",
        choices=("sentencepiece", "none"),
    )
    vocab_size: int | None = setting(None, "subwords of a vocabulary", at_least=5, at_most=MOST)
    vocab_model: str = setting("bpe", "subword model: bpe or unigram", choices=("bpe", "unigram"))
    shared_vocab: bool = setting(False, "one vocabulary for both sides")
    tags: str | None = setting(
        None, "words of the text that stay one token each, such as <2de>,<2fr>"
    )
    bpe_dropout: float = setting(
        0.0,
        "share of a subword's merges that each epoch leaves out at random, such as 0.1",
        at_least=0.0,
        below=1.0,
    )
    max_length: int = setting(
        200, "longest sentence in tokens; longer ones are not trained on", at_least=1, at_most=MOST
    )
    store: str | None = setting(
        None,
        "folder that keeps tokenised text for the next run; none: one in the user's cache",
        form=check_path,
    )
    store_size: float = setting(
        50.0,
        "GiB that all stores may have; those used least lately are removed",
        at_least=0.0,
        at_most=float(MOST),
    )
    store_workers: int | None = setting(
        None, "processes that tokenise text; none: one for each core", at_least=1, at_most=1024
    )
    allow_changed_data: bool = setting(
        False, "resume although training, validation or test text is not what the run began with"
    )

    def data_paths(self) -> list[Path]:
        """Return the paths in `data`, which has one a line."""
        return [] if self.data is None else list(map(Path, self.data.split("\n")))

    def data_name(self) -> str:
        """Return the paths in `data`, for people."""
        return ", ".join(map(str, self.data_paths())) or "embedded corpus"

    def weight_numbers(self) -> tuple[float, ...] | None:
        """Return the numbers in `weights`.

        Raises:
            DataError: they are not as many as the paths in `data`, or none are above 0.
        """
        if self.weights is None:
            return None
        paths, numbers = self.data_paths(), [_number(text) for text in self.weights.split(",")]
        if len(numbers) != len(paths) or not all(0 < number < MOST for number in numbers):
            raise DataError(
                f"`weights` must be a number above 0 for each of {len(paths)} `data`, with commas between, but "
                f"is {self.weights!r}"
            )
        return tuple(numbers)

    def length_limits(self) -> tuple[int, int] | None:
        """Return the numbers in `filter_length`.

        Raises:
            DataError: there are not two, or the first is larger.
        """
        if self.filter_length is None:
            return None
        least, between, most = self.filter_length.partition(":")
        if not (between and least.isdecimal() and most.isdecimal() and int(least) <= int(most)):
            raise DataError(
                f"`filter_length` must be the fewest and the most words, such as 2:80, but is {self.filter_length!r}"
            )
        return int(least), int(most)

    def column_names(self) -> tuple[str, ...] | None:
        """Return the names in `columns`.

        Raises:
            DataError: there are not two or more.
        """
        if self.columns is None:
            return None
        names = [name.strip() for name in self.columns.split(",")]
        if len(names) < 2 or not all(names):
            raise DataError(
                f"`columns` must be two names or more, such as en,zh, but is {self.columns!r}"
            )
        return tuple(names)

    def tag_names(self) -> tuple[str, ...]:
        """Return the words in `tags`.

        Raises:
            DataError: one is empty, or holds a space.
        """
        names = () if self.tags is None else tuple(self.tags.split(","))
        if not all(len(name.split()) == 1 and name == name.strip() for name in names):
            raise DataError(
                f"`tags` must be words with commas between, such as <2de>,<2fr>, but is {self.tags!r}"
            )
        return names
