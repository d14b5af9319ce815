"""What a watch in the process of the tests takes for its script."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def script_of_a_watch(monkeypatch, request):
    """It is the test's own file: a process of pytest has imported hundreds, and a look takes time."""
    monkeypatch.setattr("gapless.device.user_line.UserCode.files", lambda _: [request.node.path])
