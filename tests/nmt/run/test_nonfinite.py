"""A loss that is NaN or infinite stops a run with its update, or that update is skipped."""

from __future__ import annotations

import math
import random

import pytest
import torch

from gapless.device.find import find_device
from gapless.errors import NonFiniteLossError
from gapless.nmt.data.batch import TokenBatch
from gapless.nmt.model.loss import LossCompute
from gapless.nmt.model.transformer import ModelSizes, Transformer
from gapless.nmt.run import validation
from gapless.nmt.run.new_run import new_run
from gapless.nmt.run.trainer import Trainer
from gapless.nmt.run.training_step import TranslationStep
from gapless.nmt.settings.config import make_config
from gapless.pipeline.host_waits import HostWaits
from tiny_run import as_asked, tiny_config


POISON = 5


@pytest.fixture
def poison(monkeypatch):
    """The loss of a batch whose first target is the poison is not finite; decided on the device."""

    def set_up(value=math.nan):
        normalized = LossCompute.normalized

        def poisoned(self, out, targets, normalize):
            loss = normalized(self, out, targets, normalize)
            return loss * torch.where(targets.flatten()[0] == POISON, value, 1.0)

        monkeypatch.setattr(LossCompute, "normalized", poisoned)

    return set_up


def make_step(**settings):
    torch.manual_seed(0)
    sizes = ModelSizes(src_vocab=9, tgt_vocab=9, d_model=8, heads=2, ffn=8, dropout=0.0)
    config = make_config({"on_nonfinite": "skip", "warmup": 0, **settings})
    return TranslationStep(
        Transformer(sizes), config, device=find_device("cpu"), total_updates=100
    )


def make_batch(first, *, ends_update=True):
    ids = torch.tensor([[first, 6, 7, 3]])
    return TokenBatch(
        src=ids,
        tgt=torch.cat((torch.tensor([[2]]), ids), dim=1),
        ntokens=torch.tensor(4),
        norm=torch.tensor(4),
        ends_update=ends_update,
    )


def train_on(step, *batches):
    for batch in batches:
        step.on_host(batch)
        out = step.forward(batch)
        step.backward(out)
    return out


def everything(step):
    """Return weights and the optimizer's state, with its count of updates."""
    states = [step.optimizer.state[weight] for weight in step.model.parameters()]
    values = [value for state in states for _, value in sorted(state.items())]
    return [value.clone() for value in [*step.model.parameters(), *values]]


def num_skipped(step):
    return step.num_skipped(host_waits=HostWaits(find_device("cpu")))


def all_equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_skipped_update_changes_nothing(poison, value, clip_norm):
    """Weights and optimizer state stay as they were, and the next update is what it would be."""
    poison(value)
    step, other = make_step(clip_norm=clip_norm), make_step(clip_norm=clip_norm)
    train_on(step, make_batch(4))
    before = everything(step)
    out = train_on(step, make_batch(POISON))

    assert all_equal(before, everything(step))
    assert not math.isfinite(out.logged)
    assert out.weight == 0
    assert num_skipped(step) == 1

    train_on(other, make_batch(4))
    other.num_updates += 1  # the schedule counts what is skipped
    assert train_on(step, make_batch(6)).weight == 4
    train_on(other, make_batch(6))
    assert all_equal(everything(step), everything(other))
    assert num_skipped(step) == 1


def test_an_infinite_gradient_skips_its_update(poison):
    """Where gradients are clipped, one that is not finite is seen as well."""
    step = make_step(clip_norm=1.0)
    train_on(step, make_batch(4))
    before = everything(step)
    hook = step.model.generator.weight.register_hook(lambda grad: grad / 0.0)
    train_on(step, make_batch(4))
    hook.remove()

    assert all_equal(before, everything(step))
    assert num_skipped(step) == 1


