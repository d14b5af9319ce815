"""Translate with a trained run: what `gapless translate`, `gapless evaluate` and Python share."""

from __future__ import annotations

import math
import warnings
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gapless.device.find import find_device
from gapless.device.numerics import set_numerics
from gapless.errors import RunFolderError, TranslationWarning, UserError
from gapless.nmt.data.text_files import check_text, is_blank
from gapless.nmt.model.decode import Decoder
from gapless.nmt.model.decode_settings import DecodeSettings
from gapless.nmt.run.build import build_model
from gapless.nmt.run.out_of_memory import naming_phase
from gapless.nmt.run.stopping import StopNow
from gapless.nmt.run_folder import checkpoints
from gapless.nmt.run_folder.folder import read_config, read_model, read_vocabs
from gapless.nmt.settings.setting_groups import MOST_BEAM, MOST_PENALTY
from gapless.pipeline.host_waits import HostWaits
from gapless.ranks import SingleRank


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gapless.device.base import Device
    from gapless.nmt.data.vocab import Vocabs
    from gapless.nmt.model.decode_settings import Sampling
    from gapless.nmt.model.search import Hypothesis
    from gapless.nmt.model.transformer import Transformer
    from gapless.nmt.settings.config import TrainConfig
    from gapless.ranks import Ranks


