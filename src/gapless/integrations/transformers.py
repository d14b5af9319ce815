"""Capture what a Trainer of transformers trains, evaluates and predicts with.

    trainer = capture_trainer(Trainer(...))
    trainer.train()
    print(gapless.capture_report(trainer.model), gapless.capture_report(trainer.optimizer))

A callback captures the model and the optimizer when training begins, since a Trainer makes and
wraps both only then.
"""

from __future__ import annotations

import warnings
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from transformers import PreTrainedModel, Trainer, TrainerCallback

import gapless
from gapless.device.find import find_device
from gapless.errors import CaptureWarning, UserError
from gapless.graphs.in_place.captor import captor_of
from gapless.graphs.step_call import within_a_step
from gapless.integrations import accelerate
from gapless.integrations.batches import move_without_waits
from gapless.integrations.framework_private import knows_last_log, steps_since_log
from gapless.integrations.losses import FilteredLoss


if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from gapless.device.base import Device


_TrainerT = TypeVar("_TrainerT", bound=Trainer)

_DOES = (
    "forward and backward passes of the model are CUDA graphs, one for each shape of batch",
    "updates by SGD, and by Adam, AdamW or Adagrad with fused=True, are CUDA graphs as long as the rate stays",
    "updates by SGD, Adam and AdamW do without the Python of their step where it is another in each step",
    "batches go to the device, and losses are filtered for the log, without a wait",
)
_DOES_NOT = (
    "clipping, schedulers, logging, checkpoints, metrics and callbacks run as written",
    "updates by other optimizers run as written where the rate is another in each step",
    "predict_with_generate runs as written",
    "what is not captured runs as written; gapless.capture_report(trainer.model) says why",
)

_MOST_COUNTED = 1_000


def capture_trainer(
    trainer: _TrainerT, *, device: str | torch.device | Device = "auto", quiet: bool = False
) -> _TrainerT:
    """Let a Trainer, or a Seq2SeqTrainer, train and evaluate with captured graphs.

    It gets a callback, and its `training_step`, `prediction_step` and `floating_point_ops` are
    wrapped. It writes to stderr what it does.

    Args:
        trainer: of transformers, or of a class of the user's on top of it.
        device: where the model runs, as of `gapless.capture`.
        quiet: write nothing to stderr.

    Returns:
        The very trainer. A second call changes nothing.

    Raises:
        UserError: it is no Trainer; or the device is unknown, or not there.

    Sync: Does not block the host.
    """
    if not isinstance(trainer, Trainer):
        raise UserError(
            f"capture_trainer got a {type(trainer).__qualname__}, expected a transformers.Trainer"
        )
    if any(isinstance(one, CaptureInTraining) for one in trainer.callback_handler.callbacks):
        return trainer
    found = find_device(device)
    if not quiet and trainer.is_world_process_zero():
        objection = _objection_to(trainer)
        accelerate.tell(type(trainer).__name__, objection, found, does=_DOES, does_not=_DOES_NOT)
    callback = CaptureInTraining(trainer, found)
    trainer.add_callback(callback)
    if found.is_accelerator:
        trainer.training_step = _with_filtered_loss(trainer, trainer.training_step)
    trainer.prediction_step = callback.around_prediction(trainer.prediction_step)
    if type(trainer).floating_point_ops is Trainer.floating_point_ops:
        trainer.floating_point_ops = callback.counted_once(trainer.floating_point_ops)
    return trainer


