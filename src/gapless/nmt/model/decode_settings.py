"""How translations are searched or drawn."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Translations are drawn at random instead of searched.

    The same seed draws the same for a sentence at the same place of the input, however that comes in
    parts and batches, up to the rounding of scores.

    Attributes:
        temperature: scores are divided by it; below 1 likely tokens become likelier.
        top_k: draw among so many likeliest tokens; None: among all.
        top_p: draw among the fewest likeliest tokens whose probabilities reach this sum.
        seed: of the random numbers.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class DecodeSettings:
    """How translations are searched.

    Attributes:
        beam: hypotheses kept; 1 is greedy search.
        length_penalty: exponent a in score / length ** a, the end mark counted.
        max_length: most tokens of a translation, the end mark not counted.
        early_stopping: a sentence is done as soon as `beam` hypotheses have ended, as in
            fairseq. Otherwise it is done when no hypothesis alive scores better than the worst of
            those.
        n_best: translations returned for each sentence, at most `beam`; or samples of each.
        sampling: draw instead of searching; then there is no beam. None: search.
        batch_tokens: budget of a batch: sentences times beam times source length; None: as suits
            the device.
        batch_sentences: most sentences of a batch; None: as many as the budget allows.
    """

    beam: int = 5
    length_penalty: float = 1.0
    max_length: int = 200
    early_stopping: bool = False
    n_best: int = 1
    sampling: Sampling | None = None
    batch_tokens: int | None = None
    batch_sentences: int | None = None

    @property
    def hypotheses(self) -> int:
        """Hypotheses of a sentence that are kept at a time."""
        return self.beam if self.sampling is None else self.n_best
