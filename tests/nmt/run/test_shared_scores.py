"""Ranks that validate and translate together: the figures of one rank alone, to the digit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gapless.device.find import find_device
from gapless.nmt.data.sentences import Pairs
from gapless.nmt.model.decode import Decoder
from gapless.nmt.model.decode_settings import DecodeSettings
from gapless.nmt.run import validation
from gapless.nmt.run.build import build_step
from gapless.nmt.run.stopping import StopNow
from gapless.nmt.run.task import prepare
from gapless.nmt.run.translator import translate_lines
from gapless.nmt.settings.config import make_config
from gapless.pipeline.host_waits import HostWaits
from gapless.ranks import SingleRank


class AloneError(Exception):
    """A rank waits for the others."""


class TakingTurns(SingleRank):
    """Ranks that run one after the other: what the earlier ones said is known.

    A rank that says something the later ones have not answered yet is cut off there, and runs again
    when they have.
    """

    def __init__(self, rank, world, said):
        self.rank, self.world = rank, world
        self._said = said
        self._next = 0

    def agree(self, value):
        """Return what all ranks say here, once all have come here."""
        while len(self._said) <= self._next:
            self._said.append({})
        here = self._said[self._next]
        here[self.rank] = value
        if len(here) < self.world:
            raise AloneError
        self._next += 1
        return [here[rank] for rank in range(self.world)]


def on_ranks(world, work):
    """Return what each of so many ranks returns from `work(ranks)`."""
    said, results = [], {}
    while len(results) < world:
        for rank in range(world):
            try:
                results[rank] = work(TakingTurns(rank, world, said))
            except AloneError:
                continue
    return [results[rank] for rank in range(world)]


@pytest.fixture(scope="module")
def trained():
    """A model with random weights, and sentences of many lengths."""
    config = make_config({"d_model": 16, "heads": 2, "ffn": 16, "max_length": 60})
    task = prepare(config)
    device = find_device("cpu")
    step = build_step(config, task.vocabs, compiles=False, device=device, total_updates=1)
    return SimpleNamespace(config=config, task=task, device=device, step=step)


def translate(trained, ranks, **options):
    decoder = Decoder(
        trained.step.model, device=trained.device, host_waits=HostWaits(trained.device)
    )
    settings = DecodeSettings(beam=2, max_length=5, batch_sentences=3)
    lines = [*trained.task.corpus.val.src[:10], "", *trained.task.corpus.val.src[10:13]]
    return translate_lines(decoder, trained.task.vocabs, lines, settings, ranks=ranks, **options)


@pytest.mark.parametrize("world", [2, 3, 8])
def test_translations_are_those_of_one_rank(trained, world):
    """On all ranks, in the order of the lines; also where a rank has no batch at all."""
    alone = translate(trained, None)

    assert on_ranks(world, lambda ranks: translate(trained, ranks)) == [alone] * world


def test_ranks_search_different_batches(trained):
    """Otherwise they would share nothing."""
    done = [0, 0]

    def work(ranks):
        done[ranks.rank] = 0

        def on_done(count):
            done[ranks.rank] += count

        return translate(trained, ranks, on_done=on_done)

    on_ranks(2, work)

    assert sum(done) == 13
    assert min(done) > 0


def test_a_rank_that_stops_stops_all(trained):
    """None of them waits for translations that do not come."""

    def work(ranks):
        def on_done(_):
            if ranks.rank == 1:
                raise StopNow

        try:
            translate(trained, ranks, on_done=on_done)
        except StopNow:
            return "stopped"
        return "done"

    assert on_ranks(2, work) == ["stopped", "stopped"]


@pytest.mark.parametrize("world", [2, 3])
def test_the_validation_is_that_of_one_rank(trained, world, monkeypatch):
    """Loss and scores have the same digits, whatever the number of batches that a rank gets."""
    from gapless.loop.train_loop import TrainLoop
    from gapless.nmt.settings.score_tokenizer import choose_score_tokenizer

    pairs = trained.task.corpus.val.take(range(40))
    corpus = SimpleNamespace(val=Pairs(src=pairs.src, tgt=pairs.tgt))
    val = prepare(trained.config, vocabs=trained.task.vocabs).val
    monkeypatch.setattr(validation, "num_translated", lambda _: 6)
    score_tokenizer = choose_score_tokenizer(trained.config)

    def work(ranks):
        plan = trained.config.resolved_plan()
        with TrainLoop(plan=plan, device=trained.device) as loop:
            run = SimpleNamespace(
                config=trained.config,
                task=SimpleNamespace(corpus=corpus, val=val, vocabs=trained.task.vocabs),
                device=trained.device,
                step=trained.step,
                model=trained.step.model,
                host_waits=HostWaits(trained.device),
                decoder=Decoder(
                    trained.step.model, device=trained.device, host_waits=HostWaits(trained.device)
                ),
                score_tokenizer=score_tokenizer,
                loop=loop,
                ranks=ranks,
            )
            return validation.validate(run, on_batch=lambda: None)

    alone = work(SingleRank())

    assert on_ranks(world, work) == [alone] * world
    assert alone["val_loss"] > 0
