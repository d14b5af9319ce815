"""gapless: `TrainLoop` under one plan, as `gapless train` runs it."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.peers.parts import take
from benchmarks.taken_away import TAKE_AWAY
from gapless.device.numerics import seed_everything
from gapless.loop.train_loop import TrainLoop
from gapless.nmt.data.sampler import Microbatch, PairBatches, make_loader
from gapless.nmt.run.build import build_step, training_sampler
from gapless.nmt.settings.effective_settings import resolve
from gapless.ranks import SingleRank


if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers.cases import Case
    from benchmarks.peers.window import Window
    from gapless.device.base import Device
    from gapless.ranks import Ranks


# Plan `auto` decides within so many steps, or as it has it later.
_MOST_STEPS_TO_DECIDE = 600
_STEPS_AT_A_TIME = 100


class GaplessPeer:
    """`TrainLoop` with the plan of a row.

    Args:
        case: to train on.
        device: where.
        plan: name of the plan.
        layout: settings of layout and compiling; none: what `gapless train` decides itself.
        without: what is taken away in this process, a key of `TAKE_AWAY`.
        ranks: that train together, of which this process is one; None: it trains alone.

    Attributes:
        setup_facts: what the set-up found out.
        loop: once it is set up.
        step: likewise.
    """

    def __init__(
        self,
        case: Case,
        device: Device,
        *,
        plan: str,
        layout: dict[str, Any] | None = None,
        without: str | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        if without is not None:
            TAKE_AWAY[without]()
        config = replace(case.config, plan=plan, **(layout or {}))
        self._config = config
        self._ranks = SingleRank() if ranks is None else ranks
        world = self._ranks.world
        self._resolved = resolve(config, is_accelerator=device.is_accelerator, world=world)
        self._case = case
        self._device = device
        self._steps_to_decide: int | None = None
        # The one place where gapless's batches are made: padded or packed as the settings say.
        self._sampler = training_sampler(
            config,
            case.train,
            layout=self._resolved.layout,
            one_shape=self._resolved.one_shape,
            rank=self._ranks.rank,
            world=world,
        )
        self.batches: Sequence[Microbatch] = list(self._sampler)
        self.setup_facts: dict[str, Any] = {"layout": self._sampler.describe()}

    def setup(self) -> None:
        """Build model and loop; capture every shape if the plan captures."""
        seed_everything(self._config.seed)
        self.loop = TrainLoop(plan=self._resolved.plan, device=self._device, ranks=self._ranks)
        with self.loop.on_compute_stream():
            self.step = build_step(
                self._config,
                self._case.vocabs,
                compiles=self._resolved.compiles,
                device=self._device,
                total_updates=10**6,
                ranks=self._ranks,
                lengths_vary=self._resolved.layout != "packed",
            )
            self.step.model.train()
        start = perf_counter()
        if self.loop.captures_ahead:
            pairs = PairBatches(self._case.train)
            examples = [pairs[micro] for micro in self._sampler.one_of_each()]
            self.loop.capture_ahead(
                examples, self.step, model=self.step.model, optimizer=self.step.optimizer
            )
        self.setup_facts["warm_up_seconds"] = perf_counter() - start

    def run(self, window: Window, *, first: int) -> None:
        """Train: the timed steps are an epoch of their own, its start and its end included."""
        if self.loop.plan.graphs == "auto" and self._steps_to_decide is None:
            # Not in the set-up, when other rows share the device.
            self._let_auto_decide()
        batches: Any = take(self.batches, window.total, first=first)
        loader = make_loader(self._case.train, batches, workers=self._case.workers)
        source = iter(loader)
        if window.warmup:
            self.loop.run_epoch(islice(source, window.warmup), self.step)
        window.start()
        result = self.loop.run_epoch(islice(source, window.steps), self.step)
        window.stop()
        window.loss = result.losses[-1]
        capture, diagnosis = self.loop.capture_report, self.loop.diagnosis
        window.facts = {
            "host_waits": result.waits.as_dict(),
            "gap_share": result.gap_share,
            "capture": None if capture is None else capture.as_dict(),
            "diagnosis": None if diagnosis is None else asdict(diagnosis),
            "steps_to_decide": self._steps_to_decide,
        }

    def _let_auto_decide(self) -> None:
        done = 0
        while self.loop.diagnosis is None and done < _MOST_STEPS_TO_DECIDE:
            batches: Any = take(self.batches, _STEPS_AT_A_TIME, first=done)
            loader = make_loader(self._case.train, batches, workers=self._case.workers)
            self.loop.run_epoch(loader, self.step)
            done += _STEPS_AT_A_TIME
        self._steps_to_decide = done
