"""Translate a test set and score it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.nmt.data.vocab import join_subwords
from gapless.nmt.run.metrics import Scores, score
from gapless.nmt.run.translate import translate_lines


if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.nmt.data.corpus import Pairs
    from gapless.nmt.model.decode import Decoder, DecodeSettings
    from gapless.nmt.run.config import TrainConfig
    from gapless.nmt.run.task import Vocabs


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Translations of a test set and their scores.

    Attributes:
        hypotheses: one for each source sentence.
        references: what they were compared with.
        scores: of the whole set.
    """

    hypotheses: list[str]
    references: list[str]
    scores: Scores


def evaluate(
    decoder: Decoder,
    vocabs: Vocabs,
    pairs: Pairs,
    settings: DecodeSettings,
    *,
    config: TrainConfig,
    on_done: Callable[[int], None] | None = None,
) -> Evaluation:
    """Translate the source side of some pairs and score it against the target side.

    Args:
        decoder: searches.
        vocabs: of the decoder's model.
        pairs: source sentences and references.
        settings: of the search.
        config: of the run, which says how its text was made.
        on_done: called with the number of sentences finished after each batch.

    Sync: Blocks the host, counted as "decode".
    """
    tokenised = config.tokenizer == "none"
    found = translate_lines(
        decoder,
        vocabs,
        pairs.src,
        settings,
        max_source=longest_source(config),
        on_done=on_done,
    )
    hypotheses = [best[0].text for best in found]
    references = [join_subwords(line) for line in pairs.tgt] if tokenised else pairs.tgt
    scores = score(hypotheses, references, tgt_lang=config.tgt, tokenised=tokenised)
    return Evaluation(hypotheses=hypotheses, references=references, scores=scores)


def longest_source(config: TrainConfig) -> int:
    """Return the most tokens of a source sentence that a run's model can read."""
    return 2 * config.max_length
