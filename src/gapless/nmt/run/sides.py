"""The words of each side of a run's text, kept small: by them exchanged sides of other text are seen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gapless.checkpoint.files import replace_file
from gapless.nmt.data.corpus import have_exchanged_words
from gapless.nmt.data.directions import KnownText, are_tagged
from gapless.nmt.data.languages import matching_name, written_in
from gapless.nmt.run.trained_on import notes_of_known


if TYPE_CHECKING:
    from pathlib import Path

    from gapless.nmt.data.corpus import Corpus, Pairs
    from gapless.nmt.run.config import TrainConfig


SIDES = "sides.json"

_MOST_LOOKED_AT = 1_000


def keep_sides(run_dir: Path, train: Pairs, config: TrainConfig) -> None:
    """Keep the words of both sides of what a new run is to be trained on; of several directions, none.

    Args:
        run_dir: of the run.
        train: its training pairs, of which the first count.
        config: of the run, which names the sides.

    Raises:
        OSError: the disk is full.
    """
    if are_tagged(train.src):
        return
    source, target = KnownText.of(train.src, train.tgt, where="").words
    kept = {
        "src": config.src,
        "tgt": config.tgt,
        "source": sorted(source),
        "target": sorted(target),
    }
    replace_file(run_dir / SIDES, json.dumps(kept, ensure_ascii=False).encode())


def notes_of_sides(run_dir: Path, pairs: Pairs, config: TrainConfig) -> tuple[str, ...]:
    """Return a line if sides of one script are clearly the other way round than in a run's training text.

    Args:
        run_dir: of the run; one of an earlier version says nothing.
        pairs: to be scored or trained on.
        config: of who scores or trains on them; one that names the sides the other way round means it.
    """
    source, target = (written_in(side[:_MOST_LOOKED_AT]) for side in (pairs.src, pairs.tgt))
    # Sides that are written differently are compared with their languages.
    known = _read(run_dir, config) if config.check_columns and source == target else None
    if known is None or not have_exchanged_words(pairs, known=known):
        return ()
    return (
        f"the sides of this text seem to be exchanged: its source side has the words of the target side that "
        f"{run_dir} was trained with; exchange them, or their names in `columns`",
    )


def notes_of_earlier(run_dir: Path, corpus: Corpus, config: TrainConfig) -> tuple[str, ...]:
    """Return what is to be known of text that weights are trained on further, which had other text before.

    Args:
        run_dir: of the run that the weights are from.
        corpus: the text.
        config: of the run that is trained on it.
    """
    return (*notes_of_sides(run_dir, corpus.train, config), *notes_of_known(run_dir, corpus))


def _read(run_dir: Path, config: TrainConfig) -> KnownText | None:
    """Return what a run keeps of the same direction; None where that is nothing, or damaged.

    It decides no more than a line.
    """
    try:
        kept = json.loads((run_dir / SIDES).read_text(encoding="utf-8"))
        words = frozenset(kept["source"]), frozenset(kept["target"])
        is_reversed = matching_name(config.src, [kept["tgt"]]) is not None
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return None if is_reversed else KnownText(where=str(run_dir), words=words)
