"""What a run does where its settings leave it open, and what a resumed run must keep."""

from __future__ import annotations

import pytest

from gapless.errors import UserError
from gapless.nmt.run.config import make_config
from gapless.nmt.run.resolved import resolve
from gapless.nmt.run.resume import FIXED_ON_RESUME, resolve_resumed, settings_to_keep


TOKENS = {"batch_tokens": 512}
SENTENCES = {"batch_tokens": None, "batch_size": 8}


def make(**settings):
    # Not the embedded corpus, whose settings have a budget of tokens.
    return make_config({"data": "somewhere", **settings})


@pytest.mark.parametrize(
    ("settings", "on_gpu", "on_cpu"),
    [
        ({**TOKENS, "plan": "auto"}, "packed", "padded"),
        ({**TOKENS, "plan": "gapless"}, "packed", "padded"),
        ({**TOKENS, "plan": "captured", "pack": False}, "fixed", "padded"),
        ({**TOKENS, "plan": "gapless", "pack": False}, "padded", "padded"),
        ({**TOKENS, "fixed_shapes": True}, "fixed", "fixed"),
        ({**TOKENS, "fixed_shapes": False}, "packed", "padded"),
        ({**TOKENS, "pack": False, "fixed_shapes": False}, "padded", "padded"),
        ({**TOKENS, "pack": True}, "packed", "packed"),
        ({**SENTENCES, "plan": "auto"}, "fixed", "padded"),
        ({**SENTENCES, "plan": "blocking"}, "padded", "padded"),
        ({**SENTENCES, **TOKENS, "plan": "captured"}, "fixed", "padded"),
        ({**SENTENCES, **TOKENS, "pack": True}, "packed", "packed"),
    ],
)
def test_the_layout_follows_settings_plan_and_device(settings, on_gpu, on_cpu):
    """Token budgets are packed on a GPU; plans that capture get fixed shapes there."""
    config = make(**settings)

    assert resolve(config, is_accelerator=True).layout == on_gpu
    assert resolve(config, is_accelerator=False).layout == on_cpu


@pytest.mark.parametrize(
    ("settings", "on_gpu"),
    [
        ({"plan": "captured"}, True),
        ({"plan": "auto"}, True),
        ({"plan": "gapless"}, False),
        ({"plan": "gapless", "compile": True}, True),
        ({"plan": "auto", "compile": False}, False),
    ],
)
def test_layers_are_compiled_where_the_plan_may_capture(settings, on_gpu):
    """On a GPU the plan decides unless the settings do; on a CPU only the settings."""
    config = make(**settings)

    assert resolve(config, is_accelerator=True).compiles is on_gpu
    assert resolve(config, is_accelerator=False).compiles is bool(config.compile)


def test_packing_needs_a_budget_of_tokens():
    """Packing is refused where batches are counted in sentences alone."""
    with pytest.raises(UserError, match=r"`pack`.*`batch_tokens`"):
        resolve(make(batch_size=8, pack=True), is_accelerator=True)


def test_what_a_run_keeps_has_these_keys():
    """The keys are the format of a file, which resumed runs of earlier versions have too."""
    config = make(**TOKENS)
    kept = settings_to_keep(config, resolve(config, is_accelerator=True))

    assert list(kept) == ["pack", "fixed_shapes", "compile", *FIXED_ON_RESUME]
    assert [kept[name] for name in ("pack", "fixed_shapes", "compile")] == [True, False, True]
    assert set(FIXED_ON_RESUME) == {
        *("seed", "max_length", "batch_size", "batch_tokens", "accumulate"),
        *("tokenizer", "vocab_size", "vocab_model", "heads", "norm"),
    }


@pytest.mark.parametrize("is_accelerator", [True, False])
@pytest.mark.parametrize("settings", [{}, {"pack": True}, {"fixed_shapes": True}])
def test_a_resumed_run_keeps_its_layout_on_another_device(settings, is_accelerator):
    """Settings that are left open mean what they meant where the run began."""
    config = make(**TOKENS, **settings)
    begun = resolve(config, is_accelerator=is_accelerator)

    assert resolve_resumed(config, settings_to_keep(config, begun)) == begun


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"pack": False}, "`pack` is false, but the run began with true"),
        ({"fixed_shapes": True, "pack": None}, "`fixed_shapes` is true, but the run began with false"),
        ({"norm": "post"}, "`norm` is post, but the run began with pre"),
        ({"batch_size": 9}, "`batch_size` is 9, but the run began with none"),
    ],
)  # fmt: skip
def test_a_resumed_run_cannot_change_what_is_fixed(flags, message):
    """The error names the setting, what was asked for and what the run began with."""
    config = make(**TOKENS, pack=True)
    kept = settings_to_keep(config, resolve(config, is_accelerator=True))

    with pytest.raises(UserError, match=message):
        resolve_resumed(make(**{**TOKENS, "pack": True, **flags}), kept)
