"""What the doctor says of a loop that asks whether its loss is NaN: followed, a diverged run still ends.

A mend that puts 0.0 for the loss hides it: the weights are NaN from that step on, and the log says 0.0.
"""

from __future__ import annotations

import ast
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

STOPS = {
    "raises": 'if torch.isnan(loss):\n    raise RuntimeError("diverged")',
    "exits": "if not torch.isfinite(loss):\n    sys.exit(1)",
    "asserts": "assert not torch.isnan(loss).any()",
}

SKIPS = {"skips": "if torch.isnan(loss):\n    optimizer.zero_grad()\n    continue"}

CHECKS = {**STOPS, **SKIPS}

LEAVES_WEIGHTS_ALONE = re.compile(r"weights|parameters|grad\b|gradient|found_inf|GradScaler", re.I)


@pytest.fixture
def script(tmp_path):
    """Writes a loop with a check; returns its path."""

    def write(check):
        path = tmp_path / "train.py"
        path.write_text(LOOP.format(check=textwrap.indent(check, "    ")), encoding="utf-8")
        return path

    return write


def findings(path, capsys):
    assert run_command(["doctor", "--static", "--format", "json", str(path)]) == 0
    return json.loads(capsys.readouterr().out)["findings"]


def printed(path, capsys):
    assert run_command(["doctor", "--static", str(path)]) == 0
    return capsys.readouterr().out


def code_of(finding):
    """Return the code of a finding's mend: what follows its sentence."""
    return finding["mend"].partition("\n")[2]


def hides_the_loss(text):
    """Whether another number is put in the place of the loss that is not finite."""
    text = " ".join(text.split())
    return bool(
        re.search(r"loss = torch\.(where|nan_to_num|clamp)\(", text)
        or re.search(r"torch\.where\(\s*~?torch\.is(finite|nan)\(loss\)", text)
        or re.search(r"loss\.(nan_to_num_?|masked_fill_?)\(", text)
    )


def line_of_the_check(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if "torch.is" in line)


# ------------------------------------------------------------------------------- what is said


@pytest.mark.parametrize("form", CHECKS)
def test_a_check_for_nan_is_found(script, capsys, form):
    """As GAP001, at its line, for sure."""
    path = script(CHECKS[form])

    found = [(one["code"], one["site"]["line"]) for one in findings(path, capsys)]

    assert found == [("GAP001", line_of_the_check(path))]
    assert f":{line_of_the_check(path)}: GAP001" in printed(path, capsys)


@pytest.mark.parametrize("form", CHECKS)
def test_no_mend_hides_a_loss_that_is_not_finite(script, capsys, form):
    """Neither in the text nor in a session."""
    path = script(CHECKS[form])
    text = printed(path, capsys)

    assert not hides_the_loss(text), text
    assert not any(hides_the_loss(one["mend"]) for one in findings(path, capsys))


@pytest.mark.parametrize("form", STOPS)
def test_a_run_that_stops_is_told_to_stop_some_steps_late(script, capsys, form):
    """By the value that has come to the host: its code, or its sentence, has both names."""
    text = printed(script(STOPS[form]), capsys)

    assert "first_nonfinite" in text, text
    assert "DeferredLoss" in text, text


@pytest.mark.parametrize("form", SKIPS)
def test_a_step_that_is_skipped_is_told_to_leave_weights_alone(script, capsys, form):
    """On the device: the update, not the number in the log."""
    text = printed(script(SKIPS[form]), capsys)

    advice = text.partition("the host waits until it is computed.")[2] or text
    assert LEAVES_WEIGHTS_ALONE.search(advice), text


def test_the_explanation_of_the_code_says_so_too(capsys):
    """`gapless explain GAP001` names the way to stop late, and none that hides."""
    assert run_command(["explain", "GAP001"]) == 0
    text = capsys.readouterr().out

    assert not hides_the_loss(text), text
    assert "first_nonfinite" in text, text
    assert "DeferredLoss" in text, text


@pytest.mark.parametrize("form", CHECKS)
def test_the_code_of_a_mend_is_code(script, capsys, form):
    """It is parsed by Python."""
    for one in findings(script(CHECKS[form]), capsys):
        ast.parse(code_of(one))


# ------------------------------------------------------------------------------- what it does

EVERY = 10
STEPS = 40
BAD = 5


