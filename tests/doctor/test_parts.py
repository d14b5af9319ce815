"""Which part of a program a line belongs to, and in which order findings stand."""

from __future__ import annotations

import ast
import re
import textwrap

import pytest
import torch

import gapless.doctor
from gapless.cli.main import run_command
from gapless.doctor.static.look import look_at
from gapless.doctor.static.parts import outlines_of, parts_of
from gapless.report.session_text import static_text


PROGRAMS = {
    "a_loop_that_calls_backward": """\
        device = setup()  # set-up
        for epoch in range(9):
            for x, y in loader:
                loss = model(x, y)  # step
                loss.backward()
            log(loss)  # step
        close()  # set-up
        """,
    "a_function_that_takes_a_step": """\
        def train_batch(x):
            read(x)  # step
            optimizer.step()

        def main():
            prepare()  # set-up
            for x in loader:
                show(x)  # step
                train_batch(x)
        """,
    "what_a_step_calls_through_others": """\
        def inner(x):
            return x.item()  # called

        def outer(x):
            return inner(x)  # called

        def nobody(x):
            return x.item()  # set-up

        for x in loader:
            outer(model(x)).backward()
        """,
    "an_evaluation_within_the_loop": """\
        def evaluate(model):
            for x in loader:
                return model(x)  # evaluation

        for step, x in enumerate(loader):
            if step % 9 == 0:
                model.eval()
                look(model)  # evaluation
            for y in val_loader:
                look(y)  # evaluation
            evaluate(model)  # step
            loss(x).backward()
        """,
    "a_part_of_a_model_that_is_called_evaluate": """\
        class Policy(Module):
            def evaluate(self, x):
                return x.item()  # called

        class PPO:
            def update(self):
                for x in self.buffer:
                    self.policy.evaluate(x).backward()

            def act(self, x):
                return x.item()  # called

        for update in range(9):
            for i in range(9):
                agent.act(i)  # set-up
            for i in range(9):
                collect(i)
                agent.update()
        """,
    "a_model_that_trains_itself": """\
        class Meta(Module):
            def forward(self, x):
                self.meta_optim.step()

        maml = Meta().to(device)
        for x in loader:
            x = x.to(device)  # step
            maml(x)
        """,
    "saving": """\
        def save_all(model):
            write(model.state_dict())  # saving

        for x in loader:
            loss(x).backward()
            save_all(model)
        """,
    "no_training_at_all": """\
        def run(x):
            return x.item()  # called
        """,
}
SCRIPT = """\
import torch

device = torch.device("cuda")
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate():
    for x in loader:
        print(model(x.to(device)).sum().item())


for x in loader:
    loss = model(x.to(device)).sum()
    loss.backward()
    print(loss.item())
    optimizer.step()
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_lines_have_their_part(name):
    """Each line with a comment that names one."""
    source = textwrap.dedent(PROGRAMS[name])
    wanted = {
        ("train.py", number): line.partition("  # ")[2]
        for number, line in enumerate(source.splitlines(), start=1)
        if "  # " in line
    }

    assert parts_of({"train.py": outlines_of(ast.parse(source))}, wanted) == wanted


def test_the_training_step_comes_first_and_evaluation_is_folded(tmp_path, monkeypatch):
    """Although it stands before in the file; a line says what is folded."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)

    look = look_at([tmp_path / "train.py"])

    assert [one.part for one in look.findings] == ["step", "step", "evaluation"]
    text = static_text(look.findings, num_files=1)
    assert text.startswith("In the training step:\ntrain.py:1")
    assert "\nEvaluation: train.py: 10 GAP001" in text


def test_many_findings_have_a_summary_by_file(tmp_path):
    """The file with the most of training first."""
    for name, copies in (("few.py", 1), ("many.py", 40)):
        loop = SCRIPT.partition("for x in loader:\n    loss")
        body = "\n".join(["    loss.item()"] * copies)
        (tmp_path / name).write_text(f"{loop[0]}for x in loader:\n    loss{loop[2]}{body}\n")

    text = static_text(look_at([tmp_path]).findings, num_files=2)

    first, second, third = text.splitlines()[:3]
    assert first.startswith("Findings by file")
    assert "many.py: 42 in training" in second
    assert "few.py" in third


def test_a_look_has_a_page(tmp_path, monkeypatch, capsys):
    """As a run has: its findings, each with its mend."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)

    assert run_command(["doctor", "--static", "--html", "look.html", "train.py"]) == 0

    assert "train.py:1" in capsys.readouterr().out
    page = (tmp_path / "look.html").read_text()
    assert "train.py:16" in page
    assert "</html>" in page
    assert "costliest" not in page
    assert "by file" not in page


def test_the_page_of_a_look_with_many_findings_has_a_list_by_file(tmp_path, monkeypatch, capsys):
    """Before the findings, as the text has it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT + "    print(loss.item())\n" * 45)

    assert run_command(["doctor", "--static", "--html", "look.html", "train.py"]) == 0

    page = (tmp_path / "look.html").read_text()
    num = int(re.search(r"train.py: (\d+) in training", capsys.readouterr().out)[1])
    assert page.index("Findings by file") < page.index("train.py:16")
    assert re.search(rf"train.py</code></th><td[^>]*>{num}</td>", page)


def test_a_watched_body_is_a_page_in_a_notebook():
    """In a frame, whose styles are its own; nothing before the body has ended."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with gapless.doctor.watch(warm_up=0, num_steps=2) as watched:
        assert watched._repr_html_() == ""
        for _ in range(9):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    page = watched._repr_html_()
    assert page.startswith('<iframe srcdoc="&lt;!doctype html')
    assert "CPU-BOUND" in page
