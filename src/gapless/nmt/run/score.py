"""Translate lines of text, and score translations through sacrebleu."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from gapless.nmt.data.text_files import is_blank
from gapless.nmt.data.vocab import join_subwords
from gapless.nmt.run.interrupt import StopNow
from gapless.ranks import OneRank


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.nmt.data.corpus import Pairs
    from gapless.nmt.model.decode import Decoder, DecodeSettings, Hypothesis
    from gapless.nmt.run.config import TrainConfig
    from gapless.nmt.run.scoring import Scoring
    from gapless.nmt.run.task import Vocabs
    from gapless.ranks import Ranks


_HARMLESS = {
    **dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], "\ufffd"),
    # All that sacrebleu takes for white space, so that a file has the words that are scored.
    **dict.fromkeys(map(ord, "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85\u2028\u2029"), " "),
}


@dataclass(frozen=True, kw_only=True)
class Translation:
    """One translation of a sentence.

    Attributes:
        text: the translation, one line without control characters.
        score: log probability / length ** a; 0 for an empty line.
        is_cut: whether it ended at the longest length allowed, where the model would have gone on.
    """

    text: str
    score: float
    is_cut: bool = False


def translate_lines(
    decoder: Decoder,
    vocabs: Vocabs,
    lines: Sequence[str],
    settings: DecodeSettings,
    *,
    max_source: int | None = None,
    on_long: Callable[[int, int], None] | None = None,
    on_done: Callable[[int], None] | None = None,
    ranks: Ranks | None = None,
) -> list[list[Translation]]:
    """Return the best translations of each line, at least one, in the order of the lines.

    An empty line, and one of which nobody sees anything, stays empty. Several ranks share the work, and all return all translations, which
    are those of a process alone.

    Args:
        decoder: searches.
        vocabs: of the decoder's model.
        lines: one sentence each.
        settings: of the search.
        max_source: most tokens of a line, a longer line is cut; None: no limit.
        on_long: called with the number of a line that is cut, counted from 0, and its length in
            tokens.
        on_done: called with the number of sentences finished after each batch.
        ranks: that translate these lines together; None: this process does so alone.

    Raises:
        StopNow: `on_done` raised it, here or on another rank.

    Sync: Blocks the host, counted as "decode", and until all ranks are done.
    """
    full = [number for number, line in enumerate(lines) if not is_blank(line)]
    sources = vocabs.src.encode([lines[number] for number in full])
    for at, source in enumerate(sources):
        if max_source is not None and len(source) > max_source:
            if on_long is not None:
                on_long(full[at], len(source))
            sources[at] = source[:max_source]
    results = [[Translation(text="", score=0.0)] for _ in lines]
    ranks = OneRank() if ranks is None else ranks
    found = _search_together(decoder, sources, settings, on_done=on_done, ranks=ranks)
    for number, hypotheses in zip(full, found, strict=True):
        if hypotheses:
            results[number] = [
                Translation(
                    text=one_line(vocabs.tgt.decode(best.ids)),
                    score=best.score,
                    is_cut=best.is_cut,
                )
                for best in hypotheses
            ]
    return results


def _search_together(
    decoder: Decoder,
    sources: Sequence[Sequence[int]],
    settings: DecodeSettings,
    *,
    on_done: Callable[[int], None] | None,
    ranks: Ranks,
) -> list[list[Hypothesis]]:
    """Return what all ranks find, in the order of the sources."""
    found: list[list[Hypothesis]] | None = None
    # The others wait for what this rank finds, even if it stops.
    with suppress(StopNow):
        found = decoder.translate(
            sources, settings, on_done=on_done, rank=ranks.rank, world=ranks.world
        )
    parts = [part for part in ranks.agree(found) if part is not None]
    if len(parts) < ranks.world:
        raise StopNow
    return [next(filter(None, of_ranks), []) for of_ranks in zip(*parts, strict=True)]


def one_line(text: str) -> str:
    """Return text as a line that a terminal prints and does not obey.

    Line ends and tabs become spaces; other control characters, of which escape sequences are made,
    become replacement characters.
    """
    return text.translate(_HARMLESS)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of one system on one test set.

    Attributes:
        bleu: corpus BLEU, 0 to 100.
        bleu_signature: how it was computed.
        bleu_detail: sacrebleu's own line, with precisions, brevity penalty and lengths.
        chrf: corpus chrF2, 0 to 100.
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
    chrf: float
    chrf_signature: str
    exact_match: float
    count: int
    note: str = ""
    num_cut: int = 0
    num_long: int = 0


def score(hypotheses: Sequence[str], references: Sequence[str], *, scoring: Scoring) -> Scores:
    """Score translations against one reference each.

    Args:
        hypotheses: one translation for each sentence.
        references: as many; used as they are.
        scoring: says which tokenizer cuts both sides into words.
    """
    bleu = BLEU(tokenize=scoring.tokenizer, force=scoring.is_tokenised)
    chrf = CHRF()
    bleu_score = bleu.corpus_score(list(hypotheses), [list(references)])
    chrf_score = chrf.corpus_score(list(hypotheses), [list(references)])
    pairs = list(zip(hypotheses, references, strict=True))
    return Scores(
        bleu=bleu_score.score,
        bleu_signature=str(bleu.get_signature()),
        bleu_detail=str(bleu_score),
        chrf=chrf_score.score,
        chrf_signature=str(chrf.get_signature()),
        exact_match=sum(a.strip() == b.strip() for a, b in pairs) / max(1, len(pairs)),
        count=len(pairs),
        note=scoring.note,
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
    config: TrainConfig,
    scoring: Scoring,
    on_done: Callable[[int], None] | None = None,
    ranks: Ranks | None = None,
) -> Evaluation:
    """Translate the source side of some pairs and score it against the target side.

    Args:
        decoder: searches.
        vocabs: of the decoder's model.
        pairs: source sentences and references.
        settings: of the search.
        config: of the run.
        scoring: how to score.
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
        max_source=longest_source(config),
        on_long=lambda number, _: long.append(number),
        on_done=on_done,
        ranks=ranks,
    )
    hypotheses = [best[0].text for best in found]
    is_joined = not scoring.is_tokenised
    references = pairs.tgt if is_joined else [join_subwords(line) for line in pairs.tgt]
    cut = [number for number, best in enumerate(found) if best[0].is_cut]
    scores = replace(
        score(hypotheses, references, scoring=scoring), num_cut=len(cut), num_long=len(long)
    )
    return Evaluation(
        hypotheses=hypotheses, references=references, cut=cut, long=long, scores=scores
    )


def longest_source(config: TrainConfig) -> int:
    """Return how many tokens of a source sentence a run's model can read."""
    return 2 * config.max_length
