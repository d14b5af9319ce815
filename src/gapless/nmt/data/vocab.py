"""Vocabularies: text to token ids and back.

Special ids: padding 0, unknown 1, begin 2, end 3.
"""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import sentencepiece

from gapless.errors import DataError, RunFolderError


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


PAD, UNK, BOS, EOS = 0, 1, 2, 3

DEFAULT_SIZE = 8000

# Characters of a subword, at most: sentencepiece's own limit.
LONGEST_SUBWORD = 16

# The language that a Marian model of several is to translate into, such as >>fra<<.
_LANGUAGE = re.compile(">>.+<<")


class Vocab(Protocol):
    """Turn sentences into token ids and back."""

    def __len__(self) -> int: ...

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each sentence, without begin and end."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the sentence of token ids; special ids are left out."""

    def tokens(self) -> list[str]:
        """Return all entries, special ones included, in the order of their ids."""

    def file(self, name: str) -> tuple[str, bytes]:
        """Return the name and content of the vocabulary's file; `vocab_in` finds it by `name`."""


class SubwordVocab:
    """Subwords made by sentencepiece. Lossless: identity normalisation and byte fallback.

    Args:
        model: a serialised sentencepiece model.
    """

    suffix = ".spm"

    def __init__(self, model: bytes) -> None:
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    def __len__(self) -> int:
        return int(self._processor.vocab_size())

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each sentence, without begin and end."""
        ids: list[list[int]] = self._processor.encode(list(sentences), num_threads=1)
        return ids

    def splits(self) -> NDArray[np.int32]:
        """Return the ids of the two subwords that the last merge of bpe joins to each, [V, 2]; -1: of none."""
        scores = {
            self._processor.id_to_piece(number): self._processor.get_score(number)
            for number in range(EOS + 1, len(self))
            if not self._processor.is_unused(number)
        }
        found = np.full((len(self), 2), -1, dtype=np.int32)
        for number, piece in enumerate(self.tokens()):
            # What the user defined has the score 0, as the very first merge.
            if scores.get(piece, 0.0) < 0.0:
                parts = _before_last_merge(piece, scores)
                if len(parts) == 2 and all(part in scores for part in parts):
                    found[number] = [self._processor.piece_to_id(part) for part in parts]
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Return the sentence of token ids; special ids are left out."""
        return str(self._processor.decode([i for i in ids if i > EOS]))

    @property
    def model_type(self) -> str:
        """The kind of its sentencepiece model: `bpe` or `unigram`."""
        return "bpe" if _parsed(self._model).trainer_spec.model_type == _BPE else "unigram"

    def tokens(self) -> list[str]:
        """Return all entries, special ones included, in the order of their ids."""
        return [str(self._processor.id_to_piece(number)) for number in range(len(self))]

    def file(self, name: str) -> tuple[str, bytes]:
        """Return the name and content of its file."""
        return name + self.suffix, self._model


# Of sentencepiece's file format.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5
_BPE = 2


def _parsed(model: bytes) -> Any:
    # Here, for it loads protobuf, which only models from elsewhere need.
    return import_module("sentencepiece.sentencepiece_model_pb2").ModelProto.FromString(model)


def with_entries(model: bytes, tokens: Sequence[str]) -> SubwordVocab:
    """Return a subword vocabulary that splits text as a sentencepiece model does, with other ids.

    So two models can have the ids of one table. A subword that is not among the entries is split further.

    Args:
        model: a serialised sentencepiece model.
        tokens: all entries in the order of their ids, the special ones first.
    """
    parsed = _parsed(model)
    known = {piece.piece: piece for piece in parsed.pieces}
    lowest = min(piece.score for piece in parsed.pieces) - 10.0
    # A character that the model lacks is found alone, for otherwise it is unknown, or bytes. Longer ones are only
    # joined again: in text they are merged last, then taken apart.
    character = _NORMAL if not parsed.trainer_spec.byte_fallback else _CONTROL
    kinds = {PAD: _CONTROL, UNK: _UNKNOWN, BOS: _CONTROL, EOS: _CONTROL}
    del parsed.pieces[:]
    for number, token in enumerate(tokens):
        kind = character if len(token) == 1 else _UNUSED
        kind = _USER_DEFINED if _LANGUAGE.fullmatch(token) else kind
        piece = parsed.pieces.add(piece=token, score=lowest, type=kinds.get(number, kind))
        if token in known and number not in kinds:
            piece.CopyFrom(known[token])
            piece.type = _CONTROL if piece.type == _UNKNOWN else piece.type
    spec = parsed.trainer_spec
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD, UNK, BOS, EOS
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = tokens[: EOS + 1]
    return SubwordVocab(parsed.SerializeToString())