class Training:
    """A model and its batches, of which one may be NaN."""

    def __init__(self, *, bad=None):
        draw = torch.Generator().manual_seed(1)
        self.batches = [
            (torch.randn(8, 4, generator=draw), torch.randn(8, 1, generator=draw))
            for _ in range(STEPS)
        ]
        if bad is not None:
            self.batches[bad][0].fill_(torch.nan)
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.losses = []

    def loss_of(self, x, y):
        self.optimizer.zero_grad()
        return (self.model(x) - y).square().mean()

    def update(self, loss):
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())

    def seen(self):
        return [*map(float, self.losses)], [one.tolist() for one in self.model.parameters()]


def plain():
    training = Training()
    for x, y in training.batches:
        loss = training.loss_of(x, y)
        if torch.isnan(loss):
            raise RuntimeError("diverged")
        training.update(loss)
    return training.seen()


def late(training):
    """A loop by hand that asks `first_nonfinite`, after `latest` has sent and taken what is there."""
    losses = gapless.DeferredLoss("cpu", warn_nonfinite=False)
    for step, (x, y) in enumerate(training.batches):
        loss = training.loss_of(x, y)
        training.update(loss)
        losses.add(loss)
        if step % EVERY == EVERY - 1:
            losses.latest()
            if losses.first_nonfinite is not None:
                raise RuntimeError(f"diverged: {losses.first_nonfinite}")
    losses.drain()
    if losses.first_nonfinite is not None:
        raise RuntimeError(f"diverged: {losses.first_nonfinite}")


def test_a_loop_that_stops_late_computes_the_same_while_it_is_healthy():
    """Losses and weights, to the last bit."""
    training = Training()
    late(training)

    assert training.seen() == plain()


@pytest.mark.parametrize("bad", [0, BAD, EVERY - 1, EVERY, STEPS - 1])
def test_a_loop_that_stops_late_names_the_step(bad):
    """It ends within the interval in which it reads, or at the end of the epoch."""
    training = Training(bad=bad)

    with pytest.raises(RuntimeError, match=rf"step={bad}\b"):
        late(training)

    assert bad < len(training.losses) <= bad + EVERY


class Mended:
    """A mend's code in its loop: what makes the `DeferredLoss` and functions stand before it.

    The rest stands where the check stood. A code with a loop of its own is run as it is.
    """

    def __init__(self, code):
        tree = ast.parse(code)
        self.is_a_loop = any(isinstance(one, ast.For) for one in tree.body)
        first = [one for one in tree.body if self._is_before(one)]
        rest = [one for one in tree.body if not self._is_before(one)]
        if self.is_a_loop:
            first, rest = tree.body, []
        self.before, self.within = self._compiled(first), self._compiled(rest)

    @staticmethod
    def _is_before(node):
        kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef)
        return isinstance(node, kinds) or "DeferredLoss(" in ast.unparse(node)

    @staticmethod
    def _compiled(nodes):
        return compile(ast.Module(list(nodes), []), "mend.py", "exec")

    def run(self, training):
        """Run it with the names that scripts have."""
        updates = []
        names = {
            "torch": torch,
            "gapless": gapless,
            "device": torch.device("cpu"),
            "model": training.model,
            "optimizer": training.optimizer,
            "loader": training.batches,
            "batches": training.batches,
            "epoch": 0,
        }

        def train_step(x, y):
            loss = training.loss_of(x, y)
            training.update(loss)
            updates.append(loss)
            return loss.detach()

        names |= {"train_step": train_step, "update": training.update}
        exec(self.before, names)
        if not self.is_a_loop:
            for step, (x, y) in enumerate(training.batches):
                names |= {"step": step, "x": x, "y": y, "loss": training.loss_of(x, y)}
                exec(self.within, names)
                training.update(names["loss"])


@pytest.mark.filterwarnings("ignore:.*expected a finite number:RuntimeWarning")
@pytest.mark.parametrize("form", STOPS)
def test_the_mend_as_it_is_printed_stops_a_run_that_diverged(script, capsys, form):
    """Soon after the step that was NaN, with its number; a healthy run computes the same."""
    (one,) = findings(script(STOPS[form]), capsys)
    mended, healthy, diverged = Mended(code_of(one)), Training(), Training(bad=BAD)

    mended.run(healthy)
    assert healthy.seen() == plain()
    with pytest.raises((Exception, SystemExit)) as caught:
        mended.run(diverged)

    assert not isinstance(caught.value, (NameError, AttributeError, TypeError)), caught.value
    assert BAD <= len(diverged.losses) < STEPS
    assert re.search(rf"\b{BAD}\b", str(caught.value)), caught.value
