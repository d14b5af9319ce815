"""Translate with a trained run: what `gapless translate`, `gapless evaluate` and Python share."""

from __future__ import annotations

import warnings
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.device.find import find_device
from gapless.device.numerics import set_numerics
from gapless.errors import RunFolderError, TranslationWarning, UserError
from gapless.nmt.data.text_files import check_text
from gapless.nmt.model.decode import Decoder, DecodeSettings
from gapless.nmt.run import checkpoints
from gapless.nmt.run.build import load_model
from gapless.nmt.run.config import MOST_BEAM, MOST_PENALTY
from gapless.nmt.run.out_of_memory import naming_phase
from gapless.nmt.run.score import longest_source, translate_lines
from gapless.pipeline.host_waits import HostWaits


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gapless.nmt.model.transformer import Transformer
    from gapless.nmt.run.score import Translation


class Translator:
    """Translates sentences with the model of a run, as `gapless translate` does.

    Making one sets the precision of this process to that of the run.

    Args:
        run: folder of the run, which need not have ended.
        device: auto, cpu, cuda or cuda:N.
        checkpoint: name in the run's checkpoints; None: final, or else best.
        average: take the mean of so many newest epoch checkpoints instead; None: do not.

    Attributes:
        config: settings of the run.
        vocabs: of both sides.
        decoder: searches for translations, as token ids.

    Raises:
        UserError: the folder is not a run, the checkpoint is missing, damaged or not finite, or the
            device is absent.
        OutOfMemoryError: memory is short.

    Sync: Blocks the host while weights are copied.
    """

    def __init__(
        self,
        run: str | Path,
        *,
        device: str = "auto",
        checkpoint: str | None = None,
        average: int | None = None,
    ) -> None:
        if checkpoint is not None and average is not None:
            raise UserError("give `checkpoint` or `average`, not both")
        _check_count("average", average)
        path = Path(run)
        with naming_phase("loading the model"):
            found = find_device(device)
            self.config, self.vocabs, model = load_model(
                path, device=found, checkpoint=None if average else checkpoint or _newest(path)
            )
            if average is not None:
                every_epoch = self.config.average != "auto"
                paths = checkpoints.newest_epochs(path, average, every_epoch=every_epoch)
                weights = checkpoints.average_weights(
                    paths, advice="choose a whole one with `checkpoint`, without `average`"
                )
                checkpoints.set_weights(model, weights, path=paths[-1])
            _check_finite(model, path)
        precision = self.config.precision
        if not found.is_accelerator and precision in ("tf32", "fp16"):
            precision = "fp32"
        set_numerics(found, precision, deterministic=None)
        self._most_tokens = model.max_positions - 1
        self.decoder = Decoder(
            model, device=found, host_waits=HostWaits(found), precision=precision
        )

    def translate(
        self,
        sentences: Iterable[str],
        *,
        beam: int | None = None,
        batch: int | None = None,
        max_length: int | None = None,
    ) -> list[str]:
        """Return the best translation of each sentence, in their order; of an empty one "".

        A translation is one line without control characters.

        Args:
            sentences: to translate; sentences of any length may be mixed.
            beam: hypotheses of the search, 1 is greedy; None: as the run was trained.
            batch: most sentences on the device at once; None: as many as suit their lengths.
            max_length: most tokens of a translation; None: as the run was trained.

        Raises:
            TypeError: the sentences are one string, or hold something else than strings.
            UserError: an option is out of range, or a sentence is not Unicode text.
            OutOfMemoryError: memory is short.

        Warns:
            TranslationWarning: a sentence was too long and the rest of it is not translated, or
                translations were cut at `max_length`.

        Sync: Blocks the host until all are translated.
        """
        if isinstance(sentences, str):
            raise TypeError("`sentences` must be a list of str, but is one str; write [sentence]")
        sentences = list(sentences)
        for number, sentence in enumerate(sentences):
            if not isinstance(sentence, str):
                kind = type(sentence).__name__
                raise TypeError(f"`sentences` must hold str, but sentence {number} is {kind}")
            check_text(sentence, where=f"sentence {number}")
        settings = self.settings(beam=beam, batch=batch, max_length=max_length)
        long: list[int] = []
        found = self.search(sentences, settings, on_long=lambda number, _: long.append(number))
        cut = [number for number, best in enumerate(found) if best[0].is_cut]
        if long:
            most = longest_source(self.config)
            _warn(f"{_these(long)} more than {most} tokens; the rest is not translated")
        if cut:
            most = settings.max_length
            _warn(f"{_these(cut)} translations that were cut at {most} tokens, `max_length`")
        return [best[0].text for best in found]

    def settings(
        self,
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        early_stopping: bool | None = None,
        max_length: int | None = None,
        batch: int | None = None,
        n_best: int = 1,
    ) -> DecodeSettings:
        """Return how to search: as asked, or else as the run was trained.

        Args:
            beam: hypotheses of the search.
            length_penalty: exponent a in score / length ** a.
            early_stopping: whether a search ends when as many as the beam have ended.
            max_length: most tokens of a translation.
            batch: most sentences on the device at once.
            n_best: translations of each sentence.

        Raises:
            UserError: one of them is out of range.
        """
        config = self.config
        beam = config.beam if beam is None else beam
        for name, value in (("beam", beam), ("batch", batch), ("max_length", max_length)):
            _check_count(name, value)
        if beam > MOST_BEAM:
            raise UserError(f"`beam` must be at most {MOST_BEAM:,}, but is {beam:,}")
        if not 1 <= n_best <= beam:
            raise UserError(f"`n_best` must be 1 to the beam, which is {beam}, but is {n_best}")
        penalty = config.length_penalty if length_penalty is None else length_penalty
        if not abs(penalty) <= MOST_PENALTY:
            raise UserError(
                f"`length_penalty` must be -{MOST_PENALTY} to {MOST_PENALTY}, but is {penalty:g}"
            )
        longest = config.max_length if max_length is None else max_length
        if not 1 <= longest <= self._most_tokens:
            raise UserError(
                f"`max_length` must be 1 to {self._most_tokens}, the positions of this model, but "
                f"is {longest}"
            )
        return DecodeSettings(
            beam=beam,
            length_penalty=penalty,
            early_stopping=config.early_stopping if early_stopping is None else early_stopping,
            max_length=longest,
            n_best=n_best,
            batch_sentences=batch,
        )

    def search(
        self,
        sentences: Sequence[str],
        settings: DecodeSettings,
        *,
        on_long: Callable[[int, int], None] | None = None,
        on_done: Callable[[int], None] | None = None,
    ) -> list[list[Translation]]:
        """Return the best translations of each sentence, at least one, in their order.

        Args:
            sentences: to translate.
            settings: of the search.
            on_long: called with the number of a sentence that is too long for the model, counted
                from 0, and its length in tokens; the rest of it is not translated.
            on_done: called with the number of sentences finished after each batch.

        Raises:
            OutOfMemoryError: memory is short.

        Sync: Blocks the host until all are translated.
        """
        with naming_phase("translating", lower="`batch` or `beam`"):
            return translate_lines(
                self.decoder,
                self.vocabs,
                sentences,
                settings,
                max_source=longest_source(self.config),
                on_long=on_long,
                on_done=on_done,
            )


def _check_count(name: str, value: int | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UserError(f"`{name}` must be a whole number, but is {value!r}")
    if value < 1:
        raise UserError(f"`{name}` must be at least 1, but is {value}")


def _warn(text: str) -> None:
    warnings.warn(text, TranslationWarning, stacklevel=3)


def _these(numbers: list[int]) -> str:
    """Return which sentences have something, counted from 0."""
    if len(numbers) == 1:
        return f"sentence {numbers[0]} has"
    named = ", ".join(map(str, numbers[:5]))
    return f"{len(numbers)} sentences, {named}{', ...' if len(numbers) > 5 else ''}, have"


def _check_finite(model: Transformer, run: Path) -> None:
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise RunFolderError(
                f"the weights of {run} are not finite: {name} holds NaN or infinite numbers; "
                "choose another `checkpoint`, or train again with a lower learning rate"
            )


def _newest(run: Path) -> str:
    """Return the final checkpoint's name, or the best one's while the run is unfinished."""
    is_final = checkpoints.final_path(run).exists()
    return checkpoints.FINAL if is_final else checkpoints.BEST
