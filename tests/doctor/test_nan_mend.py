"""What the doctor says of a loop that asks whether its loss is NaN: followed, a diverged run still ends.

A mend that puts 0.0 for the loss hides it: the weights are NaN from that step on, and the log says 0.0.
"""

from __future__ import annotations

import json
import re
import textwrap

import pytest
import torch

import gapless
from gapless.cli.main import run_command


LOOP = """\
import sys

import torch

model = torch.nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
{check}
    loss.backward()
    optimizer.step()
"""
LINE_OF_THE_CHECK = 10
# A check, and a word of what is said of it.
CHECKS = {
    "raises": ('if torch.isnan(loss):\n    raise RuntimeError("diverged")', "first_nonfinite"),
    "exits": ("if not torch.isfinite(loss):\n    sys.exit(1)", "first_nonfinite"),
    "asserts": ("assert not torch.isnan(loss).any()", "first_nonfinite"),
    "skips": ("if torch.isnan(loss):\n    optimizer.zero_grad()\n    continue", "GradScaler"),
}


def hides_the_loss(text):
    """Whether another number is put in the place of the loss that is not finite."""
    text = " ".join(text.split())
    return bool(
        re.search(r"loss = torch\.(where|nan_to_num|clamp)\(", text)
        or re.search(r"torch\.where\(\s*~?torch\.is(finite|nan)\(loss\)", text)
        or re.search(r"loss\.(nan_to_num_?|masked_fill_?)\(", text)
    )


@pytest.fixture
def found(tmp_path, capsys):
    """Returns the only finding of a loop with a check."""

    def look(check):
        path = tmp_path / "train.py"
        path.write_text(LOOP.format(check=textwrap.indent(check, "    ")), encoding="utf-8")
        assert run_command(["doctor", "--static", "--format", "json", str(path)]) == 0
        (finding,) = json.loads(capsys.readouterr().out)["findings"]
        return finding

    return look


@pytest.mark.parametrize("form", CHECKS)
def test_a_check_for_nan_is_found_and_no_mend_hides_the_loss(found, form):
    """A run that stops is told to stop some steps late, one that skips to leave weights alone."""
    check, word = CHECKS[form]

    finding = found(check)

    assert (finding["code"], finding["site"]["line"]) == ("GAP001", LINE_OF_THE_CHECK)
    assert word in finding["mend"]
    assert not hides_the_loss(finding["mend"])


def test_the_explanation_of_the_code_says_so_too(capsys):
    """`gapless explain GAP001` names the way to stop late, and none that hides."""
    assert run_command(["explain", "GAP001"]) == 0
    text = capsys.readouterr().out

    assert not hides_the_loss(text), text
    assert "first_nonfinite" in text, text
    assert "DeferredLoss" in text, text


class Training:
    """A model and its batches, of which one may be NaN; `losses` of all updates."""

    def __init__(self, *, bad=None):
        draw = torch.Generator().manual_seed(1)
        self.batches = [
            (torch.randn(8, 4, generator=draw), torch.randn(8, 1, generator=draw))
            for _ in range(40)
        ]
        if bad is not None:
            self.batches[bad][0].fill_(torch.nan)
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.losses = []

    def train_step(self, x, y):
        self.optimizer.zero_grad()
        loss = (self.model(x) - y).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())
        return loss.detach()

    def follow(self, mend):
        """Run the code of a mend; return losses and weights."""
        names = {"gapless": gapless, "device": torch.device("cpu"), "loader": self.batches}
        exec(mend.partition("\n")[2], names | {"train_step": self.train_step})
        return [*map(float, self.losses)], [one.tolist() for one in self.model.parameters()]

    def plain(self):
        for x, y in self.batches:
            self.train_step(x, y)
        return self.follow("")


@pytest.mark.parametrize("bad", [0, 5, 39])
def test_the_mend_as_it_is_printed_stops_a_run_that_diverged(found, bad):
    """Soon after the step that was NaN, with its number; a healthy run computes the same."""
    mend = found(CHECKS["raises"][0])["mend"]
    diverged = Training(bad=bad)

    with pytest.raises(RuntimeError, match=rf"step={bad}\b"):
        diverged.follow(mend)

    assert bad < len(diverged.losses) <= bad + 10
    assert Training().follow(mend) == Training().plain()
