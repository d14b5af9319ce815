"""A trained model, ready to decode: what `translate` and `evaluate` share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.device.find import find_device
from gapless.device.numerics import set_numerics
from gapless.errors import RunFolderError, UserError
from gapless.nmt.model.decode import Decoder, DecodeSettings
from gapless.nmt.run import checkpoints
from gapless.nmt.run.build import load_model
from gapless.pipeline.host_waits import HostWaits


if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from gapless.nmt.model.transformer import Transformer
    from gapless.nmt.run.config import TrainConfig
    from gapless.nmt.run.task import Vocabs


# Powers of a length beyond these overflow.
_MOST_PENALTY = 10


def decode_settings(config: TrainConfig, options: Namespace, *, n_best: int = 1) -> DecodeSettings:
    """Return how to search: as asked, or else as the run was trained.

    Raises:
        UserError: more translations are asked for than the beam holds, or scores would overflow.
    """
    beam = options.beam or config.beam
    penalty, early = options.length_penalty, options.early_stopping
    if not 1 <= n_best <= beam:
        raise UserError(f"--n-best must be 1 to the beam, which is {beam}, but is {n_best}")
    penalty = config.length_penalty if penalty is None else penalty
    if abs(penalty) > _MOST_PENALTY:
        raise UserError(
            f"--length-penalty must be -{_MOST_PENALTY} to {_MOST_PENALTY}, but is {penalty:g}"
        )
    return DecodeSettings(
        beam=beam,
        length_penalty=penalty,
        early_stopping=config.early_stopping if early is None else early,
        max_length=config.max_length,
        n_best=n_best,
    )


@dataclass(frozen=True, kw_only=True)
class LoadedRun:
    """A run's model, ready to decode."""

    config: TrainConfig
    vocabs: Vocabs
    decoder: Decoder


def load_for_decoding(options: Namespace) -> LoadedRun:
    """Return the model of the run that the options name.

    Raises:
        UserError: the folder is not a run, the checkpoint is missing, or the device is absent.

    Sync: Blocks the host while weights are copied.
    """
    run, average, checkpoint = options.run, options.average, options.checkpoint
    if checkpoint is not None and average is not None:
        raise UserError("give --checkpoint or --average, not both")
    found = find_device(options.device)
    config, vocabs, model = load_model(
        run, device=found, checkpoint=None if average else checkpoint or _newest(run)
    )
    if average is not None:
        paths = checkpoints.newest_epochs(run, average)
        weights = checkpoints.average_weights(paths)
        checkpoints.set_weights(model, weights, path=paths[-1])
    _check_finite(model, run)
    precision = config.precision
    if not found.is_accelerator and precision in ("tf32", "fp16"):
        precision = "fp32"
    set_numerics(found, precision, deterministic=False)
    decoder = Decoder(model, device=found, host_waits=HostWaits(found), precision=precision)
    return LoadedRun(config=config, vocabs=vocabs, decoder=decoder)


def _check_finite(model: Transformer, run: Path) -> None:
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise RunFolderError(
                f"the weights of {run} are not finite: {name} holds NaN or infinite numbers; "
                "choose another --checkpoint, or train again with a lower learning rate"
            )


def _newest(run: Path) -> str:
    """Return the final checkpoint's name, or the best one's while the run is unfinished."""
    is_final = checkpoints.final_path(run).exists()
    return checkpoints.FINAL if is_final else checkpoints.BEST
