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
