"""One training step of translation: forward, backward, update. It does not block the host."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gapless.device.numerics import autocast
from gapless.device.torch_private import GROWTH_TRACKER, scaler_state
from gapless.nmt.data.batch import AnyBatch, Batch, PackedBatch
from gapless.nmt.model.loss import LabelSmoothing, LossCompute
from gapless.nmt.run.nonfinite import SkippedUpdates
from gapless.pipeline.step import StepLoss
from gapless.ranks import SingleRank


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from gapless.device.base import Device
    from gapless.loop.train_loop import TrainLoop
    from gapless.nmt.model.transformer import Transformer
    from gapless.nmt.settings.config import TrainConfig
    from gapless.pipeline.host_waits import HostWaits
    from gapless.ranks import Ranks


@dataclass(frozen=True, kw_only=True)
class TranslationLoss(StepLoss):
    """The loss of a batch of translations.

    Attributes:
        ends_update: whether the batch is the last of its update.
    """

    ends_update: bool


class TranslationStep:
    """Train a model on batches of token ids.

    Args:
        model: on the device.
        config: of the run.
        device: where the model is.
        total_updates: of the run, for schedules that end.
        ranks: whose gradients are summed; None: this process trains alone.

    Attributes:
        optimizer: fused Adam, which skips fp16 overflows on the device.
        scaler: of gradients, in use with fp16 only.
        num_updates: updates made so far.
        changes_no_other_objects: so that it may run ahead of a run.
    """

    changes_no_other_objects = True

    def __init__(
        self,
        model: Transformer,
        config: TrainConfig,
        *,
        device: Device,
        total_updates: int,
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model
        self._config = config
        self._device = device
        self._total_updates = total_updates
        self._ranks = SingleRank() if ranks is None else ranks
        self._is_alone = self._ranks.world == 1
        self._gradients = self._ranks.sum_gradients(model.parameters())
        # A graph that adds to the gradients of earlier batches needs them at the same addresses.
        self._keeps_gradients = config.accumulate != 1
        self._compute = LossCompute(model.generator, LabelSmoothing(config.label_smoothing))
        self._nll = LossCompute(model.generator, LabelSmoothing())
        # On the device: a graph reads the rate of each update from this address.
        self._rate = device.device_buffer(4).view(torch.float32)[0].fill_(config.lr)
        # Fused: with a scaler, the step that is not fused reads a flag of the device.
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=self._rate,
            betas=(0.9, 0.98),
            eps=1e-8,
            weight_decay=config.weight_decay,
            fused=True,
            capturable=device.is_accelerator,
        )
        self.scaler = torch.amp.GradScaler(
            device.torch_device.type, enabled=config.precision == "fp16"
        )
        self.num_updates = 0
        self._sizes: tuple[torch.Size, ...] = ()
        self._skipped = SkippedUpdates(device) if config.on_nonfinite == "skip" else None
        if self._skipped is not None and not self.scaler.is_enabled():
            self.optimizer.found_inf = self._skipped.found  # type: ignore[attr-defined]

    def learning_rate(self) -> float:
        """Return the rate of the next update."""
        return learning_rate(
            self.num_updates + 1,
            peak=self._config.lr,
            warmup=self._config.warmup,
            schedule=self._config.schedule,
            total=self._total_updates,
        )

    def shape(self) -> str:
        """Return the size of the batch under way, for people; empty if there was none."""
        if not self._sizes:
            return ""
        sides = [" x ".join(map(str, size)) for size in self._sizes]
        return f"{sides[0]} source and {sides[1]} target tokens"

    def on_host(self, tokens: AnyBatch) -> None:
        """Count the update that a batch ends, and set its learning rate.

        The loop calls it before each batch, whether the step runs eagerly or is replayed.

        Sync: Does not block the host.
        """
        self._sizes = sizes_of(tokens)
        if tokens.ends_update:
            self._rate.fill_(self.learning_rate())
            self.num_updates += 1

    def forward(self, tokens: AnyBatch) -> TranslationLoss:
        """Return the loss of a batch, smoothed, per token.

        The gradient is that of the sum over the batch divided by the tokens of the whole update,
        those of other ranks included. A batch of padding alone has loss 0 and weight 0.

        Sync: Does not block the host.
        """
        with autocast(self._device, self._config.precision):
            out, targets = self._out_and_targets(tokens)
            loss = self._compute.normalized(out, targets, tokens.norm)
        weight = tokens.ntokens
        # A batch that only fills up an update of several ranks has no tokens: divided by 0, its loss would be NaN.
        divisor = weight if self._is_alone else weight.clamp(min=1)
        report = loss.detach() * (tokens.norm / divisor)
        if self._skipped is not None:
            self._skipped.look_at(loss)
            # An update that is skipped would make the mean of the epoch NaN.
            weight = torch.where(report.isfinite(), weight, torch.zeros_like(weight))
        return TranslationLoss(
            loss=loss, logged=report, weight=weight, ends_update=tokens.ends_update
        )

    def backward(self, out: TranslationLoss) -> None:
        """Add the gradients of a batch, and update the weights after the last of an update.

        Sync: Does not block the host, but on several ranks in the first update.
        """
        self.scaler.scale(out.loss).backward()
        if out.ends_update:
            self._gradients.finish()
            if self._skipped is not None:
                self._skipped.of_all(self._ranks)
            self._update()

    def evaluate(self, tokens: AnyBatch) -> torch.Tensor:
        """Return the negative log likelihood per token of a batch, not smoothed.

        Sync: Does not block the host.
        """
        self._sizes = sizes_of(tokens)
        with torch.no_grad(), autocast(self._device, self._config.precision):
            out, targets = self._out_and_targets(tokens)
            return self._nll.normalized(out, targets, tokens.ntokens)

    def _out_and_targets(self, tokens: AnyBatch) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(tokens, PackedBatch):
            return self.model.forward_packed(tokens), tokens.trg_y
        batch = Batch.from_tokens(tokens.src, tokens.tgt, tokens.ntokens)
        return self.model(batch.src, batch.trg, batch.src_mask, batch.trg_mask), batch.trg_y

    def _update(self) -> None:
        if self._config.clip_norm:
            self.scaler.unscale_(self.optimizer)
            norm = torch.nn.utils.clip_grad_norm_(
                self.model.parameters(), self._config.clip_norm, foreach=True
            )
            # A scaler provokes infinite gradients and skips them itself: counted here, they would end the run.
            if self._skipped is not None and not self.scaler.is_enabled():
                self._skipped.look_at(norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self._skipped is not None:
            self._skipped.end_update()
        self.optimizer.zero_grad(set_to_none=not self._keeps_gradients)

    def note_size(self, tokens: AnyBatch) -> None:
        """Let `shape` tell the size of a batch that is captured ahead."""
        self._sizes = sizes_of(tokens)

    def capture_ahead(
        self,
        loop: TrainLoop,
        batches: Sequence[AnyBatch],
        *,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        """Capture this step for the shapes of some batches; nothing is trained, and nothing counts.

        Args:
            loop: that captures.
            batches: one of each shape.
            on_batch: called with the number of batches done.

        Sync: Blocks the host.
        """
        with loop.on_compute_stream(), self.uncounted():
            loop.capture_ahead(
                batches,
                self,
                model=self.model,
                optimizer=self.optimizer,
                scaler=self.scaler if self.scaler.is_enabled() else None,
                on_batch=on_batch,
            )

    def uncounted(self) -> AbstractContextManager[None]:
        """Let updates of a `with` body, which are undone, not count as skipped.

        Sync: Does not block the host.
        """
        return nullcontext() if self._skipped is None else self._skipped.uncounted()

    def num_skipped(self, *, host_waits: HostWaits) -> int:
        """Return how many updates were skipped because a loss was not finite.

        Sync: Blocks the host until the queued updates are done, if the run skips any.
        """
        if self._skipped is None:
            return 0
        with host_waits.blocking("skipped_updates"):
            return int(self._skipped.count)

    def state(self) -> dict[str, object]:
        """Return what a run needs, besides the weights, to be resumed exactly.

        Sync: Does not block the host: what is on the device stays there.
        """
        return {
            "optimizer": self.optimizer.state_dict(),
            "scaler": scaler_state(self.scaler),
            "num_updates": self.num_updates,
            "skipped": None if self._skipped is None else self._skipped.count,
        }

    def load_state(self, state: dict[str, object]) -> None:
        """Take up a state that `state` returned."""
        self.optimizer.load_state_dict(state["optimizer"])  # type: ignore[arg-type]
        for group in self.optimizer.param_groups:
            # Of this device; the saved run may have run on another.
            group["lr"], group["capturable"] = self._rate, self._device.is_accelerator
        scaler: dict[str, float] = state["scaler"]  # type: ignore[assignment]
        if self.scaler.is_enabled() and scaler:
            numbers = {
                "scale": float(scaler["scale"]),
                GROWTH_TRACKER: int(scaler[GROWTH_TRACKER]),
            }
            self.scaler.load_state_dict({**scaler, **numbers})
        self.num_updates = int(state["num_updates"])  # type: ignore[call-overload]
        skipped = state.get("skipped")
        if self._skipped is not None and isinstance(skipped, torch.Tensor):
            self._skipped.count.copy_(skipped)


def sizes_of(tokens: AnyBatch) -> tuple[torch.Size, torch.Size]:
    """Return the shapes of both sides of a batch."""
    if isinstance(tokens, PackedBatch):
        return torch.Size((tokens.src_tokens,)), torch.Size((tokens.tgt_tokens,))
    return tokens.src.shape, tokens.tgt.shape


# --- the learning rate ---


def learning_rate(
    update: int, *, peak: float, warmup: int, schedule: str, total: int | None = None
) -> float:
    """Return the learning rate of an update.

    Rises linearly from 1e-7 to `peak` over `warmup` updates, then falls.

    Args:
        update: counted from 1.
        peak: the highest rate.
        warmup: updates until the peak.
        schedule: `inverse-sqrt` falls as 1/sqrt(update), as in Vaswani et al. 2017, section 5.3;
            `cosine` falls to 0 at `total` (Loshchilov and Hutter 2017, equation 5); `constant`
            stays.
        total: number of updates of the run, needed by `cosine`.
    """
    if update < warmup:
        return 1e-7 + (peak - 1e-7) * update / warmup
    if schedule == "inverse-sqrt":
        return peak * math.sqrt(max(warmup, 1) / update)
    if schedule == "cosine" and total is not None:
        done = min(1.0, (update - warmup) / max(1, total - warmup))
        return peak * 0.5 * (1.0 + math.cos(math.pi * done))
    return peak
