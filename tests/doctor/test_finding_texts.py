"""The words of a finding: what happens at a line, and what to write instead."""

from __future__ import annotations

import ast
import re
from typing import Any, get_args

import pytest
import torch
import torch.distributed
import torch.distributions

import gapless
from gapless.doctor.advice.causes import Cause
from gapless.doctor.advice.explanations import explanations
from gapless.doctor.advice.finding_texts import _OF_CALLS, cause_text, mend_text
from gapless.doctor.advice.own_mends import Places


every_cause = pytest.mark.parametrize("cause", get_args(Cause))


@every_cause
def test_a_cause_is_one_sentence_with_the_call_and_what_was_found(cause):
    """A finding says in one line what happens; the call and its detail stand in it."""
    text = cause_text(cause, "Tensor.of_mine", "64 x 8 float32, 2 KiB")

    assert text.endswith(" (64 x 8 float32, 2 KiB).")
    assert "\n" not in text
    assert "{" not in text
    assert ". " not in text.replace("Tensor.of_mine", "")
    assert text[0].isupper()
    assert "(" not in cause_text(cause, "call")


@pytest.mark.parametrize("detail", ["", "has 2 workers"])
def test_advice_to_read_ahead_says_when_it_changes_results(detail):
    """A loader that is read ahead draws from a generator before the loop does."""
    text = mend_text("loader", "DataLoader", detail)

    assert "depth=2" in text
    assert "changes results where loader and loop draw from one random generator" in text


CALLS = [
    (cause, call)
    for cause in get_args(Cause)
    for call in ("Tensor.of_mine", *_OF_CALLS.get(cause, ()))
]


@pytest.mark.parametrize(("cause", "call"), CALLS)
def test_a_mend_is_a_sentence_and_python_code(cause, call):
    """What follows the first line can be read by Python."""
    sentence, _, code = mend_text(cause, call).partition("\n")

    assert sentence.endswith(".")
    assert sentence[0].isupper()
    ast.parse(code)


def test_a_late_read_prints_the_mean_of_its_own_steps(capsys):
    """The sum begins anew after each read."""
    code = mend_text("item", "Tensor.item").partition("\n")[2]
    names: dict[str, Any] = {"total": torch.zeros(())}

    for step in range(20):
        exec(code, names, {"step": step, "loss": torch.tensor(float(step < 10))})

    assert capsys.readouterr().out == "1.0\n0.0\n"


# Of each cause the calls that have a mend of their own, and a word of it that the cause's own mend has not.
OF_CALLS = {
    "loader": {
        "batches of the loop": "in worker processes of a DataLoader",
        "a step of an environment": "Step several environments",
        "DataLoader.__next__ has 2 workers": "less to do",
    },
    "float": {
        "Tensor.add_": "formula",
        "Tensor.sub": "formula",
        "Tensor.clamp": "formula",
        "torch.full": "formula",
        "Tensor.fill_": "formula",
        "Tensor.lerp": "formula",
        "Tensor.masked_fill": "formula",
    },
    "item": {"GradScaler.get_scale": "scale"},
    "validation": {"AveragedModel.update_parameters": "average"},
    "gc": {"gc.collect": "after each epoch"},
    "cpu": {"torch.nn.functional.ctc_loss": "lengths", "pad_packed_sequence": "enforce_sorted"},
    "copy": {"pack_padded_sequence": "enforce_sorted"},
    "shape": {
        "Tensor.__setitem__": "x[mask] = 0.0",
        "Tensor.nonzero": "nonzero_static",
        "torch.unique": "scatter_add_",
        "torch.bincount": "minlength",
        "torch.nn.functional.one_hot": "num_classes",
        "torch.repeat_interleave": "output_size",
    },
    "optimizer": {
        "ReduceLROnPlateau.step": "after the epoch",
        "BatchNorm2d.forward": "momentum",
        "LBFGS.step": "inner steps",
    },
}


@pytest.mark.parametrize("cause", _OF_CALLS)
def test_a_call_with_a_mend_of_its_own_gets_it(cause):
    """One cause has several calls, and what helps one of them does not help the other."""
    for call, word in OF_CALLS[cause].items():
        name, _, detail = call.partition(" ")
        assert word in mend_text(cause, name, detail)
        assert word not in mend_text(cause, "Tensor.of_mine")
    for own in _OF_CALLS[cause]:
        assert any(own in call for call in OF_CALLS[cause])