def _before_last_merge(piece: str, scores: Mapping[str, float]) -> list[str]:
    """Return what bpe has made of a subword's characters before it is whole."""
    parts = list(piece)
    while len(parts) > 2:
        merged = [scores.get(one + other, -math.inf) for one, other in pairwise(parts)]
        best = max(merged)
        if best <= scores[piece]:
            break
        at = merged.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


class WordVocab:
    """Tokens separated by spaces, used as they are. `@@ ` joins subwords, as in subword-nmt.

    Args:
        words: the words without the special ones, most frequent first.
    """

    suffix = ".words.txt"

    def __init__(self, words: Sequence[str]) -> None:
        self._words = ["<pad>", "<unk>", "<s>", "</s>", *words]
        self._ids = {word: number for number, word in enumerate(self._words)}

    @classmethod
    def of(cls, sentences: Iterable[str], *, size: int | None, nearest: bool = False) -> WordVocab:
        """Return the vocabulary of some text.

        Args:
            sentences: pre-tokenised text.
            size: entries to keep, special ones included; all of them if None.
            nearest: keep all of them where there are fewer.

        Raises:
            DataError: the text holds fewer words than asked for.
        """
        counts = Counter(word for sentence in sentences for word in sentence.split())
        if size is not None and size > len(counts) + EOS + 1 and not nearest:
            raise _too_large(size, len(counts) + EOS + 1)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(ranked if size is None else ranked[: size - EOS - 1])

    def __len__(self) -> int:
        return len(self._words)

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each sentence, without begin and end."""
        return [[self._ids.get(word, UNK) for word in sentence.split()] for sentence in sentences]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the sentence of token ids; special ids are left out, except for the unknown."""
        words = [self._words[i] for i in ids if i > EOS or i == UNK]
        return join_subwords(" ".join(words))

    def tokens(self) -> list[str]:
        """Return all entries, special ones included, in the order of their ids."""
        return list(self._words)

    def file(self, name: str) -> tuple[str, bytes]:
        """Return the name and content of its file."""
        text = "".join(f"{word}\n" for word in self._words[EOS + 1 :])
        return name + self.suffix, text.encode()


def join_subwords(sentence: str) -> str:
    """Join what subword-nmt split with `@@ `."""
    return (sentence + " ").replace("@@ ", "").rstrip(" ")


def vocab_in(files: Mapping[str, bytes], name: str, *, where: Path) -> Vocab:
    """Return the vocabulary of a name from files that were read.

    Args:
        files: their content, by name.
        name: under which `Vocab.file` gave it.
        where: they were.

    Raises:
        RunFolderError: none of them is that vocabulary.
    """
    subwords = files.get(name + SubwordVocab.suffix)
    if subwords is not None:
        return SubwordVocab(subwords)
    words = files.get(name + WordVocab.suffix)
    if words is not None:
        return WordVocab(words.decode().split("\n")[:-1])
    raise RunFolderError(f"{where} holds no vocabulary {name}; train again")


def train_subwords(
    sentences: Sequence[str],
    *,
    size: int | None,
    model: str,
    nearest: bool = False,
    tags: Sequence[str] = (),
) -> SubwordVocab:
    """Return a subword vocabulary of some text.

    Args:
        sentences: the training text.
        size: number of subwords; None: 8,000, or fewer if the text cannot give that many.
        model: `bpe` or `unigram`.
        nearest: take the nearest size that the text can give, where it cannot give this one.
        tags: words that are one subword each, wherever they stand.

    Raises:
        DataError: the text cannot give that many subwords, or the model is unknown.
    """
    if model not in ("bpe", "unigram"):
        raise DataError(f"unknown vocabulary model {model!r}; the models are bpe and unigram")
    nearest = nearest or size is None
    return SubwordVocab(
        _train_or_fit(sentences, size=size, model=model, nearest=nearest, tags=tags)
    )


