"""Scores of translations, through sacrebleu, each with its signature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF


if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of one system on one test set.

    Attributes:
        bleu: corpus BLEU, 0 to 100.
        bleu_signature: how it was computed.
        bleu_detail: sacrebleu's own line, with precisions, brevity penalty and lengths.
        chrf: corpus chrF2, 0 to 100.
        chrf_signature: how it was computed.
        exact_match: share of hypotheses equal to their reference, 0 to 1.
        count: number of sentences.
        note: what the scores may not be compared with, if anything.
    """

    bleu: float
    bleu_signature: str
    bleu_detail: str
    chrf: float
    chrf_signature: str
    exact_match: float
    count: int
    note: str = ""


def score(
    hypotheses: Sequence[str], references: Sequence[str], *, tgt_lang: str, tokenised: bool
) -> Scores:
    """Score translations against one reference each.

    Args:
        hypotheses: translations, one a sentence.
        references: as many; used as they are.
        tgt_lang: Chinese is cut into characters (`zh`), everything else by `13a`.
        tokenised: both sides are tokenised text, which is not tokenised again.
    """
    bleu = BLEU(tokenize=bleu_tokenizer(tgt_lang, tokenised=tokenised), force=tokenised)
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
        note="tokenised text, not comparable with 13a" if tokenised else "",
    )


def bleu_tokenizer(tgt_lang: str, *, tokenised: bool) -> str:
    """Return sacrebleu's tokenizer for a target language."""
    if tokenised:
        return "none"
    return "zh" if tgt_lang.rpartition(".")[2].lower().startswith("zh") else "13a"
