"""Looking at files and folders without running them."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from gapless.doctor.static import look
from gapless.doctor.static.look import findings_of, look_at, python_files


WAITS = "import torch\nfor _ in range(9):\n    torch.cuda.synchronize()\n"


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_files_of_tests_are_looked_at_only_when_they_are_named(tmp_path):
    """What a test does it does once; so are hidden and built folders left out, but no scripts of such names."""
    write(tmp_path, a="", a_test="", test_a="import pytest", tests__b="", pack__c="", build__d="")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / ".hidden").mkdir()
    write(tmp_path / ".hidden", e="")

    found = python_files([tmp_path, tmp_path / "test_a.py"])

    names = [str(one.relative_to(tmp_path)) for one in found]
    assert names == ["a.py", "a_test.py", "pack/c.py", "test_a.py"]


def test_a_finding_says_where_what_and_what_to_write_instead(tmp_path, monkeypatch):
    """With the path as short as it can be."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, src__a=WAITS)

    (finding,) = look_at([tmp_path / "src"]).findings

    assert str(finding.site) == "src/a.py:3"
    assert finding.site.source == "torch.cuda.synchronize()"
    assert (finding.code, finding.certainty) == ("GAP011", "surely")
    assert finding.call in finding.cause
    assert finding.mend


@pytest.mark.parametrize(
    "bad",
    [
        b"x = (\n",
        b"\xff\xfe\x00 torch",
        b"torch = '\x00'\n",
        b"# coding: nonsense\n\xe9 torch\n",
        b"# coding: rot13\n\xe9 torch\n",
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch, bad):
    """And the others are looked at."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_bytes(b"import torch\n" + bad if bad.startswith(b"x") else bad)
    write(tmp_path, b=WAITS)

    seen = look_at([Path()])

    assert [one.site.path for one in seen.findings] == ["b.py"]
    assert [one.startswith("a.py") for one in seen.unread] == [True]


@pytest.mark.parametrize("depth", [5000, 100_000])
def test_a_file_nested_too_deep_is_named(tmp_path, monkeypatch, depth):
    """It does not end the look at the others."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, a="import torch\nx = " + "-" * depth + "1\n", b=WAITS)

    seen = look_at([Path()])

    assert len(seen.findings) == len(seen.unread) == 1


def test_what_is_no_file_to_read_holds_nobody_up(tmp_path, monkeypatch):
    """A pipe with a name is left alone in a folder and named where it is asked for; so are odd links."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.py")
    Path("x.py").symlink_to("y.py")
    Path("y.py").symlink_to("x.py")
    write(tmp_path, b=WAITS)

    everything, asked = look_at([Path()]), look_at([Path("pipe.py")])

    assert len(everything.findings) == 1
    assert [one.split(" ", 1)[0] for one in everything.unread] == ["x.py", "y.py"]
    assert (everything.num_files, asked.num_files) == (1, 0)
    assert asked.unread == ("pipe.py is no regular file.",)


def test_a_notebook_is_named_as_one(tmp_path, monkeypatch):
    """Its JSON is Python's syntax as well, and holds no call."""
    monkeypatch.chdir(tmp_path)
    Path("n.ipynb").write_text('{"cells": []}')

    (said,) = look_at([Path("n.ipynb")]).unread

    assert "is a notebook" in said
    assert "nbconvert" in said


def test_lines_are_those_of_python(tmp_path, monkeypatch):
    """A form feed, or a separator of Unicode, ends none."""
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("# \x0c \u2028 \x1c\n" + WAITS, encoding="utf-8")

    (found,) = look_at([Path("a.py")]).findings

    assert found.site.source == "torch.cuda.synchronize()"


def test_nothing_is_warned_of(tmp_path, monkeypatch):
    """What Python has to say of a text, whoever runs it hears."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, a='x = "\\d"\n' + WAITS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen = look_at([Path("a.py")])

    assert len(seen.findings) == 1


def test_a_file_of_another_encoding_is_read(tmp_path):
    """Its first line says which."""
    (tmp_path / "a.py").write_bytes(b"# coding: latin-1\n# \xe9\n" + WAITS.encode())

    assert len(look_at([tmp_path]).findings) == 1


def test_values_may_come_from_a_module_beside(tmp_path):
    """A file without a word of torch's is looked at if what it imports has one."""
    user = "from train_parts import step\nfor _ in range(9):\n    value = float(step().loss)\n"
    write(tmp_path, a=user)
    alone = look_at([tmp_path / "a.py"])
    write(tmp_path, train_parts="import torch\n")

    beside = look_at([tmp_path / "a.py"])

    assert len(alone.findings) == 0
    assert len(beside.findings) == 1


def test_a_script_trains_on_the_host_where_no_file_names_a_device(tmp_path):
    """Its losses wait for nothing; a file beside it that names one may have moved its model there."""
    loop = "import torch\nfor loss in losses:\n    loss.backward()\n    print(loss.item())\n"
    write(tmp_path, train=loop)
    alone = look_at([tmp_path])
    write(tmp_path, model="import torch\nmodel = torch.nn.Linear(2, 2).cuda()\n")

    beside = look_at([tmp_path])

    assert alone.findings == ()
    assert [(one.code, one.site.line) for one in beside.findings] == [("GAP001", 4)]


def test_several_processes_find_what_one_does(tmp_path, monkeypatch):
    """In the same order."""
    write(tmp_path, **{f"m{i}": WAITS for i in range(20)})
    alone = look_at([tmp_path])
    monkeypatch.setattr(look, "_WORTH_A_PROCESS_BYTES", 1)
    monkeypatch.setattr(look, "num_cores", lambda: 2)

    shared = look_at([tmp_path])

    assert shared == alone
    assert len(shared.findings) == 20


def test_torch_is_not_imported():
    """So that a hook starts at once."""
    code = (
        "import sys; from gapless.doctor.static.look import findings_of; findings_of('x', 'x.py'); "
        "print([name for name in ('torch', 'numpy') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert done.stdout.strip() == "[]"


SETUP = """
import torch
device = "cuda"
model = torch.nn.Linear(2, 2).to(device)
"""


def certainties(code: str) -> dict[int, str]:
    first = SETUP.count("\n")
    return {one.site.line - first: one.certainty for one in findings_of(SETUP + code, "s.py")}


def test_a_function_is_as_hot_as_its_calls():
    """What is called in a loop counts as the loop; what is called once is not reported."""
    read = "def read(x):\n    return x.item()\n"
    value = "model(torch.ones(2, device=device)).sum()"

    assert certainties(f"{read}print(read({value}))\n") == {}
    assert certainties(f"{read}for _ in range(9):\n    read({value})\n") == {2: "surely"}


def test_what_calls_pass_decides_what_a_parameter_is():
    """A tensor of the host that is passed in makes no wait."""
    read = "def read(x):\n    return x.item()\n"

    assert certainties(f"{read}for _ in range(9):\n    read(torch.ones(2).sum())\n") == {}


def test_a_loop_changes_what_a_name_holds():
    """From its second turn on the name holds what the first one left."""
    code = "x = torch.ones(2)\nfor _ in range(9):\n    y = x.sum().item()\n    x = x.to(device)\n"

    assert certainties(code) == {3: "maybe", 4: "maybe"}


def test_beside_a_loop_of_training_nothing_is_reported():
    """It runs once an epoch, or once."""
    code = (
        "def train(batches):\n"
        "    for x in batches:\n"
        "        loss = model(x.to(device)).sum()\n"
        "        loss.backward()\n"
        "    return loss.item()\n"
        "for _ in range(9):\n"
        "    train([torch.ones(2)])\n"
    )

    assert certainties(code) == {3: "surely"}