def _train_or_fit(
    sentences: Sequence[str],
    *,
    size: int | None,
    model: str,
    nearest: bool,
    tags: Sequence[str],
) -> bytes:
    size = size or DEFAULT_SIZE
    try:
        return _train(sentences, size=size, model=model, tags=tags)
    except RuntimeError as error:
        refusal, fitting = _refusal(error, size)
        if not nearest:
            raise refusal from error
    return _train(sentences, size=fitting, model=model, tags=tags)


def _refusal(error: RuntimeError, size: int) -> tuple[DataError, int]:
    """Return what to say where sentencepiece cannot give a size, and the nearest one that it can.

    Raises:
        DataError: it fails otherwise.
    """
    least = re.search(r"required_chars\. (\d+) vs (\d+)", str(error))
    if least is not None:
        return _too_small(size, int(least[2])), int(least[2])
    most = re.search(r"value <= (\d+)", str(error))
    if most is not None:
        return _too_large(size, int(most[1])), int(most[1])
    raise DataError(f"sentencepiece could not make a vocabulary: {error}") from error


def _train(sentences: Sequence[str], *, size: int, model: str, tags: Sequence[str]) -> bytes:
    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=proto,
        vocab_size=size,
        model_type=model,
        user_defined_symbols=list(tags),
        # Other normalisations rewrite full-width punctuation, which references keep. With byte
        # fallback every sentence can be decoded exactly.
        normalization_rule_name="identity",
        byte_fallback=True,
        character_coverage=0.9995,
        remove_extra_whitespaces=False,
        max_sentence_length=1 << 20,
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        minloglevel=2,
    )
    return proto.getvalue()


def _too_small(size: int, least: int) -> DataError:
    return DataError(
        f"vocabulary size {size} is less than the characters of this text need, which is {least}; "
        f"use `vocab_size={least}` or more"
    )


def _too_large(size: int, most: int) -> DataError:
    return DataError(
        f"vocabulary size {size} is more than this text can give, which is {most}; "
        f"use `vocab_size={most}` or less"
    )


# The names of the vocabularies, without their endings.
_BOTH, _SRC, _TGT = "vocab", "vocab.src", "vocab.tgt"

VOCAB_FILES = tuple(
    name + kind.suffix for name in (_BOTH, _SRC, _TGT) for kind in (SubwordVocab, WordVocab)
)


@dataclass(frozen=True, kw_only=True)
class Vocabs:
    """The vocabularies of both sides; one object twice if they share it.

    Attributes:
        src: of sources.
        tgt: of targets.
        asked: settings that they were made with; None: they are those of a run.
    """

    src: Vocab
    tgt: Vocab
    asked: dict[str, Any] | None = field(default=None, compare=False)

    @property
    def is_shared(self) -> bool:
        """Whether both sides use one vocabulary."""
        return self.src is self.tgt

    def files(self) -> dict[str, bytes]:
        """Return the content of their files, by name."""
        if self.is_shared:
            return dict([self.src.file(_BOTH)])
        return dict([self.src.file(_SRC), self.tgt.file(_TGT)])

    @classmethod
    def of_files(cls, files: Mapping[str, bytes], *, is_shared: bool, where: Path) -> Vocabs:
        """Return the vocabularies in files that were read.

        Args:
            files: their content, by name.
            is_shared: whether both sides use one.
            where: the files were.

        Raises:
            RunFolderError: one is missing.
        """
        if is_shared:
            both = vocab_in(files, _BOTH, where=where)
            return cls(src=both, tgt=both)
        return cls(src=vocab_in(files, _SRC, where=where), tgt=vocab_in(files, _TGT, where=where))
