"""Whose code it is, and the line of the user's code that made a call."""

from __future__ import annotations

import sys
import types

from gapless.device.user_line import UserCode, call_site


def test_equal_code_of_two_files_has_two_sites():
    """Two scripts may hold the same function in the same line."""
    text = "\ndef where():\n    return call_site()\n"
    found = []
    for path in ("first.py", "second.py"):
        names = {"call_site": call_site}
        exec(compile(text, path, "exec"), names)
        found.append(names["where"]())

    assert found == ["first.py:3", "second.py:3"]


def test_a_line_of_an_installed_package_has_its_folders():
    """A user has no `loop.py`, and looks for it in vain."""
    path = "/env/lib/python3.11/site-packages/torch_geometric/utils/loop.py"
    names = {"call_site": call_site}
    exec(compile("found = call_site()", path, "exec"), names)

    assert names["found"] == "torch_geometric/utils/loop.py:1"


def test_what_torch_calls_on_behalf_of_a_line_is_not_that_line():
    """A mode or a subclass of the user's own stands between the line and the call."""
    text = "def __torch_function__():\n    return call_site()\n\nfound = __torch_function__()\n"
    names = {"call_site": call_site}
    exec(compile(text, "of_a_user.py", "exec"), names)

    assert names["found"] == "of_a_user.py:4"


def test_a_library_on_a_path_of_the_users_is_no_file_of_the_script(tmp_path, monkeypatch):
    """Else all of torch is looked at where PYTHONPATH or a .pth file leads to it."""
    for folder in ("project", "env/lib/site-packages"):
        module = types.ModuleType(f"of_{len(folder)}")
        module.__file__ = str(tmp_path / folder / "some.py")
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "some.py").touch()
        monkeypatch.setitem(sys.modules, module.__name__, module)

    found = [path for path in UserCode().files() if tmp_path in path.parents]

    assert found == [tmp_path / "project" / "some.py"]


def test_files_are_whose_lines_are(tmp_path, monkeypatch):
    """A framework in a checkout is none of the script's; a package that was run with -m is, installed or not."""
    for name, folder in (("timm.layers", "checkout"), ("trainer.run", "lib/site-packages")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "some.py").touch()
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / folder / "some.py")
        monkeypatch.setitem(sys.modules, name, module)

    found = [path for path in UserCode("trainer").files() if tmp_path in path.parents]

    assert found == [tmp_path / "lib/site-packages" / "some.py"]
