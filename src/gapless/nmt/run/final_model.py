"""Which weights become the final model of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from gapless.errors import RunFolderError
from gapless.nmt.run.out_of_memory import OF_BATCHES, naming_phase
from gapless.nmt.run.scores import num_compared
from gapless.nmt.run.stopping import StopNow
from gapless.nmt.run.validation import score_validation
from gapless.nmt.run_folder import checkpoints
from gapless.ranks import on_first_rank
from gapless.report.figures import counted


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gapless.nmt.run.run_report import Messages
    from gapless.nmt.run.stopping import StopRequest
    from gapless.nmt.run.training_run import TrainingRun


_BEST = "best weights"

# Of a comparison by one pair, and less by more of them: the share of its BLEU that is luck, and the least
# points of it. A weak model has but a few phrases right, and its BLEU moves by more than a share of it.
_LUCK_SHARE, _LEAST_LUCK = 0.5, 8.0


@dataclass(frozen=True, kw_only=True)
class FinalModel:
    """The weights that a run ends with, in host memory.

    Attributes:
        name: what they are.
        weights: by name.
        bleu: of all that were compared, on the validation pairs, by what they are; none if the
            settings say which to take.
        num_pairs: that were translated for it.
        num_averaged: epochs whose mean it is, where the settings say so.
    """

    name: str
    weights: Mapping[str, torch.Tensor]
    bleu: Mapping[str, float] = field(default_factory=dict)
    num_pairs: int = 0
    num_averaged: int = 0

    @property
    def line(self) -> str:
        """Which weights were chosen, and what the others reached, for people."""
        own = self.bleu[self.name]
        others = [
            f"{name}: {bleu:.2f}" + (self._luck if bleu > own else "")
            for name, bleu in self.bleu.items()
            if name != self.name
        ]
        rest = f" ({'; '.join(others)})" if others else ""
        return f"the final model has the {self.name}: validation BLEU {own:.2f}{rest}"

    @property
    def _luck(self) -> str:
        pairs = "1 pair" if self.num_pairs == 1 else f"{self.num_pairs} pairs"
        return f", a lead that may be luck with {pairs}"


def choose_final_model(
    run: TrainingRun, *, messages: Messages, stop: StopRequest
) -> FinalModel | None:
    """Return the weights that a run ends with; None if it is asked to stop meanwhile.

    Args:
        run: that has ended.
        messages: tell which weights these are, and why.
        stop: asked after each batch of translations.

    Raises:
        RunFolderError: weights that the settings ask for are missing or damaged.

    Sync: Blocks the host; waits are counted in `run.host_waits`.
    """
    if run.config.average != "auto":
        final, asked = averaged_model(run), run.config.num_averaged
        if final.num_averaged < asked:
            messages.observer.noted(
                f"the final model has the {final.name}, though `average={asked}` asks for more: the run "
                "has no others"
            )
        return final
    with naming_phase("comparing weights on the validation sentences", lower=OF_BATCHES):
        try:
            final = best_of_all(run, on_batch=stop.check, on_damaged=messages.observer.warned)
        except StopNow:
            return None
    messages.observer.noted(final.line)
    return final


def averaged_model(run: TrainingRun) -> FinalModel:
    """Return the mean of the newest epochs' weights, as many as the settings say; rank 0 reads them.

    Raises:
        RunFolderError: one of them is missing or damaged.
    """
    paths = checkpoints.averaged_paths(
        run.run_dir, epochs=len(run.progress.records), average=run.config.num_averaged
    )
    return FinalModel(
        name=f"mean of {counted(len(paths), 'epoch')}",
        weights=on_first_rank(
            run.ranks, lambda: checkpoints.average_weights(paths, advice="lower `average`")
        ),
        num_averaged=len(paths),
    )


def best_of_all(
    run: TrainingRun, *, on_batch: Callable[[], None], on_damaged: Callable[[str], None]
) -> FinalModel:
    """Return the weights that translate the validation pairs best: averaged, last or best so far.

    BLEU of greedy translations decides. Not the loss: of a small corpus it is lowest long before the
    translations are best. The last weights win where nothing is better, and the best so far need a
    lead that is no luck. Rank 0 reads them, and all ranks translate.

    Args:
        run: that has ended.
        on_batch: called after each batch of translations.
        on_damaged: called with a line for each checkpoint that cannot be read.

    Sync: Blocks the host; waits are counted in `run.host_waits`.
    """
    count = num_compared(run.task.corpus.val)
    bleu: dict[str, float] = {}
    found: dict[str, Mapping[str, torch.Tensor]] = {}
    candidates = _candidates(run) if run.ranks.is_first else {}
    for name in run.ranks.share(list(candidates)):
        weights = on_first_rank(
            run.ranks, partial(_read, candidates.get(name), on_damaged=on_damaged)
        )
        if weights is None:
            continue
        found[name] = weights
        put_weights(run, found[name], path=run.run_dir)
        bleu[name] = score_validation(run, count, on_batch=on_batch).bleu
    best = max(bleu, key=lambda name: bleu[name] - _points_of_luck(name, bleu[name], count))
    return FinalModel(name=best, weights=found[best], bleu=bleu, num_pairs=count)


def _read(
    candidate: Callable[[], Mapping[str, torch.Tensor]] | None,
    *,
    on_damaged: Callable[[str], None],
) -> Mapping[str, torch.Tensor] | None:
    assert candidate is not None
    try:
        return candidate()
    except RunFolderError as error:
        on_damaged(f"{error}; the final model is chosen without it")
        return None


def _points_of_luck(name: str, bleu: float, num_pairs: int) -> float:
    """Return the points of its BLEU that a candidate owes to luck.

    The best weights so far were the best of many by the same few sentences, the others were not.
    """
    if not name.startswith(_BEST):
        return 0.0
    return max(_LUCK_SHARE * bleu, _LEAST_LUCK) / math.sqrt(max(1, num_pairs))


def _candidates(
    run: TrainingRun,
) -> dict[str, Callable[[], Mapping[str, torch.Tensor]]]:
    """Return what may become the final model, by what it is; the last weights first."""
    last = _weights_of(run)
    found: dict[str, Callable[[], Mapping[str, torch.Tensor]]] = {"last weights": lambda: last}
    epochs = checkpoints.epoch_paths(run.run_dir)[-run.config.num_averaged :]
    if len(epochs) > 1:
        name = f"mean of {len(epochs)} epochs"
        found[name] = lambda: checkpoints.average_weights(epochs)
    best = checkpoints.best_path(run.run_dir)
    if best.exists() and checkpoints.step_of(best) < run.step.num_updates:
        name = f"{_BEST}, of update {checkpoints.step_of(best):,}"
        found[name] = lambda: checkpoints.read_weights(best)
    return found


def _weights_of(run: TrainingRun) -> dict[str, torch.Tensor]:
    """Return a copy of the model's weights in host memory."""
    with run.loop.on_compute_stream(), run.host_waits.blocking("checkpoint"), torch.no_grad():
        return {
            name: torch.empty(weight.shape, dtype=weight.dtype).copy_(weight)
            for name, weight in run.model.named_parameters()
        }


def put_weights(run: TrainingRun, weights: Mapping[str, torch.Tensor], *, path: Path) -> None:
    """Copy weights into the model of a run.

    Args:
        run: whose model takes them.
        weights: by name.
        path: where they come from, for errors.

    Raises:
        RunFolderError: they belong to another model.

    Sync: Blocks the host, counted as "checkpoint".
    """
    with run.loop.on_compute_stream(), run.host_waits.blocking("checkpoint"):
        checkpoints.set_weights(run.model, weights, path=path)
