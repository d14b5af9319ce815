"""Train a translation model: epochs, validation, checkpoints, final scores."""

from __future__ import annotations

import os
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.find import find_device
from gapless.device.numerics import random_state, seed_everything, set_numerics, set_random_state
from gapless.loop.train_loop import TrainLoop
from gapless.nmt.data.sampler import PairBatches, make_loader
from gapless.nmt.model.compiling import compile_layers, layers_as_written
from gapless.nmt.model.decode import Decoder, DecodeSettings
from gapless.nmt.run import checkpoints as checkpoint, folder as runs
from gapless.nmt.run.build import build_model, make_sampler
from gapless.nmt.run.folder import LossLog
from gapless.nmt.run.interrupt import StopRequest, until_stopped
from gapless.nmt.run.observer import describe_model, describe_run
from gapless.nmt.run.position import Position
from gapless.nmt.run.saver import Saver
from gapless.nmt.run.score import evaluate
from gapless.nmt.run.task import check_pairs, prepare
from gapless.nmt.run.translation_step import TranslationStep
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.loaders import LoaderPart
from gapless.pipeline.readback import DeferredLoss
from gapless.records.training import run_totals
from gapless.records.wait_stats import WaitStats


if TYPE_CHECKING:
    from pathlib import Path

    from torch.utils.data import DataLoader

    from gapless.nmt.data.batch import AnyBatch
    from gapless.nmt.data.corpus import Pairs
    from gapless.nmt.run.config import TrainConfig
    from gapless.nmt.run.observer import Observer
    from gapless.nmt.run.score import Scores
    from gapless.pipeline.host_copy import HostCopy
    from gapless.records.epoch_record import Progress


# Greedy translations of so many validation sentences show where a run stands.
_VALIDATION_SENTENCES = 200


