"""The line of the user's code that made a call."""

from __future__ import annotations

from gapless.device.call_site import call_site


def test_equal_code_of_two_files_has_two_sites():
    """Two scripts may hold the same function in the same line."""
    text = "\ndef where():\n    return call_site()\n"
    found = []
    for path in ("first.py", "second.py"):
        names = {"call_site": call_site}
        exec(compile(text, path, "exec"), names)
        found.append(names["where"]())

    assert found == ["first.py:3", "second.py:3"]


def test_what_torch_calls_on_behalf_of_a_line_is_not_that_line():
    """A mode or a subclass of the user's own stands between the line and the call."""
    text = "def __torch_function__():\n    return call_site()\n\nfound = __torch_function__()\n"
    names = {"call_site": call_site}
    exec(compile(text, "of_a_user.py", "exec"), names)

    assert names["found"] == "of_a_user.py:4"
