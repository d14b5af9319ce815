"""Translations of a run's pairs, and their scores, through sacrebleu."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from gapless.nmt.data.vocab import join_subwords
from gapless.nmt.run.translator import translate_lines


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.nmt.data.sentences import Pairs
    from gapless.nmt.data.vocab import Vocabs
    from gapless.nmt.model.decode import Decoder
    from gapless.nmt.model.decode_settings import DecodeSettings
    from gapless.nmt.settings.score_tokenizer import ScoreTokenizer
    from gapless.ranks import Ranks


# Of the n-grams that BLEU counts; where no reference has as many words, the best translation would score 0.
_LONGEST_GRAM = 4


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of one system on one test set.

    Attributes:
        bleu: corpus BLEU, 0 to 100; of n-grams up to the longest reference where none has four words.
        bleu_signature: how it was computed.
        bleu_detail: sacrebleu's own line, with precisions, brevity penalty and lengths.
        chrf: corpus chrF2, 0 to 100; None: not asked for.
        chrf_signature: how it was computed.
        exact_match: share of hypotheses that equal their reference, 0 to 1.
        count: number of sentences.
        note: with what the scores cannot be compared, if anything.
        num_cut: hypotheses that ended at the longest length allowed, where the model would have
            gone on.
        num_long: sources that are longer than the model reads, and of which the rest is not translated.
    """

    bleu: float
    bleu_signature: str
    bleu_detail: str
    chrf: float | None
    chrf_signature: str | None
    exact_match: float
    count: int
    note: str = ""
    num_cut: int = 0
    num_long: int = 0


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    score_tokenizer: ScoreTokenizer,
    with_chrf: bool = True,
) -> Scores:
    """Score translations against one reference each.

    Args:
        hypotheses: one translation for each sentence.
        references: as many; used as they are.
        score_tokenizer: cuts both sides into the words that BLEU counts.
        with_chrf: whether chrF is asked for, which takes longer than BLEU.
    """
    pairs = list(zip(hypotheses, references, strict=True))
    bleu = _bleu_of(tuple(references), score_tokenizer.name, score_tokenizer.is_tokenised)
    bleu_score = bleu.corpus_score(list(hypotheses), None)
    shorter = "" if bleu.max_ngram_order == _LONGEST_GRAM else f"|ngrams:{bleu.max_ngram_order}"
    chrf, chrf_signature = None, None
    if with_chrf:
        metric = CHRF()
        chrf = metric.corpus_score(list(hypotheses), [list(references)]).score
        chrf_signature = str(metric.get_signature())
    return Scores(
        bleu=bleu_score.score,
        bleu_signature=f"{bleu.get_signature()}{shorter}",
        bleu_detail=str(bleu_score),
        chrf=chrf,
        chrf_signature=chrf_signature,
        exact_match=sum(a.strip() == b.strip() for a, b in pairs) / max(1, len(pairs)),
        count=len(pairs),
        note=score_tokenizer.note,
    )


# The validations of a run have the same references, whose words need not be counted again.
@lru_cache(maxsize=2)
def _bleu_of(references: tuple[str, ...], tokenizer: str, is_tokenised: bool) -> BLEU:
    words_of = BLEU(tokenize=tokenizer, force=is_tokenised).tokenizer
    longest = 1
    for line in references:
        if longest == _LONGEST_GRAM:
            break
        longest = min(_LONGEST_GRAM, max(longest, len(words_of(line).split())))
    return BLEU(
        tokenize=tokenizer,
        force=is_tokenised,
        max_ngram_order=longest,
        references=[list(references)],
    )


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Translations of a test set and their scores.

    Attributes:
        hypotheses: one for each source sentence.
        references: that they are compared with.
        cut: numbers of those hypotheses, counted from 0, that ended at the longest length allowed.
        long: numbers of the sources, counted from 0, of which the rest is not translated.
        scores: of the whole set.
    """

    hypotheses: list[str]
    references: list[str]
    cut: list[int]
    long: list[int]
    scores: Scores


def evaluate(
    decoder: Decoder,
    vocabs: Vocabs,
    pairs: Pairs,
    settings: DecodeSettings,
    *,
    max_source: int,
    score_tokenizer: ScoreTokenizer,
    with_chrf: bool = True,
    on_done: Callable[[int], None] | None = None,
    ranks: Ranks | None = None,
) -> Evaluation:
    """Translate the source side of some pairs and score it against the target side.

    Args:
        decoder: searches.
        vocabs: of the decoder's model.
        pairs: source sentences and references.
        settings: of the search.
        max_source: most tokens of a source; what is more is not translated.
        score_tokenizer: cuts both sides into the words that BLEU counts.
        with_chrf: whether chrF is asked for.
        on_done: called with the number of sentences finished after each batch.
        ranks: that translate together; all return the same. None: this process does so alone.

    Raises:
        StopNow: `on_done` raised it, here or on another rank.

    Sync: Blocks the host, counted as "decode", and until all ranks are done.
    """
    long: list[int] = []
    found = translate_lines(
        decoder,
        vocabs,
        pairs.src,
        settings,
        max_source=max_source,
        on_long=lambda number, _: long.append(number),
        on_done=on_done,
        ranks=ranks,
    )
    hypotheses = [best[0].text for best in found]
    is_joined = not score_tokenizer.is_tokenised
    references = pairs.tgt if is_joined else [join_subwords(line) for line in pairs.tgt]
    cut = [number for number, best in enumerate(found) if best[0].is_cut]
    scores = replace(
        score(hypotheses, references, score_tokenizer=score_tokenizer, with_chrf=with_chrf),
        num_cut=len(cut),
        num_long=len(long),
    )
    return Evaluation(
        hypotheses=hypotheses, references=references, cut=cut, long=long, scores=scores
    )


# --- of how many pairs ---


# Greedy translations of this many validation sentences show how far the model is.
_NUM_TRANSLATED = 200

# With more of them the final model is chosen.
_NUM_COMPARED = 500


def num_translated(pairs: Pairs) -> int:
    """Return how many of the validation pairs are translated in a validation."""
    return min(len(pairs), _NUM_TRANSLATED)


def num_compared(pairs: Pairs) -> int:
    """Return how many of the validation pairs are translated to compare weights at a run's end."""
    return min(len(pairs), _NUM_COMPARED)
