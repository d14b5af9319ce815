"""One browser for all tests of pages."""

from __future__ import annotations

import pytest

from browser import Browser, find_chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Return a Chromium without a window."""
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium on this machine; on Debian: apt-get install chromium")
    found = Browser(path, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()