def test_one_batch_spoils_its_update(poison):
    """Of batches that make an update together, one with a bad loss skips them all."""
    poison()
    step = make_step(accumulate=2)
    train_on(step, make_batch(4, ends_update=False), make_batch(4))
    before = everything(step)
    train_on(step, make_batch(POISON, ends_update=False), make_batch(4))
    assert all_equal(before, everything(step))
    train_on(step, make_batch(4, ends_update=False), make_batch(4))
    assert not all_equal(before, everything(step))
    assert num_skipped(step) == 1


def test_a_trial_does_not_count(poison):
    """What a capture tries and undoes is forgotten: its count, and its half of an update."""
    poison()
    step = make_step(accumulate=2)
    train_on(step, make_batch(POISON, ends_update=False), make_batch(4))
    with step.uncounted():
        train_on(step, make_batch(4, ends_update=False), make_batch(POISON))
        train_on(step, make_batch(POISON, ends_update=False))
        step.optimizer.zero_grad(set_to_none=False)
    train_on(step, make_batch(4))

    assert num_skipped(step) == 1


def test_looking_changes_no_bits():
    """Where every loss is finite, a step that would skip trains as one that would not."""
    steps = [make_step(on_nonfinite=choice) for choice in ("skip", "stop")]
    for step in steps:
        train_on(step, *map(make_batch, (4, 6, 7, 8)))

    assert all_equal(*map(everything, steps))


# --- whole runs ---


class Listening:
    """Keeps what a run notes, and numbers its updates."""

    def __init__(self):
        self.notes, self.updates = [], []

    def noted(self, text):
        self.notes.append(text)

    def warned(self, text):
        pass

    def __getattr__(self, name):
        return lambda *_, **__: None


@pytest.fixture
def run(tmp_path):
    """Train on single pairs in a fixed order; return the observer, and the summary or the error."""
    draw = random.Random(1)
    rows = ["".join(draw.choice("abcd ") for _ in range(6)).split() or ["a"] for _ in range(40)]
    text = "".join(f"{' '.join(row)}\t{' '.join(row)}\n" for row in rows)
    (tmp_path / "d.tsv").write_text(text)

    def train(**settings):
        config = tiny_config(tmp_path, **{"batch_size": 1, **settings})
        observer = Listening()
        try:
            return observer, Trainer(new_run(as_asked(config)), observer=observer).train()
        except NonFiniteLossError as error:
            return observer, error

    return train


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("plan", ["gapless", "blocking", "full"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_that_skips(run, poison, plan, accumulate):
    """Skipped updates are named and counted, and the mean of the others is a number."""
    poison()
    observer, summary = run(on_nonfinite="skip", plan=plan, accumulate=accumulate)
    named = [note for note in observer.notes if note.endswith("is nan; the update is skipped")]

    assert 0 < summary["skipped_updates"] < summary["steps"]
    assert summary["skipped_updates"] == len({note.split()[4] for note in named})
    assert all(map(math.isfinite, summary["loss"]))


@pytest.mark.parametrize("is_last", [False, True])
def test_the_update_is_named(run, poison, tmp_path, is_last):
    """The error names the first update at fault, also where it is the last of the run."""
    poison()
    observer, _ = run(on_nonfinite="skip", accumulate=2)
    first = min(int(note.split()[4]) for note in observer.notes if "skipped" in note)
    limit = {"max_steps": first} if is_last else {}
    _, error = run(accumulate=2, run_dir=str(tmp_path / "other"), **limit)

    assert str(error).startswith(
        f"the loss of update {first} (batch {error.step}) is nan, expected"
    )
    assert error.step // 2 + 1 == first


@pytest.mark.parametrize("choice", ["stop", "skip"])
def test_a_validation_that_is_not_finite(run, monkeypatch, choice):
    """It stops the run; a run that skips goes on, since its weights are as good as before."""
    figures = {"val_loss": math.nan, "val_bleu": 0.0, "val_exact_match": 0.0}
    monkeypatch.setattr(validation, "validate", lambda run, on_batch: figures)
    _, ended = run(on_nonfinite=choice)

    if choice == "skip":
        assert ended["skipped_updates"] == 0
    else:
        assert f"the loss of the validation after update {ended.step} is nan" in str(ended)