class CaptureInTraining(TrainerCallback):
    """Captures a Trainer's model and optimizer once it has prepared them.

    Args:
        trainer: the Trainer.
        device: where the model runs.
    """

    def __init__(self, trainer: Trainer, device: Device) -> None:
        self._trainer = trainer
        self._device = device
        self._model: torch.nn.Module | None = None
        self._is_told = False
        self._architectures: Any = None

    def on_train_begin(self, args: Any, *others: Any, **kwargs: Any) -> None:
        """Capture what is trained.

        Sync: Does not block the host.
        """
        self._write_configuration(is_saved=args.save_strategy != "no")
        if self._capture_model():
            assert self._trainer.optimizer is not None
            accelerate.capture_optimizer(self._trainer.optimizer, self._device)

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        """Leave the list in the model's configuration that `save_pretrained` makes anew each time.

        Graphs compare which list stands there.

        Sync: Does not block the host.
        """
        self._write_configuration(is_saved=False)

    def _write_configuration(self, *, is_saved: bool) -> None:
        """Write into the model's configuration now what its files will."""
        model = self._trainer.model
        if not isinstance(model, PreTrainedModel):
            return
        config = model.config
        if is_saved:
            config.dtype = str(model.dtype).removeprefix("torch.")
            config.architectures = config.architectures or [type(model).__name__]
        if config.architectures == self._architectures:
            config.architectures = self._architectures
        self._architectures = config.architectures

    def around_prediction(self, predict: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `prediction_step` that evaluates with captured graphs."""
        trainer = self._trainer

        @wraps(predict)
        def prediction_step(*args: Any, **kwargs: Any) -> Any:
            if getattr(trainer.args, "predict_with_generate", False):
                # A sentence that is generated has another shape with each of its tokens.
                with within_a_step():
                    return predict(*args, **kwargs)
            if self._model is not trainer.model:
                self._capture_model()
            return predict(*args, **kwargs)

        return prediction_step

    def counted_once(self, count: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `floating_point_ops` that counts the weights again after a call as written.

        To count them takes the host long, and after a replay they are those of before.
        """
        counted: dict[Any, Any] = {}

        @wraps(count)
        def floating_point_ops(inputs: Any) -> Any:
            model = self._trainer.model
            captor: Any = captor_of(model)
            counts = getattr(type(model), "num_parameters", None)
            if captor is None or counts is not PreTrainedModel.num_parameters:
                return count(inputs)
            shapes = [(name, getattr(value, "shape", None)) for name, value in inputs.items()]
            key = (captor.report.num_eager, *shapes)
            if counted.get("captor") is not captor or key not in counted:
                if counted.get("captor") is not captor or len(counted) > _MOST_COUNTED:
                    counted.clear()
                counted["captor"], counted[key] = captor, count(inputs)
            return counted[key]

        return floating_point_ops

    def _capture_model(self) -> bool:
        """Capture the Trainer's model of now; return whether that can be done."""
        trainer, model = self._trainer, self._trainer.model
        objection = _objection_to(trainer)
        if objection is not None:
            if not self._is_told:
                warnings.warn(CaptureWarning(f"nothing is captured: {objection}"), stacklevel=2)
            self._is_told = True
            return False
        if self._model is not model:
            if self._model is not None:
                gapless.release(self._model)  # that of an earlier trial
            self._model = model
            move_without_waits(self._device, trainer)
        accelerate.capture_model(model, self._device)
        return True


def _objection_to(trainer: Trainer) -> str | None:
    objection = accelerate.objection_to(trainer.accelerator)
    if objection is not None:
        return objection
    wrapped = trainer.model_wrapped
    if wrapped is not trainer.model:
        return f"the model stands in a {type(wrapped).__name__}"
    if trainer.args.n_gpu > 1:
        return f"the model is spread over {trainer.args.n_gpu} GPUs; show it one of them"
    return None


def _with_filtered_loss(trainer: Trainer, step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `training_step` whose loss need not be read to be filtered."""

    def num_steps() -> int:
        return steps_since_log(trainer) + 1

    @wraps(step)
    def training_step(*args: Any, **kwargs: Any) -> Any:
        loss = step(*args, **kwargs)
        if not (trainer.args.logging_nan_inf_filter and knows_last_log(trainer)):
            return loss
        return FilteredLoss.of(loss, num_steps)

    return training_step