class Trainer:
    """One training run, from its settings to `summary.json`.

    Args:
        config: of the run.
        observer: sees it go by.
        resume: folder of the run to go on with.

    Raises:
        UserError: anything about settings, data, device or run folder that cannot be used; it is
            raised before anything is written.
    """

    def __init__(
        self, config: TrainConfig, *, observer: Observer, resume: Path | None = None
    ) -> None:
        self._observer = observer
        self._started_at = perf_counter()
        self._earlier_seconds = 0.0
        self._device = find_device(config.device)
        set_numerics(self._device, config.precision, deterministic=config.deterministic)
        vocabs = runs.read_vocabs(resume, config) if resume else None
        state = checkpoint.load_state(checkpoint.state_path(resume)) if resume else None
        resolved = config.resolved_for(
            is_accelerator=self._device.is_accelerator, begun=state and state["layout"]
        )
        self._task = prepare(config, vocabs=vocabs)
        self._fingerprint = self._task.fingerprint()
        if state is not None:
            check_pairs(self._fingerprint, begun=state["pairs"])
        # The folder keeps the settings as asked, so that its file serves on another device too.
        self.run_dir = resume or runs.create_run(config, self._task.vocabs)
        asked, self.config = config, resolved
        config = resolved
        self._position = Position()
        self._warm_up_seconds = 0.0
        self._saved_batches: int | None = None
        self._noted: set[str] = set()
        self._outside = WaitStats()
        self._outside_waits = HostWaits(self._device, wait_stats=self._outside)
        seed_everything(config.seed)
        self._loop = TrainLoop(
            plan=config.resolved_plan(),
            device=self._device,
            memory_budget_bytes=config.capture_memory_bytes(),
        )
        self._sampler = make_sampler(config, self._task.train)
        self._padding_share = self._sampler.padding_share()
        self._updates_per_epoch = -(-len(self._sampler) // config.accumulate)
        # Built on the compute stream: autograd binds each gradient to the stream it first saw.
        with self._loop.on_compute_stream():
            self.model = build_model(config, self._task.vocabs)
            self.model.to(self._device.torch_device)
            if config.compile:
                compile_layers(self.model)
            self._step = TranslationStep(
                self.model, config, device=self._device, total_updates=self._total_updates()
            )
            if state is not None:
                self._load_state(state)
        self._saver = Saver(
            self.run_dir,
            host_waits=self._outside_waits,
            keep=config.average,
            state_epoch=self._position.epoch,
        )
        if resume is not None:
            runs.write_config(resume, asked)

    def train(self) -> dict[str, Any]:
        """Train, score the final model on the test pairs, and return the summary.

        Raises:
            NonFiniteLossError: a loss was NaN or infinite.
            OSError: the disk is full.

        Sync: Blocks the host as the plan says, and between epochs.
        """
        self._observer.started(self._facts())
        runs.forget_later(
            self.run_dir, batches=self._position.batches_before, epochs=self._position.epoch
        )
        with (
            self._loop,
            self._saver,
            runs.RunFolder(self.run_dir) as folder,
            StopRequest() as stop,
        ):
            start = perf_counter()
            self._warm_up()
            self._warm_up_seconds = perf_counter() - start
            loader = make_loader(self._task.train, self._sampler, workers=self._num_workers())
            while not self._is_finished() and not stop.is_set:
                self._run_epoch(loader, folder, stop)
            if self._position.batches and not stop.is_set:
                self._end_epoch(folder, is_whole=False)
            if self._saved_batches != self._position.batches_before:
                self._save_state(self._copy_weights())
            scores = None if stop.is_set else self._test(folder)
            summary = self._summary(scores, interrupted=stop.is_set)
            folder.write_summary(summary)
            return summary

    def _warm_up(self) -> None:
        """Capture every shape ahead of the run, if the plan captures and the device can."""
        if not self._loop.captures_ahead:
            return
        self.model.train()
        pairs = PairBatches(self._task.train)
        examples = [pairs[micro] for micro in self._sampler.one_of_each()]
        self._observer.warming_up(0, of=len(examples))
        scaler = self._step.scaler
        self._loop.capture_ahead(
            examples,
            self._step,
            model=self.model,
            optimizer=self._step.optimizer,
            scaler=scaler if scaler.is_enabled() else None,
            on_batch=lambda done: self._observer.warming_up(done, of=len(examples)),
        )
        self._note_decisions()

    def _note_decisions(self) -> None:
        """Say what plan `auto` decided, or why a step is not captured, when it is new."""
        diagnosis, capture = self._loop.diagnosis, self._loop.capture_report
        if diagnosis is not None:
            text = diagnosis.line
        elif capture is not None and (capture.refusal or capture.note):
            text = f"steps that are not captured run as written: {capture.refusal or capture.note}"
        else:
            return
        if text not in self._noted:
            self._noted.add(text)
            self._observer.noted(text)

    # --- one epoch ---

    def _run_epoch(
        self, loader: DataLoader[AnyBatch], folder: runs.RunFolder, stop: StopRequest
    ) -> None:
        at, losses = self._position, self._loop.losses
        self._sampler.set_epoch(at.epoch, skip=at.batches, max_updates=self._updates_left())
        self._observer.epoch_started(
            at.epoch + 1, num_batches=len(self._sampler), num_epochs=self.config.epochs
        )
        log = LossLog(folder, losses, first_batch=at.batches_before)

        def on_batch(progress: Progress) -> None:
            log.write_new()
            self._note_decisions()
            self._saver.poll()
            self._observer.batch_queued(progress, num_updates=self._step.num_updates)

        self.model.train()
        batches = LoaderPart(loader, lambda loader: until_stopped(loader, stop))
        result = self._loop.run_epoch(batches, self._step, on_batch=on_batch)
        log.write_new()
        at.add(
            result,
            weights=losses.weights[len(losses.weights) - result.num_batches :],
            peak_memory_bytes=self._device.peak_memory_bytes(),
        )
        # Otherwise it was stopped, or is at the last update of `max_steps`.
        if at.batches >= self._sampler.whole_epoch:
            self._end_epoch(folder)

    def _end_epoch(self, folder: runs.RunFolder, *, is_whole: bool = True) -> None:
        at = self._position
        record = at.end_epoch() if is_whole else at.records[-1]
        weights = self._copy_weights()
        self._saver.save_epoch(weights, record.number)
        if record.number % self.config.val_interval == 0 or self._is_finished():
            record.validation.update(self._validate())
            if record.validation["val_loss"] < at.best_loss:
                at.best_loss = record.validation["val_loss"]
                self._saver.save_best(weights)
        if self._saver.state_is_due():
            self._save_state(weights)
        folder.log(
            "epoch",
            step=record.number,
            loss=record.work.mean_loss,
            tokens_per_second=record.tokens_per_second,
            gap_share=record.work.gap_share,
            **record.validation,
        )
        folder.flush()
        self._observer.epoch_ended(record)

    def _validate(self) -> dict[str, float]:
        sampler = make_sampler(self.config, self._task.val, for_training=False)
        loader = make_loader(self._task.val, sampler, workers=0)
        self.model.eval()
        losses = DeferredLoss(self._device, wait_stats=self._outside)
        with self._loop.on_compute_stream(), layers_as_written():
            for batch in self._loop.prefetch(loader):
                losses.add(self._step.evaluate(batch), weight=batch.ntokens)
                self._saver.poll()
            losses.drain(reason="validation")
        val = self._task.corpus.val
        scores = self._score(val.take(range(min(len(val), _VALIDATION_SENTENCES))), beam=1)
        return {
            "val_loss": losses.mean(),
            "val_bleu": scores.bleu,
            "val_exact_match": scores.exact_match,
        }

    # --- the end ---

    def _test(self, folder: runs.RunFolder) -> Scores:
        self._saver.finish()
        paths = checkpoint.epoch_paths(self.run_dir)[-self.config.average :]
        weights = checkpoint.average_weights(paths)
        with self._loop.on_compute_stream(), self._outside_waits.blocking("checkpoint"):
            checkpoint.set_weights(self.model, weights, path=paths[-1])
        checkpoint.write_weights(weights, self.run_dir / checkpoint.FOLDER / checkpoint.FINAL)
        test = self._task.corpus.test
        self._observer.testing(len(test))
        scores = self._score(test, beam=self.config.beam)
        folder.log("test", step=len(self._position.records), bleu=scores.bleu, chrf=scores.chrf)
        return scores

    def _score(self, pairs: Pairs, *, beam: int) -> Scores:
        config = self.config
        decoder = Decoder(
            self.model,
            device=self._device,
            host_waits=self._outside_waits,
            precision=config.precision,
        )
        settings = DecodeSettings(
            beam=beam,
            length_penalty=config.length_penalty,
            max_length=config.max_length,
            early_stopping=config.early_stopping,
        )
        with self._loop.on_compute_stream(), layers_as_written():
            return evaluate(decoder, self._task.vocabs, pairs, settings, config=config).scores

    def _summary(self, scores: Scores | None, *, interrupted: bool) -> dict[str, Any]:
        return {
            "plan": self.config.plan,
            "plan_settings": asdict(self._loop.plan),
            "device": str(self._device.torch_device),
            "hardware": self._device.describe(),
            "torch": str(torch.__version__),
            "precision": self.config.precision,
            "interrupted": interrupted,
            "steps": self._step.num_updates,
            **run_totals(self._position.records),
            "padding_share": self._padding_share,
            "host_waits_outside_training": self._outside.as_dict(),
            "capture": None
            if self._loop.capture_report is None
            else self._loop.capture_report.as_dict(),
            "bleu": scores and scores.bleu,
            "chrf": scores and scores.chrf,
            "signature": scores and scores.bleu_signature,
            "chrf_signature": scores and scores.chrf_signature,
            "bleu_detail": scores and scores.bleu_detail,
            "exact_match": scores and scores.exact_match,
            "test_sentences": scores and scores.count,
            "parameters": self._num_parameters(),
            "skipped_long": self._task.skipped_long,
            "dropped_empty": self._task.corpus.dropped_empty,
            "diagnosis": None if self._loop.diagnosis is None else self._loop.diagnosis.line,
            "warm_up_seconds": self._warm_up_seconds,
            "wall_seconds": self._wall_seconds(),
        }

    # --- what a run goes on from ---

    def _wall_seconds(self) -> float:
        return self._earlier_seconds + perf_counter() - self._started_at

    def _copy_weights(self) -> HostCopy:
        with self._loop.on_compute_stream():
            return self._saver.copy_weights(self.model)

    def _save_state(self, weights: HostCopy) -> None:
        self._position.wall_seconds = self._wall_seconds()
        with self._loop.on_compute_stream():
            state = {
                "step": self._step.state(host_waits=self._outside_waits),
                "random": random_state(self._device),
                "position": self._position.state(),
                "layout": self.config.layout(),
                "pairs": self._fingerprint,
            }
            self._saver.save_state(state, weights=weights, epoch=self._position.epoch)
        self._saved_batches = self._position.batches_before

    def _load_state(self, state: dict[str, Any]) -> None:
        path = checkpoint.state_path(self.run_dir)
        checkpoint.set_weights(self.model, state["model"], path=path)
        self._step.load_state(state["step"])
        self._position = Position.of_state(state["position"])
        self._earlier_seconds = self._position.wall_seconds
        self._saved_batches = self._position.batches_before
        set_random_state(self._device, state["random"])

    # --- sizes ---

    def _num_workers(self) -> int:
        # Asked for: as asked. Otherwise what the loop itself leaves free: beside a GPU it needs
        # one core, on a CPU all those that torch computes with.
        if self.config.workers is not None:
            return self.config.workers
        busy = 1 if self._device.is_accelerator else torch.get_num_threads()
        return max(0, min(self._loop.plan.workers, (os.cpu_count() or 1) - busy))

    def _total_updates(self) -> int:
        return self.config.max_steps or self.config.epochs * self._updates_per_epoch

    def _updates_left(self) -> int | None:
        if self.config.max_steps is None:
            return None
        return self.config.max_steps - self._step.num_updates

    def _is_finished(self) -> bool:
        left = self._updates_left()
        return self._position.epoch >= self.config.epochs or (left is not None and left <= 0)

    def _facts(self) -> dict[str, str]:
        about = describe_run(
            self.config,
            self._task,
            device=self._device,
            plan=self._loop.plan,
            workers=self._num_workers(),
        )
        sizes = describe_model(
            self._task, parameters=self._num_parameters(), sampler=self._sampler
        )
        return {"run": str(self.run_dir), **about, **sizes}

    def _num_parameters(self) -> int:
        return sum(weight.numel() for weight in self.model.parameters())