class Translator:
    """Translates sentences with the model of a run, as `gapless translate` does.

    Making one sets the precision of this process to that of the run.

    Args:
        run: folder of the run, which need not have ended.
        device: auto, cpu, cuda or cuda:N.
        checkpoint: name in the run's checkpoints; None: final, or else best.
        average: take the mean of so many newest epoch checkpoints instead; None: do not.
        ensemble: folders of other runs, whose probabilities are averaged with this one's; of each its final, or
            else its best model. They have the vocabularies of this run.

    Attributes:
        config: settings of the run.
        max_length: the run's, or a lower one of the ensemble: what all models can read and write.
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
        ensemble: Sequence[str | Path] = (),
    ) -> None:
        with naming_phase("loading the model"):
            found = find_device(device)
            self.config, self.vocabs, model = load_model(
                Path(run), device=found, checkpoint=checkpoint, average=average
            )
            self.max_length = self.config.max_length
            others = [self._other(Path(one), model, found) for one in ensemble]
        precision = self.config.precision
        if not found.is_accelerator and precision in ("tf32", "fp16"):
            precision = "fp32"
        set_numerics(found, precision, deterministic=None)
        self._most_tokens = min(one.max_positions for one in (model, *others)) - 1
        self.decoder = Decoder(
            model,
            device=found,
            host_waits=HostWaits(found),
            precision=precision,
            others=others,
        )

    def _other(self, run: Path, first: Transformer, device: Device) -> Transformer:
        """Return another model of the ensemble."""
        config, vocabs, model = load_model(run, device=device)
        if vocabs.files() != self.vocabs.files():
            raise UserError(
                f"{run} has other vocabularies, and an ensemble needs the same ones; train it with `init_from`"
            )
        sizes, of_first = (one.sizes.d_model // one.sizes.heads for one in (model, first))
        if (sizes, model.sizes.heads) != (of_first, first.sizes.heads):
            raise UserError(
                f"{run} has {model.sizes.heads} heads of width {sizes}, and an ensemble needs those of the first "
                f"run, {first.sizes.heads} of {of_first}; leave it out"
            )
        self.max_length = min(self.max_length, config.max_length)
        return model

    @property
    def longest_source(self) -> int:
        """Tokens of a sentence beyond which it is cut."""
        return longest_source(self.max_length)

    def translate(
        self,
        sentences: Iterable[str],
        *,
        beam: int | None = None,
        batch: int | None = None,
        max_length: int | None = None,
        sampling: Sampling | None = None,
    ) -> list[str]:
        """Return the best translation of each sentence, in their order; of an empty one "".

        A translation is one line without control characters, and without spaces at its ends.

        Args:
            sentences: to translate; sentences of any length may be mixed.
            beam: hypotheses of the search, 1 is greedy; None: as the run was trained.
            batch: most sentences on the device at once; None: as many as suit their lengths.
            max_length: most tokens of a translation; None: as the run was trained.
            sampling: `gapless.nmt.Sampling`: draw a translation instead of searching the best; None: search.

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
        settings = self.settings(beam=beam, batch=batch, max_length=max_length, sampling=sampling)
        long: list[int] = []
        found = self.search(sentences, settings, on_long=lambda number, _: long.append(number))
        cut = [number for number, best in enumerate(found) if best[0].is_cut]
        if long:
            most = self.longest_source
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
        batch_tokens: int | None = None,
        n_best: int = 1,
        sampling: Sampling | None = None,
    ) -> DecodeSettings:
        """Return how to search: as asked, or else as the run was trained.

        Args:
            beam: hypotheses of the search.
            length_penalty: exponent a in score / length ** a.
            early_stopping: whether a search ends when as many as the beam have ended.
            max_length: most tokens of a translation.
            batch: most sentences on the device at once.
            batch_tokens: most tokens at once: sentences times hypotheses times source length.
            n_best: translations of each sentence.
            sampling: draw them; None: search.

        Raises:
            UserError: one of them is out of range.
        """
        config = self.config
        beam = config.beam if beam is None else beam
        counts = {"beam": beam, "batch": batch, "batch_tokens": batch_tokens, "n_best": n_best}
        for name, value in {**counts, "max_length": max_length}.items():
            _check_count(name, value)
        if sampling is not None:
            _check_sampling(sampling, n_best)
        if beam > MOST_BEAM:
            raise UserError(f"`beam` must be at most {MOST_BEAM:,}, but is {beam:,}")
        if sampling is None and n_best > beam:
            raise UserError(f"`n_best` must be 1 to the beam, which is {beam}, but is {n_best}")
        penalty = config.length_penalty if length_penalty is None else length_penalty
        if not abs(penalty) <= MOST_PENALTY:
            raise UserError(
                f"`length_penalty` must be -{MOST_PENALTY} to {MOST_PENALTY}, but is {penalty:g}"
            )
        longest = self.max_length if max_length is None else max_length
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
            sampling=sampling,
            batch_tokens=batch_tokens,
            batch_sentences=batch,
        )

    def search(
        self,
        sentences: Sequence[str],
        settings: DecodeSettings,
        *,
        first: int = 0,
        on_long: Callable[[int, int], None] | None = None,
        on_done: Callable[[int], None] | None = None,
    ) -> list[list[Translation]]:
        """Return the best translations of each sentence, at least one, in their order.

        Args:
            sentences: to translate.
            settings: of the search.
            first: sentences that came before these, in the text that samples are drawn for.
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
                max_source=self.longest_source,
                first=first,
                on_long=on_long,
                on_done=on_done,
            )


def load_model(
    run: Path, *, device: Device, checkpoint: str | None = None, average: int | None = None
) -> tuple[TrainConfig, Vocabs, Transformer]:
    """Return the settings, the vocabularies and the model of a run to translate with.

    Args:
        run: its folder.
        device: where the model goes.
        checkpoint: name in the run's checkpoints; None: final, or else best.
        average: take the mean of so many newest epoch checkpoints instead; None: do not.

    Raises:
        UserError: the folder is not a run, or the checkpoint is missing, damaged or not finite.

    Sync: Blocks the host while weights are copied.
    """
    if checkpoint is not None and average is not None:
        raise UserError("give `checkpoint` or `average`, not both")
    _check_count("average", average)
    config = read_config(run)
    if average is None:
        path = checkpoints.trained_path(run)
        if checkpoint is not None:
            path = checkpoints.checkpoint_path(run, checkpoint)
        config, vocabs, weights = read_model(path, advice="choose another with `checkpoint`")
    else:
        vocabs = read_vocabs(run, config)
        paths = checkpoints.newest_epochs(run, average, every_epoch=config.average != "auto")
        path = paths[-1]
        weights = checkpoints.average_weights(
            paths, advice="choose a whole one with `checkpoint`, without `average`"
        )
    with torch.random.fork_rng(devices=[]):
        model = build_model(config, vocabs)
    checkpoints.set_weights(model, weights, path=path)
    _check_finite(model, run)
    return config, vocabs, model.to(device.torch_device).eval()


def _check_count(name: str, value: int | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UserError(f"`{name}` must be a whole number, but is {value!r}")
    if value < 1:
        raise UserError(f"`{name}` must be at least 1, but is {value}")


def _check_sampling(sampling: Sampling, n_best: int) -> None:
    _check_count("top_k", sampling.top_k)
    if not 0 < sampling.temperature < math.inf:
        raise UserError(f"`temperature` must be above 0, but is {sampling.temperature:g}")
    if not 0 < sampling.top_p <= 1:
        raise UserError(f"`top_p` must be above 0 and at most 1, but is {sampling.top_p:g}")
    if not 0 <= sampling.seed < 2**63:
        raise UserError(f"`seed` must be 0 to 2**63 - 1, but is {sampling.seed}")
    if n_best > MOST_BEAM:
        raise UserError(f"`n_best` must be at most {MOST_BEAM:,}, but is {n_best:,}")


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


# --- lines of text ---


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
    first: int = 0,
    on_long: Callable[[int, int], None] | None = None,
    on_done: Callable[[int], None] | None = None,
    ranks: Ranks | None = None,
) -> list[list[Translation]]:
    """Return the best translations of each line, at least one, in the order of the lines.

    An empty line, and one of which nobody sees anything, stays empty. Several ranks share the work, and
    all return all translations, which are those of a process alone.

    Args:
        decoder: searches.
        vocabs: of the decoder's model.
        lines: one sentence each.
        settings: of the search.
        max_source: most tokens of a line, a longer line is cut; None: no limit.
        first: lines that came before these, in the text that samples are drawn for.
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
    ranks = SingleRank() if ranks is None else ranks
    numbers = [first + number for number in full]
    found = _search_on_all_ranks(
        decoder, sources, settings, numbers=numbers, on_done=on_done, ranks=ranks
    )
    for number, hypotheses in zip(full, found, strict=True):
        if hypotheses:
            results[number] = [
                Translation(
                    text=one_line(vocabs.tgt.decode(best.ids)).strip(),
                    score=best.score,
                    is_cut=best.is_cut,
                )
                for best in hypotheses
            ]
    return results


def _search_on_all_ranks(
    decoder: Decoder,
    sources: Sequence[Sequence[int]],
    settings: DecodeSettings,
    *,
    numbers: Sequence[int],
    on_done: Callable[[int], None] | None,
    ranks: Ranks,
) -> list[list[Hypothesis]]:
    """Return what all ranks find, in the order of the sources."""
    found: list[list[Hypothesis]] | None = None
    # A rank that stops still takes part in the agreement, or the others would wait for it forever.
    with suppress(StopNow):
        found = decoder.translate(
            sources,
            settings,
            numbers=numbers,
            on_done=on_done,
            rank=ranks.rank,
            world=ranks.world,
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


def longest_source(max_length: int) -> int:
    """Return how many tokens of a source sentence a model can read whose run had this `max_length`."""
    return 2 * max_length
