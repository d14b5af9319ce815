"""Write the model of a run for another program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.checkpoint.files import naming, remove_tree, temporary_path
from gapless.device.find import find_device
from gapless.errors import UserError
from gapless.nmt.exchange.ctranslate2_model import write_ctranslate2
from gapless.nmt.exchange.hugging_face import write_hugging_face
from gapless.nmt.run.translator import load_model


if TYPE_CHECKING:
    from pathlib import Path


def export_run(
    run: Path,
    out: Path,
    *,
    form: str,
    checkpoint: str | None = None,
    average: int | None = None,
) -> None:
    """Write a run's model into a folder, whole or not at all.

    Args:
        run: folder of the run.
        out: folder to write, new or empty.
        form: ctranslate2, huggingface or marian.
        checkpoint: name in the run's checkpoints; None: final, or else best.
        average: take the mean of so many newest epoch checkpoints instead; None: do not.

    Raises:
        UserError: the run cannot be read, its model has no such form, a package is missing, or the
            folder holds something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} holds something already; name a new folder to export to")
    config, vocabs, model = load_model(
        run, device=find_device("cpu"), checkpoint=checkpoint, average=average
    )
    unfinished = temporary_path(out.absolute())
    remove_tree(unfinished)
    try:
        with naming(out):
            unfinished.mkdir(parents=True)
        if form == "ctranslate2":
            write_ctranslate2(model, vocabs, unfinished)
        else:
            write_hugging_face(model, vocabs, config, unfinished, is_marian=form == "marian")
        unfinished.replace(out)
    finally:
        remove_tree(unfinished)
