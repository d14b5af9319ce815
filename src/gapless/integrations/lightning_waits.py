"""What Lightning waits for in every step, done without a wait: the progress bar's numbers, and batches.

Lightning reads what `self.log(prog_bar=True)` logs from the device after every batch, and once more where the
bar asks for it. Here the bar gets the newest numbers that have arrived, and those of the last batch of an
epoch exactly. Whoever else asks the trainer for its progress bar's metrics gets those of the step, with the
wait.
"""

from __future__ import annotations

from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from gapless.pipeline.batch_mover import BatchMover
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.losses.deferred_loss import DeferredLoss
from gapless.pipeline.transfer import shared_lane


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless.device.base import Device


# Nobody sees a bar change more often.
_SECONDS_BETWEEN_LOOKS = 0.05

_PLAIN = (str, bytes, int, float, bool, type(None))


class BarNumbers:
    """Gives a trainer's progress bar its numbers without a wait.

    Args:
        trainer: that fits.
        framework: of the trainer.
        device: where it trains.
        before: is called before metrics are looked at.
    """

    def __init__(
        self, trainer: Any, framework: Any, device: Device, before: Callable[[], None]
    ) -> None:
        self._before = before
        self._device = device
        self._epoch_loop = trainer.fit_loop.epoch_loop
        self._results = self._epoch_loop._results
        self._connector = trainer._logger_connector
        bar = framework.callbacks.ProgressBar
        self._bars = [one for one in trainer.callbacks if isinstance(one, bar)]
        self._is_for_bar = False
        self._is_end_of_batch = False
        # What was logged last, and what of it is on its way.
        self._newest: dict[str, torch.Tensor] = {}
        self._on_their_way: dict[str, DeferredLoss] = {}
        self._arrived: dict[str, Any] = {}
        self._next_look = 0.0

    def attach(self) -> None:
        """Stand where Lightning makes the numbers of its bar."""
        vars(self._results)["metrics"] = self._metrics
        vars(self._connector)["on_batch_end"] = self._on_batch_end
        for bar in self._bars:
            vars(bar)["get_metrics"] = self._for_bar(bar.get_metrics)

    def detach(self, *, has_failed: bool = False) -> None:
        """Let Lightning read its numbers.

        Args:
            has_failed: whether the fit has raised, so that nothing is to be read.

        Sync: Blocks the host, if numbers of the last step are on their way.
        """
        vars(self._results).pop("metrics", None)
        vars(self._connector).pop("on_batch_end", None)
        for bar in self._bars:
            vars(bar).pop("get_metrics", None)
        if has_failed:
            return
        shown = self._connector._progress_bar_metrics
        shown.update({name: value.item() for name, value in self._newest.items()})
        self._newest, self._on_their_way = {}, {}

    def _for_bar(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._as_asked_by_bar():
                return function(*args, **kwargs)

        return call

    def _on_batch_end(self) -> None:
        self._is_end_of_batch = True
        try:
            with self._as_asked_by_bar():
                type(self._connector).on_batch_end(self._connector)
        finally:
            self._is_end_of_batch = False

    @contextmanager
    def _as_asked_by_bar(self) -> Iterator[None]:
        before, self._is_for_bar = self._is_for_bar, True
        try:
            yield
        finally:
            self._is_for_bar = before

    def _metrics(self, on_step: bool) -> _Metrics:
        """Do what `_ResultCollection.metrics` does, but make numbers for the bar only if they are asked for."""
        self._before()
        results = self._results
        log: dict[str, Any] = {}
        callback: dict[str, Any] = {}
        bar: dict[str, Any] = {}
        for _, result in results.valid_items():
            value = results._get_cache(result, on_step)
            if not isinstance(value, torch.Tensor):
                continue
            meta = result.meta
            name, forked = results._forked_name(result, on_step)
            if meta.logger:
                log[forked] = value
            if results.training or (meta.on_epoch and not on_step):
                callback[name] = callback[forked] = value
            if meta.prog_bar:
                bar[forked] = value
        return _Metrics(callback, log, lambda: self._numbers(bar, on_step))

    def _numbers(self, bar: dict[str, torch.Tensor], on_step: bool) -> dict[str, Any]:
        is_late = (
            self._is_for_bar and on_step and not self._epoch_loop._num_ready_batches_reached()
        )
        if not is_late:
            if self._is_for_bar:
                self._newest, self._on_their_way = {}, {}
            return {name: value.item() for name, value in bar.items()}
        return self._late(bar)

    def _late(self, bar: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Return the newest numbers that have arrived; wait for the first of each name."""
        if self._is_end_of_batch:
            self._newest.update(bar)
        if not self._bars:
            return {}
        if self._is_end_of_batch and perf_counter() >= self._next_look:
            self._next_look = perf_counter() + _SECONDS_BETWEEN_LOOKS
            for name, value in bar.items():
                self._look(name, value)
        return {name: self._known(name, value) for name, value in bar.items()}

    def _look(self, name: str, value: torch.Tensor) -> None:
        """Take what has arrived of a name, and send its newest value."""
        on_its_way = self._on_their_way.get(name)
        if on_its_way is None:
            on_its_way = DeferredLoss(self._device, warn_nonfinite=False)
            self._on_their_way[name] = on_its_way
        latest = on_its_way.latest()
        if latest is not None:
            self._arrived[name] = latest.values["loss"]
        on_its_way.add(value)
        on_its_way.flush()

    def _known(self, name: str, value: torch.Tensor) -> Any:
        if name not in self._arrived:
            self._arrived[name] = value.item()
        return self._arrived[name]


class _Metrics(dict[str, Any]):
    """Lightning's three kinds of metrics; those of the bar are made when somebody asks for them."""

    def __init__(self, callback: Any, log: Any, bar: Callable[[], Any]) -> None:
        super().__init__(callback=callback, log=log)
        self._bar = bar

    def __missing__(self, kind: str) -> Any:
        if kind != "pbar":
            raise KeyError(kind)
        found = self[kind] = self._bar()
        return found


class BatchesWithoutWaits:
    """Moves a trainer's batches to the device without a wait.

    Args:
        trainer: that fits.
        module: that it trains.
        framework: of the trainer.
        device: where it trains.
    """

    def __init__(self, trainer: Any, module: Any, framework: Any, device: Device) -> None:
        self._strategy = trainer.strategy
        self._module = module
        selector = trainer._data_connector._datahook_selector
        hook = "transfer_batch_to_device"
        moves = getattr(selector.get_instance(hook), hook)
        # One that is overridden decides itself how batches move.
        self._is_plain = getattr(moves, "__func__", None) is getattr(
            framework.LightningModule, hook
        )
        hook = "on_after_batch_transfer"
        after = getattr(selector.get_instance(hook), hook)
        self._has_hook = getattr(after, "__func__", None) is not getattr(
            framework.LightningModule, hook
        )
        self._mover = BatchMover(
            device,
            host_waits=HostWaits(device),
            lanes=[shared_lane(device)],
            # Copies of pinned memory that a loader fills again are Lightning's hazard as well.
            has_fresh_memory=True,
        )

    def attach(self) -> None:
        """Stand where the strategy moves batches."""
        if self._is_plain:
            vars(self._strategy)["batch_to_device"] = self._move

    def detach(self, *, has_failed: bool = False) -> None:
        """Let the strategy move batches."""
        vars(self._strategy).pop("batch_to_device", None)
        self._mover.close()

    def _move(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
        if device is not None or not _is_plain(batch):
            strategy = self._strategy
            return type(strategy).batch_to_device(strategy, batch, device, dataloader_idx)
        moved = self._mover.hand_out(self._mover.stage(batch))
        if not self._has_hook:
            return moved
        return self._module._call_batch_hook("on_after_batch_transfer", moved, dataloader_idx)


def _is_plain(batch: Any) -> bool:
    """Return whether Lightning would move a batch as `gapless.prefetch` does."""
    kind = type(batch)
    if kind is torch.Tensor or kind in _PLAIN:
        return True
    if kind is dict:
        return all(map(_is_plain, batch.values()))
    return kind in (list, tuple) and all(map(_is_plain, batch))
