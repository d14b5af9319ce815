"""The settings of a training run by what they are of: flag, key of `config.yaml` and field have one name.

Importing this file must load neither torch nor yaml: the command line imports it for its help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

from gapless.device.precision import Precision
from gapless.errors import UserError
from gapless.nmt.settings.data_settings import check_path
from gapless.nmt.settings.interval import Interval, seconds_of
from gapless.nmt.settings.setting import MOST, setting
from gapless.plans import Plan, get_plan


# Epochs that `average="auto"` averages.
_AUTO_AVERAGE = 5

_MAX_SEED = 2**63 - 1

# Powers of a length beyond these overflow.
MOST_PENALTY = 10

# Hypotheses of every sentence of a batch lie in memory together.
MOST_BEAM = 1024


def _check_lr(value: float, *, name: str) -> None:
    if value == 0:
        raise UserError(f"`{name}` must be above 0, but is 0: no weight would change")


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """How the loop moves its work."""

    TITLE: ClassVar = "plan"

    plan: str = setting("auto", "how the loop moves its work; see gapless plans")
    streams: int | None = setting(None, "number of streams, 1 to 8")
    sync_interval: int | None = setting(None, "batches between two host waits")
    loss_interval: int | None = setting(None, "batches between two reads of the losses")
    prefetch: int | None = setting(None, "batches moved to the device ahead of their use")
    workers: int | None = setting(None, "processes that make batches")
    pin_memory: bool | None = setting(None, "stage batches in page-locked memory")
    run_ahead: int | None = setting(None, "most batches the host may be ahead of the device")
    capture_memory: float | None = setting(
        None,
        "GiB of device memory above which no more shapes are captured; none: 80 % of it",
        at_least=0.0,
        at_most=float(MOST),
    )

    def resolved_plan(self) -> Plan:
        """Return the plan with this run's knobs.

        Raises:
            PlanError: the plan is unknown, or a knob is out of range.
        """
        return get_plan(self.plan).with_knobs(
            streams=self.streams,
            sync_interval=self.sync_interval,
            loss_interval=self.loss_interval,
            prefetch=self.prefetch,
            workers=self.workers,
            pin_memory=self.pin_memory,
            run_ahead=self.run_ahead,
        )

    def capture_memory_bytes(self) -> int | None:
        """Return the budget for captures in bytes, None if it is not set."""
        return None if self.capture_memory is None else int(self.capture_memory * 2**30)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How long a run is, when it validates and saves, and where its files are."""

    TITLE: ClassVar = "run"

    epochs: int = setting(40, "passes over the training pairs", at_least=1)
    max_steps: int | None = setting(None, "stop after so many updates", at_least=1)
    max_time: str | None = setting(
        None,
        "end about this time (90s, 10min, 2h), final model and scores included",
        form=seconds_of,
    )
    patience: int = setting(
        0, "stop after so many validations without a better BLEU or loss; 0: never", at_least=0
    )
    seed: int = setting(
        1, "of weights, dropout and the order of batches", at_least=0, at_most=_MAX_SEED
    )
    deterministic: bool = setting(False, "equal runs give equal bits; a little slower")
    run_dir: str | None = setting(
        None, "run folder; none: runs/train, runs/train2, ...", form=check_path
    )
    track: str | None = setting(
        None, "a tracker that gets the figures too: wandb", choices=("wandb",)
    )
    on_nonfinite: str = setting(
        "stop",
        "when a loss is NaN or infinite: stop, or skip that update",
        choices=("stop", "skip"),
    )
    save_every: str = setting(
        "10min",
        "updates (200) or time (30s, 10min, 2h) between two saved states; one after epochs that are validated too",
        form=Interval.of,
    )
    keep: int = setting(3, "newest saved states that are kept", at_least=1)
    grace: float = setting(
        20.0,
        "seconds in which a run that is asked to stop ends the update and saves",
        at_least=0.0,
    )
    loader_timeout: float = setting(
        300.0,
        "seconds to wait for a batch before the loader's workers count as stuck",
        at_least=0.1,
    )
    val_interval: int = setting(1, "epochs between two validations", at_least=1)
    validate_every: str | None = setting(
        None,
        "updates (500) or time (10min) between two validations; none: val-interval epochs",
        form=Interval.of,
    )

    def validation_interval(self) -> Interval | None:
        """Return what is between two validations; None: `val_interval` epochs.

        Raises:
            UserError: `validate_every` names no interval.
        """
        if self.validate_every is None:
            return None
        return Interval.of(self.validate_every, name="validate_every")


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """What a batch is, and how many of them are an update."""

    TITLE: ClassVar = "batches"

    batch_size: int | None = setting(None, "most sentences in a batch", at_least=1)
    batch_tokens: int | None = setting(
        None, "most tokens in a batch, padding included", at_least=1
    )
    pack: bool | None = setting(
        None,
        "pack sentences one after the other, without padding; none: with batch-tokens on a GPU, "
        "if Triton can build kernels, heads are 16, 32, 64 or 128 wide and attention-dropout is 0",
    )
    fixed_shapes: bool | None = setting(
        None, "pad batches to few shapes; none: if the plan may capture the step"
    )
    one_shape: bool | None = setting(
        None, "updates have batches of one shape; none: with several GPUs, where shapes are fixed"
    )
    accumulate: int | str = setting(
        1,
        "batches of each GPU in one update of the weights; auto: as many as keep the update, "
        "whatever the number of GPUs",
        at_least=1,
        auto="batches",
    )

    @property
    def num_accumulated(self) -> int:
        """How many batches of this process are in an update.

        Raises:
            UserError: it is `auto`, and nobody has decided it.
        """
        if isinstance(self.accumulate, str):
            raise UserError(
                "`accumulate` is auto, which only `gapless train` decides, expected a number"
            )
        return self.accumulate


