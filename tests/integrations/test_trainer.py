"""A Trainer of transformers on the simulated device: bits, replays, waits, masks."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch


pytest.importorskip("transformers")

import transformers
from accelerate.state import AcceleratorState, GradientState
from transformers import Trainer, TrainerCallback, TrainingArguments

import gapless
from gapless import testing
from gapless.graphs import audit
from gapless.graphs.step_call import is_within_a_step
from gapless.integrations import packed_positions
from gapless.integrations.transformers import CaptureInTraining, capture_trainer
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
        # The run of an audit as written waits.
        m.setattr(audit, "DEFAULT_EVERY", 10**9)
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


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A training as written and the same one captured: trainer, weights and waits of each."""
    folder = tmp_path_factory.mktemp("both")
    return [trained(folder, sentences(32), captured=captured) for captured in (False, True)]


def test_a_step_without_a_log_does_not_wait(both):
    """As written a step waits for the mask and for the loss; and, before any capture, for copies."""
    (_, expected, before), (trainer, weights, after) = both
    report = gapless.capture_report(trainer.model)

    assert equal(weights, expected)
    assert min(before[-3:]) >= 3
    assert after[-3:] == [0, 0, 0]
    assert report.num_replays > 2 * report.num_eager


def test_batches_with_and_without_padding_have_graphs_of_their_own(tmp_path):
    """A mask without padding is left out by the model, which takes another kernel.

    Floating-point operations are counted as before, though the weights are not counted in each step.
    """
    rows = sentences(40, shortest=7, longest=8)
    for number, row in enumerate(rows):
        if number % 3:
            row["input_ids"], row["attention_mask"] = [7] * 8, [1] * 8
    settings = {"num_train_epochs": 4.0, "per_device_train_batch_size": 2}
    plain, expected, _ = trained(tmp_path, rows, captured=False, **settings)
    trainer, weights, _ = trained(tmp_path, rows, captured=True, **settings)
    report = gapless.capture_report(trainer.model)

    assert equal(weights, expected)
    assert report.changes == []
    assert report.num_graphs >= 2
    assert report.num_replays > report.num_eager
    assert trainer.state.total_flos == plain.state.total_flos > 0


def test_a_mask_that_was_changed_after_it_was_moved_is_looked_at_again(tmp_path, monkeypatch):
    """What is known of a mask is of the values that were moved."""

    class Hides(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            if self.state.global_step % 2:
                inputs["attention_mask"][:, -1] = 0
            return super().compute_loss(model, inputs, *args, **kwargs)

    monkeypatch.setitem(trainer_on.__globals__, "Trainer", Hides)
    _, expected, _ = trained(tmp_path, sentences(32), captured=False, max_steps=16)
    trainer, weights, _ = trained(tmp_path, sentences(32), captured=True, max_steps=16)

    assert equal(weights, expected)
    assert gapless.capture_report(trainer.model).num_replays > 4


def test_copies_and_files_of_the_model_are_models_as_before(both):
    """The trained model can be copied and pickled; its copies are captured by nobody."""
    trainer, weights, _ = both[1]
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


def test_a_rate_that_stays_is_captured_and_one_that_moves(tmp_path, both):
    """A graph keeps its rate, or is cut where it is taken."""
    moving, _, _ = both[1]
    staying, _, _ = trained(
        tmp_path, sentences(32), captured=True, lr_scheduler_type="constant", max_steps=16
    )
    reports = [gapless.capture_report(one.optimizer) for one in (moving, staying)]

    assert reports[0].num_replays > reports[0].num_eager
    assert reports[1].num_replays > reports[1].num_eager


def test_it_may_evaluate_before_it_trains(tmp_path, monkeypatch):
    """Accelerate prepares the model twice then, each time in a block of autocast."""
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu:1")

    def trained(captures):
        with testing.SimulatedDevice(scheduler="asap") as device:
            trainer = trainer_on(device, tmp_path, sentences(32), bf16=True, max_steps=16)
            trainer.eval_dataset = sentences(24, seed=3)
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
    assert gapless.capture_report(trainer.model).num_replays > 8


def test_a_model_that_was_released_is_as_before(tmp_path):
    """Its masks are looked at by itself alone."""
    with testing.SimulatedDevice(scheduler="asap") as device, pytest.MonkeyPatch.context() as m:
        m.setenv("ACCELERATE_TORCH_DEVICE", str(device.torch_device))
        trainer = trainer_on(device, tmp_path, sentences(8), max_steps=2)
        capture_trainer(trainer, device=device, quiet=True)
        trainer.train()
        model = gapless.release(trainer.model)
        batch = padded(sentences(4))
        with torch.no_grad():
            moved = {name: value.to(device.torch_device) for name, value in batch.items()}
            with gapless.count_waits(device) as waits:
                model(**moved)

    assert waits.count == 1
    assert {site.partition(":")[0] for _, site in waits.by_site} == {
        "transformers/masking_utils.py"
    }


def test_what_is_no_trainer_is_refused():
    """The error names what was given and what was expected."""
    with pytest.raises(gapless.UserError, match="expected a transformers"):
        capture_trainer(torch.nn.Linear(1, 1))


def test_sentences_are_generated_as_written():
    """Each token has another shape, for which a graph would be made."""
    args = SimpleNamespace(predict_with_generate=True)
    callback = CaptureInTraining(SimpleNamespace(args=args), None)

    assert callback.around_prediction(is_within_a_step)()
    assert not is_within_a_step()


def test_the_model_of_an_earlier_trial_is_released(tmp_path):
    """A Trainer that makes its model anew for each training would keep the graphs of all."""
    with testing.SimulatedDevice(scheduler="asap") as device, pytest.MonkeyPatch.context() as m:
        m.setenv("ACCELERATE_TORCH_DEVICE", str(device.torch_device))
        trainer = trainer_on(device, tmp_path, sentences(8), max_steps=1)
        trainer.model_init = lambda: bert()
        capture_trainer(trainer, device=device, quiet=True)
        trainer.train()
        first = trainer.model
        trainer.train()

    assert gapless.capture_report(trainer.model).num_eager == 1
    with pytest.raises(gapless.UserError):
        gapless.capture_report(first)


def test_positions_that_a_model_makes_are_looked_at_once_for_each_shape():
    """Others may be packed, and are looked at in each call."""
    looks = []
    find = packed_positions.looking_once(lambda positions: looks.append(positions.shape))
    made = torch.arange(4).expand(2, 4)
    packed_positions.note_positions(torch.nn.Linear)
    try:
        for positions in (made, made, made.clone(), made.clone(), made[:, :3]):
            assert find(positions) is None
    finally:
        packed_positions.note_positions(None)

    assert looks == [(2, 4), (2, 4), (2, 4), (2, 3)]