def test_a_mask_is_chosen_from_with_where():
    """What an index is, the detail says."""
    assert "torch.where" in mend_text("shape", "Tensor.__getitem__", "a mask of 64 x 8")


def place_of(code):
    """Return the place of the first line of a piece of code; an empty block is filled."""
    return Places(ast.parse(code + " pass" if code.endswith(":") else code)).at(1)


NAN_CHECKS = [
    "if torch.isnan(loss):",
    "if not torch.isfinite(loss): sys.exit(1)",
    "assert not torch.isnan(loss).any()",
    "if math.isnan(loss.item()):",
]


@pytest.mark.parametrize("line", NAN_CHECKS)
def test_a_check_for_nan_is_not_told_to_hide_it(line):
    """A loss that is set to 0.0 trains on with weights that are NaN, and nobody is told."""
    for cause in ("bool", "float", "item"):
        mend = mend_text(cause, "call", place=place_of(line))

        assert "first_nonfinite" in mend
        assert "torch.where" not in mend


@pytest.mark.parametrize(
    "line", ["if approx_kl > target_kl: break", "bad += not loss.isfinite()", "if done:"]
)
def test_a_condition_of_another_kind_gets_no_mend_for_nan(line):
    """An early stop is the loop's own: to skip batches or to look for NaN does not help it."""
    mend = mend_text("bool", "Tensor.__bool__", place=place_of(line))

    assert "nonfinite" not in mend
    assert "isfinite" not in mend
    assert "GradScaler" not in mend


def skip_loop(code):
    """Run a loop of twelve batches, two of them NaN; return weights and the optimizer's state."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    batches = [(x, x.sum(1, keepdim=True)) for x in torch.randn(12, 8, 4)]
    for step in (3, 7):
        batches[step][1][0] = torch.nan
    names = {"torch": torch, "F": torch.nn.functional, "model": model, "loader": batches}
    names["device"] = torch.device("cpu")
    exec(code, names)
    state = names["optimizer"].state.values()
    return [*model.parameters(), *(one for its in state for one in its.values())]


def test_a_skipped_batch_leaves_weights_and_optimizer_as_they_are():
    """As a check and `continue` did, bit for bit, also with decay and momentum."""
    lines = "if torch.isnan(loss):\n    optimizer.zero_grad()\n    continue"
    code = mend_text("bool", "call", place=place_of(lines)).partition("\n")[2]
    asks = code.replace(
        "    scaler.scale(loss)", "    if loss.isnan():\n        continue\n    loss"
    )
    asks = asks.replace("scaler.step(optimizer)", "optimizer.step()").replace(
        "scaler.update()", ""
    )

    mended, before = skip_loop(code), skip_loop(asks)

    assert len(mended) == 8
    assert all(map(torch.equal, mended, before))


def test_a_method_of_two_underscores_is_called_as_people_write_it():
    """Newcomers do not know Tensor.__float__."""
    assert cause_text("float", "Tensor.__float__").startswith("float(tensor) makes ")
    assert "the loader has none ready" in cause_text("loader", "DataLoader.__next__")


def said_anywhere():
    """Return all texts of findings and of explanations."""
    mends = [
        mend_text(cause, call)
        for cause in get_args(Cause)
        for call in ("", *_OF_CALLS.get(cause, ()))
    ]
    return [*mends, *(text for its in explanations().values() for text in its)]


def test_every_name_of_torch_and_of_gapless_exists():
    """What people are told to write is there in the torch that is installed."""
    named = {
        name
        for text in said_anywhere()
        for name in re.findall(r"\b(?:torch|gapless)(?:\.\w+)+", text)
    }

    missing = []
    for name in sorted(named):
        value: Any = {"torch": torch, "gapless": gapless}[name.partition(".")[0]]
        for part in name.split(".")[1:]:
            value = getattr(value, part, None)
        missing += [name] if value is None else []
    assert len(named) > 30
    assert missing == []