@dataclass(frozen=True, kw_only=True)
class DeviceSettings:
    """Where a run computes, and how precisely."""

    TITLE: ClassVar = "device"

    compile: bool | None = setting(
        None, "compile the model's layers; none: if the plan may capture the step"
    )
    precision: str = setting("fp32", "fp32, tf32, bf16 or fp16", choices=get_args(Precision))
    device: str = setting("auto", "auto, cpu, cuda or cuda:N")


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The sizes of the model, and the weights that it starts with."""

    TITLE: ClassVar = "model"

    init_from: str | None = setting(
        None,
        "run folder, or folder of a Marian model, whose vocabularies and weights to start with",
    )
    d_model: int = setting(512, "width of the model", at_least=2, at_most=MOST)
    heads: int = setting(8, "attention heads", at_least=1, at_most=MOST)
    ffn: int = setting(2048, "inner width of the feed-forward layers", at_least=1, at_most=MOST)
    encoder_layers: int = setting(6, "encoder layers", at_least=1, at_most=MOST)
    decoder_layers: int = setting(6, "decoder layers", at_least=1, at_most=MOST)
    norm: str = setting(
        "pre", "layer norm before (pre) or after (post) each sub-layer", choices=("pre", "post")
    )
    share: str = setting(
        "decoder",
        "share embeddings: all, decoder (target and output), none",
        choices=("all", "decoder", "none"),
    )
    activation: str = setting(
        "relu", "of the feed-forward layers: relu, swish, gelu", choices=("relu", "swish", "gelu")
    )
    output_bias: bool = setting(False, "add a bias to the output layer")
    dropout: float = setting(0.1, "on embeddings and sub-layers", at_least=0.0, below=1.0)
    attention_dropout: float = setting(0.0, "on attention weights", at_least=0.0, below=1.0)


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """The loss, the optimizer and its learning rate."""

    TITLE: ClassVar = "optimizer and schedule"

    label_smoothing: float = setting(
        0.1, "share of probability spread over the vocabulary", at_least=0.0, below=1.0
    )
    lr: float = setting(7e-4, "highest learning rate", at_least=0.0, at_most=1e30, form=_check_lr)
    warmup: int = setting(4000, "updates until the highest learning rate", at_least=0)
    schedule: str = setting(
        "inverse-sqrt",
        "after the warm-up: inverse-sqrt, cosine, constant",
        choices=("inverse-sqrt", "cosine", "constant"),
    )
    clip_norm: float = setting(1.0, "longest gradient; 0: no limit", at_least=0.0)
    weight_decay: float = setting(0.0, "of AdamW; 0 is Adam", at_least=0.0)


@dataclass(frozen=True, kw_only=True)
class DecodingSettings:
    """The final model, and how it translates."""

    TITLE: ClassVar = "decoding"

    average: int | str = setting(
        "auto",
        "newest epochs whose weights are averaged into the final model; auto: that of 5, or the last "
        "or best weights, whichever translates the validation pairs best, by more than luck",
        at_least=1,
        auto="epochs",
    )
    beam: int = setting(5, "hypotheses of the final decoding", at_least=1, at_most=MOST_BEAM)
    length_penalty: float = setting(
        1.0, "exponent a in score / length ** a", at_least=-MOST_PENALTY, at_most=MOST_PENALTY
    )
    early_stopping: bool = setting(False, "end a search when as many as the beam have ended")

    @property
    def num_averaged(self) -> int:
        """How many epochs are averaged."""
        return _AUTO_AVERAGE if isinstance(self.average, str) else self.average
