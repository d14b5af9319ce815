"""A real Chromium without a window, driven through its debugging pipe."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
from collections import deque
from time import monotonic


NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Far more than any answer takes, also on a busy machine.
LIMIT_SECONDS = 120.0

# Chromium reads commands from file 3 and writes to file 4.
_START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(file), fcntl.F_DUPFD, 10) for file in sys.argv[1:3]]
for number, end in enumerate(ends, 3):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_chromium():
    """Return the path of the system's Chromium, None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """Chromium with a profile of its own; commands and events are JSON that ends with a zero byte."""

    def __init__(self, path, folder):
        read, their_write = os.pipe()
        their_read, write = os.pipe()
        flags = [
            *("--headless", "--remote-debugging-pipe", "--hide-scrollbars", "--no-first-run"),
            *("--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"),
            *(f"--user-data-dir={folder}", "--force-color-profile=srgb"),
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(their_read), str(their_write), path, *flags],
            pass_fds=(their_read, their_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_read)
        os.close(their_write)
        self._read, self._write = read, write
        self._buffer = b""
        self._number = 0
        self.events = deque()

    def call(self, method, session=None, **parameters):
        """Send a command and return its answer; events that come before are kept."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = monotonic() + LIMIT_SECONDS
        while True:
            found = self._message(until, method)
            if found.get("id") == number:
                assert "error" not in found, (method, found["error"])
                return found["result"]
            if "method" in found:
                self.events.append(found)

    def _message(self, until, what):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            assert data, f"Chromium gave no answer to {what}"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    @contextlib.contextmanager
    def tab(self, path, *, width=1280, height=900, dark=False, media=""):
        """Open a file in a tab of its own."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        try:
            session = self.call("Target.attachToTarget", targetId=target, flatten=True)
            tab = Tab(self, session["sessionId"])
            tab.prepare(width=width, height=height, dark=dark, media=media)
            tab.open(path)
            yield tab
        finally:
            self.call("Target.closeTarget", targetId=target)

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write, b'{"id":0,"method":"Browser.close"}\0')
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)


class Tab:
    """A page in the browser."""

    def __init__(self, browser, session):
        self._browser = browser
        self._session = session

    def call(self, method, **parameters):
        return self._browser.call(method, self._session, **parameters)

    def prepare(self, *, width, height, dark, media):
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def open(self, path):
        self.call("Page.navigate", url=path.as_uri())
        until = monotonic() + LIMIT_SECONDS
        while not self.js(
            f"location.href === {json.dumps(path.as_uri())} && document.readyState === 'complete'"
        ):
            assert monotonic() < until, path

    def js(self, expression):
        """Return the value of an expression on the page."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press_tab(self):
        """Press the key that moves the focus, and let it go."""
        key = {"key": "Tab", "windowsVirtualKeyCode": 9}
        self.call("Input.dispatchKeyEvent", type="rawKeyDown", **key)
        self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def screenshot(self):
        """Return what is shown as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def events(self, *methods):
        """Return what the tab reported."""
        self.js("0")
        return [
            event["params"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event["method"] in methods
        ]
