"""A Trainer of transformers on the simulated device: bits, replays, waits, masks."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch


pytest.importorskip("transformers")

import transformers
from accelerate.state import AcceleratorState, GradientState
from transformers import Trainer, TrainerCallback, TrainingArguments

import gapless
from gapless import testing
from gapless.integrations.transformers import capture_trainer
from integrations.hf_parts import bert, padded, sentences


pytestmark = pytest.mark.slow


class Waits(TrainerCallback):
    """Counts the host's waits of each step."""

    def __init__(self, device):
        self._device, self.of_steps, self._before = device, [], 0

    def on_train_begin(self, *args, **kwargs):
        self._counting = gapless.count_waits(self._device)
        self._waits = self._counting.__enter__()

    def on_step_end(self, *args, **kwargs):
        self.of_steps.append(self._waits.count - self._before)
        self._before = self._waits.count

    def on_train_end(self, *args, **kwargs):
        self._counting.__exit__(None, None, None)


def trainer_on(device, folder, rows, *, callbacks=(), **settings):
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        learning_rate=1e-2,
        disable_tqdm=True,
        report_to=[],
        dataloader_pin_memory=False,
        **{
            "per_device_train_batch_size": 4,
            "save_strategy": "no",
            "logging_steps": 100,
            **settings,
        },
    )
    _ = arguments.device
    vars(arguments)["_setup_devices"] = device.torch_device
    transformers.set_seed(1)
    trainer = Trainer(
        bert(), arguments, train_dataset=rows, data_collator=padded, callbacks=list(callbacks)
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def trained(folder, rows, *, captured, scheduler="asap", **settings):
    """Train; return the trainer, its weights and how often the host waited in each step."""
    with testing.SimulatedDevice(scheduler=scheduler) as device, pytest.MonkeyPatch.context() as m:
        m.setenv("ACCELERATE_TORCH_DEVICE", str(device.torch_device))
        m.setattr(type(device), "max_queued_copy_bytes", 4096)
        waits = Waits(device)
        trainer = trainer_on(device, folder, rows, callbacks=[waits], **settings)
        if captured:
            capture_trainer(trainer, device=device, quiet=True)
        trainer.train()
        weights = [value.cpu().clone() for value in trainer.model.state_dict().values()]
        assert device.report.races == []
    return trainer, weights, waits.of_steps


def equal(some, others):
    return all(map(torch.equal, some, others))


def test_a_step_without_a_log_does_not_wait(tmp_path):
    """As written a step waits for the mask and for the loss; and, before any capture, for copies."""
    _, expected, before = trained(tmp_path, sentences(48), captured=False)
    trainer, weights, after = trained(tmp_path, sentences(48), captured=True)

    assert equal(weights, expected)
    assert min(before[-3:]) >= 3
    assert after[-3:] == [0, 0, 0]
    assert gapless.capture_report(trainer.model).num_replays > 20


def test_batches_with_and_without_padding_have_graphs_of_their_own(tmp_path):
    """A mask without padding is left out by the model, which takes another kernel."""
    rows = sentences(64, shortest=7, longest=8)
    for number, row in enumerate(rows):
        if number % 3:
            row["input_ids"], row["attention_mask"] = [7] * 8, [1] * 8
    settings = {"num_train_epochs": 4.0, "per_device_train_batch_size": 2}
    _, expected, _ = trained(tmp_path, rows, captured=False, **settings)
    trainer, weights, _ = trained(tmp_path, rows, captured=True, **settings)
    report = gapless.capture_report(trainer.model)

    assert equal(weights, expected)
    assert report.changes == []
    assert report.num_graphs >= 2
    assert report.num_replays > report.num_eager


def test_a_mask_that_was_changed_after_it_was_moved_is_looked_at_again(tmp_path, monkeypatch):
    """What is known of a mask is of the values that were moved."""

    class Hides(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            if self.state.global_step % 2:
                inputs["attention_mask"][:, -1] = 0
            return super().compute_loss(model, inputs, *args, **kwargs)

    monkeypatch.setitem(trainer_on.__globals__, "Trainer", Hides)
    _, expected, _ = trained(tmp_path, sentences(48), captured=False)
    trainer, weights, _ = trained(tmp_path, sentences(48), captured=True)

    assert equal(weights, expected)
    assert gapless.capture_report(trainer.model).num_replays > 10


def test_copies_and_files_of_the_model_are_models_as_before(tmp_path):
    """The trained model can be copied and pickled; its copies are captured by nobody."""
    trainer, weights, _ = trained(tmp_path, sentences(32), captured=True)
    for twin in (copy.deepcopy(trainer.model), pickle.loads(pickle.dumps(trainer.model))):
        assert equal(twin.state_dict().values(), weights)
        with pytest.raises(gapless.UserError):
            gapless.capture_report(twin)


def test_it_says_once_what_it_does_and_what_it_does_not(tmp_path, capsys, monkeypatch):
    """On the main process, unless it is asked to be quiet; a second call changes nothing."""
    monkeypatch.delenv("ACCELERATE_TORCH_DEVICE", raising=False)
    with testing.SimulatedDevice() as device:
        trainer = trainer_on(device, tmp_path, sentences(8))
        capsys.readouterr()
        assert capture_trainer(trainer, device=device) is trainer
        told = capsys.readouterr().err
        step = trainer.training_step
        assert capture_trainer(trainer, device=device) is trainer

    assert told.startswith("gapless: Trainer\n  does: ")
    assert "\n  does not: " in told
    assert capsys.readouterr().err == ""
    assert trainer.training_step is step


def test_a_rate_that_stays_is_captured_and_one_that_moves_makes_updates_quick(tmp_path):
    """A graph keeps its rate."""
    moving, _, _ = trained(tmp_path, sentences(48), captured=True)
    staying, _, _ = trained(tmp_path, sentences(48), captured=True, lr_scheduler_type="constant")
    reports = [gapless.capture_report(one.optimizer) for one in (moving, staying)]

    assert reports[0].num_replays == 0
    assert reports[0].num_quick > reports[0].num_eager
    assert reports[1].num_replays > reports[1].num_eager


@pytest.mark.parametrize("bf16", [False, True])
def test_it_may_evaluate_before_it_trains(tmp_path, monkeypatch, bf16):
    """Accelerate prepares the model twice then, and the captured call is around both."""
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu:1")

    def trained(captures):
        with testing.SimulatedDevice(scheduler="asap") as device:
            trainer = trainer_on(device, tmp_path, sentences(32), bf16=bf16)
            trainer.eval_dataset = sentences(40, seed=3)
            if captures:
                capture_trainer(trainer, device=device, quiet=True)
            before = trainer.evaluate()["eval_loss"]
            trainer.train()
            weights = [value.cpu().clone() for value in trainer.model.state_dict().values()]
            return trainer, [before, trainer.evaluate()["eval_loss"]], weights

    _, expected, expected_weights = trained(captures=False)
    trainer, losses, weights = trained(captures=True)

    assert losses == expected
    assert equal(weights, expected_weights)
    assert gapless.capture_report(trainer.model).num_replays > 20


def test_floating_point_operations_are_counted_as_before(tmp_path):
    """Weights are not counted in each step, and the sum is the same for batches of all lengths."""
    rows = sentences(48, shortest=6, longest=8)
    (before, _, _), (after, _, _) = (
        trained(tmp_path, rows, captured=captured) for captured in (False, True)
    )

    assert after.state.total_flos == before.state.total_flos > 0


def test_a_model_that_was_released_is_as_before(tmp_path):
    """Its masks are looked at by itself alone."""
    with testing.SimulatedDevice(scheduler="asap") as device, pytest.MonkeyPatch.context() as m:
        m.setenv("ACCELERATE_TORCH_DEVICE", str(device.torch_device))
        trainer = trainer_on(device, tmp_path, sentences(32))
        capture_trainer(trainer, device=device, quiet=True)
        trainer.train()
        model = gapless.release(trainer.model)
        batch = padded(sentences(4))
        with torch.no_grad():
            moved = {name: value.to(device.torch_device) for name, value in batch.items()}
            with gapless.count_waits(device) as waits:
                model(**moved)

    assert waits.count == 1
    assert {site.partition(":")[0] for _, site in waits.by_site} == {"masking_utils.py"}


def test_what_is_no_trainer_is_refused():
    """The error names what was given and what was expected."""
    with pytest.raises(gapless.UserError, match="expected a transformers"):
        capture_trainer(torch.nn.Linear(1, 1))
