"""Private names of frameworks: each is there, and none that is missing ends a user's loop."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch

from gapless.integrations import framework_private
from gapless.integrations.lightning_step import objection_to_fit
from integrations.frameworks import FRAMEWORKS, is_installed, load


load(*filter(is_installed, FRAMEWORKS))


def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


# --- each is there ---


def test_lightning_files_what_is_logged_by_a_name_of_its_module():
    """It is None between hooks."""
    pytest.importorskip("lightning")
    import lightning

    assert "_current_fx_name" in vars(lightning.LightningModule())
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_model_summary=False
    )
    assert "_current_fx" in vars(trainer._logger_connector)
    assert hasattr(trainer.fit_loop.epoch_loop._results, "_extract_batch_size")
    assert hasattr(type(trainer), "_results")


def test_accelerate_has_what_it_has_prepared():
    """And its optimizers have the steps that a scaler calls."""
    pytest.importorskip("accelerate")
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    prepared = accelerator.prepare(model, optimizer())

    assert framework_private.prepared_by(accelerator) == ([prepared[0]], [prepared[1]])
    scaled = AcceleratedOptimizer(optimizer(), scaler=torch.amp.GradScaler("cpu"))
    assert {
        "_optimizer_original_step_method",
        "_optimizer_patched_step_method",
        "_accelerate_step_called",
    } <= set(vars(scaled))


def test_transformers_asks_about_masks():
    """By these functions."""
    pytest.importorskip("transformers")
    from transformers import masking_utils

    assert all(hasattr(masking_utils, name) for name in framework_private.ASK_ABOUT_MASKS)


def test_a_trainer_knows_when_it_has_logged():
    """Since its training began."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from transformers import Trainer

    assert "_globalstep_last_logged" in Trainer._inner_training_loop.__code__.co_names


def test_torch_says_which_optimizers_unscale_gradients_themselves():
    """Fused ones do."""
    weight = torch.nn.Parameter(torch.zeros(1))

    assert framework_private.steps_by_scaler(torch.optim.AdamW([weight], fused=True))
    assert not framework_private.steps_by_scaler(optimizer())


# --- each may be missing ---


def test_nothing_is_captured_where_lightning_files_nothing_by_hooks():
    """Whoever calls no hook could not say where a value belongs."""
    trainer = SimpleNamespace()
    module = SimpleNamespace(automatic_optimization=True)

    assert "which hook logs" in objection_to_fit(trainer, module, None)


def test_values_are_logged_in_full_where_lightning_does_not_say_where_it_keeps_them():
    """As before the first of them."""
    module = SimpleNamespace(trainer=SimpleNamespace())

    assert framework_private.result_of(module, "training_step", "loss") is None
    assert not framework_private.log_again(
        module, "training_step", "loss", torch.ones(()), None, SimpleNamespace()
    )


def test_nothing_is_captured_of_an_accelerator_that_does_not_say_what_it_prepared():
    """As if it had prepared nothing."""
    assert framework_private.prepared_by(SimpleNamespace()) == ((), ())


def test_losses_are_read_as_before_where_a_trainer_does_not_say_when_it_logged():
    """The filter is the Trainer's own then."""
    assert not framework_private.knows_last_log(SimpleNamespace())


def test_an_optimizer_unscales_nothing_where_torch_does_not_say_so():
    """The scaler does."""
    assert not framework_private.steps_by_scaler(SimpleNamespace())


# --- what is replaced is put back ---


def test_functions_of_frameworks_are_put_back_when_the_last_user_is_gone():
    """Those of masks with the last model, that of batches with the last Accelerator."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from accelerate import data_loader
    from transformers import BertConfig, BertModel, masking_utils
    from transformers.utils import import_utils

    from gapless.integrations.attention_masks import answer_before_calls
    from gapless.integrations.batches import move_without_waits
    from gapless.testing import SimulatedDevice

    holders = (masking_utils, import_utils, data_loader)
    gc.collect()
    before = [dict(vars(holder)) for holder in holders]
    tiny = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9}
    models = [BertModel(BertConfig(intermediate_size=8, **tiny)) for _ in range(2)]
    for model in models:
        answer_before_calls(model)
        move_without_waits(SimulatedDevice(), model)
    del model

    def changed():
        return {
            name
            for holder, then in zip(holders, before, strict=True)
            for name, value in vars(holder).items()
            if then.get(name) is not value
        }

    replaced = changed()
    models.pop()
    gc.collect()
    assert changed() == replaced

    models.clear()
    gc.collect()
    assert changed() == set()
    assert {"send_to_device", "is_cuda_stream_capturing"} < replaced
