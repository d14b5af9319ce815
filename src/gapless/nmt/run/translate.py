"""From lines of text to lines of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.nmt.model.decode import Decoder, DecodeSettings
    from gapless.nmt.run.task import Vocabs


@dataclass(frozen=True, kw_only=True)
class Translation:
    """One translation of a sentence.

    Attributes:
        text: the translation.
        score: log probability / length ** a; 0 for an empty line.
    """

    text: str
    score: float


def translate_lines(
    decoder: Decoder,
    vocabs: Vocabs,
    lines: Sequence[str],
    settings: DecodeSettings,
    *,
    max_source: int | None = None,
    on_long: Callable[[int, int], None] | None = None,
    on_done: Callable[[int], None] | None = None,
) -> list[list[Translation]]:
    """Return the best translations of each line, in the order of the lines.

    An empty line stays empty.

    Args:
        decoder: searches.
        vocabs: of the decoder's model.
        lines: one sentence each.
        settings: of the search.
        max_source: most tokens of a line; a longer one is cut. No limit if None.
        on_long: called with the number of a line that is cut, from 0, and its length in tokens.
        on_done: called with the number of sentences finished after each batch.

    Sync: Blocks the host, counted as "decode".
    """
    full = [number for number, line in enumerate(lines) if line.strip()]
    sources = vocabs.src.encode([lines[number] for number in full])
    for at, source in enumerate(sources):
        if max_source is not None and len(source) > max_source:
            if on_long is not None:
                on_long(full[at], len(source))
            sources[at] = source[:max_source]
    results = [[Translation(text="", score=0.0)] for _ in lines]
    found = decoder.translate(sources, settings, on_done=on_done)
    for number, hypotheses in zip(full, found, strict=True):
        results[number] = [
            Translation(text=vocabs.tgt.decode(best.ids), score=best.score) for best in hypotheses
        ]
    return results
