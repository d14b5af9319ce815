"""Capture what an Accelerator has prepared, where it stands.

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    capture_prepared(accelerator)
    ...
    print(gapless.capture_report(model), gapless.capture_report(optimizer))

The loop stays as it is: `accelerator.backward`, `accumulate`, `clip_grad_norm_` and
`gather_for_metrics` are Accelerate's own.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import DistributedType, DynamoBackend

import gapless
from gapless.device.find import find_device
from gapless.errors import CaptureWarning
from gapless.graphs.in_place.captor import captor_of
from gapless.graphs.in_place.first_calls import FIRST_CALLS
from gapless.graphs.modules.module_refusals import CHECKPOINT
from gapless.integrations.announcement import announce
from gapless.integrations.attention_masks import answer_before_calls, whether_full
from gapless.integrations.batches import move_without_waits
from gapless.integrations.framework_private import let_scaler_step, prepared_by


if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from accelerate import Accelerator

    from gapless.device.base import Device


_DOES = (
    "forward and backward passes of each prepared model are CUDA graphs, one for each shape",
    "updates by SGD, and by Adam, AdamW or Adagrad with fused=True, are CUDA graphs as long as the rate stays",
    "updates by SGD, Adam and AdamW do without the Python of their step where it is another in each step",
    "batches go to the device without a wait",
)
_DOES_NOT = (
    "the loss outside of the model, clipping, schedulers, metrics and all else run as written",
    "updates by other optimizers run as written where the rate is another in each step",
    "what is not captured runs as written; gapless.capture_report(model) says why",
)


def capture_prepared(
    accelerator: Accelerator, *, device: str | torch.device | Device = "auto", quiet: bool = False
) -> None:
    """Capture the models and optimizers that an Accelerator has prepared so far.

    Call it after `prepare`, again after a further one. It writes to stderr what it does.

    Args:
        accelerator: whose `prepare` was called.
        device: where the models run, as of `gapless.capture`.
        quiet: write nothing to stderr.

    Raises:
        UserError: the device is unknown, or not there.

    Sync: Does not block the host.
    """
    found = find_device(device)
    objection = objection_to(accelerator)
    if not quiet and accelerator.is_main_process:
        tell("Accelerate", objection, found, does=_DOES, does_not=_DOES_NOT)
    if objection is not None:
        warnings.warn(CaptureWarning(f"nothing is captured: {objection}"), stacklevel=2)
        return
    move_without_waits(found, accelerator)
    models, optimizers = prepared_by(accelerator)
    for model in models:
        capture_model(model, found)
    for optimizer in optimizers:
        capture_optimizer(optimizer, found)


def tell(
    name: str,
    objection: str | None,
    device: Device,
    *,
    does: Sequence[str],
    does_not: Sequence[str],
) -> None:
    """Write to stderr what an integration does and what it does not, or why it does nothing.

    Sync: Does not block the host.
    """
    if objection is None and not device.is_accelerator:
        objection = "a CPU runs its work itself, there is nothing to launch"
    if objection is None:
        announce(name, does=does, does_not=does_not)
    else:
        announce(name, does=(), does_not=(f"anything: {objection}",))


def objection_to(accelerator: Accelerator) -> str | None:
    """Return why nothing that an Accelerator prepares is captured, None if it can be.

    Sync: Does not block the host.
    """
    kind = accelerator.distributed_type
    if kind is not DistributedType.NO:
        return f"training is distributed ({kind.value}), and its processes are not captured yet"
    if accelerator.state.dynamo_plugin.backend is not DynamoBackend.NO:
        return "the model is compiled; leave torch.compile out, or leave gapless out"
    return None


def capture_model(model: torch.nn.Module, device: Device) -> None:
    """Capture a model that was prepared.

    Sync: Does not block the host.
    """
    answer_before_calls(model)
    captor: Any = captor_of(model)
    if captor is not None and not (captor.is_called or captor.parts):
        gapless.release(model)  # it was prepared again, and stands in another block of autocast
    gapless.capture(model, device=device)
    captor = captor_of(model)
    FIRST_CALLS.wait_no_more(captor)
    captor.kind_of_call = whether_full
    captor.autocast.may_be_captured = False
    if any(getattr(part, "gradient_checkpointing", False) for part in model.modules()):
        captor.report.refuse(CHECKPOINT)


def capture_optimizer(prepared: torch.optim.Optimizer, device: Device) -> None:
    """Capture the optimizer within one that was prepared.

    Sync: Does not block the host.
    """
    inner: Any = prepared
    around = []
    while isinstance(inner, AcceleratedOptimizer):
        around.append(inner)
        inner = inner.optimizer
    gapless.capture(inner, device=device)
    for one in around:
        if one.scaler is not None:
            let_scaler_step(one)
