"""The report of a session of 200 steps: its size, and the seconds until Chromium shows it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.doctor.commands import ROOT
from gapless.report.html.session_page import session_page
from gapless.report.session_json import read_session


if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.doctor.options import Options


NUM_STEPS = 200
MOST_BYTES, MOST_SECONDS = 5_000_000, 2.0


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """Yield size and time of the page of a saved session, or of a made-up one of 200 steps."""
    sys.path.append(str(ROOT / "tests"))
    from browser import Browser, find_chromium
    from made_up_session import made_up_session

    if options.session:
        text = options.session.read_text(encoding="utf-8")
        session = read_session(text, str(options.session))
    else:
        session = made_up_session(num_steps=20 if options.is_small else NUM_STEPS, kernels=600)
    began = perf_counter()
    text = session_page(session)
    render_s = perf_counter() - began
    seconds: list[float] = []
    chromium = find_chromium()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "report.html"
        path.write_text(text, encoding="utf-8")
        if chromium:
            browser = Browser(chromium, f"{name}/profile")
            try:
                for _ in range(options.rounds):
                    began = perf_counter()
                    with browser.tab(path):
                        seconds.append(perf_counter() - began)
            finally:
                browser.close()
        size = path.stat().st_size
    # A page that leaves steps out because they are too many is no page of all of them.
    is_whole = "steps are drawn, as there are too many events" not in text
    opens = sorted(seconds)[len(seconds) // 2] if seconds else None
    yield {
        "name": options.session.name if options.session else "made-up session",
        "num_steps": len(session.timeline.step_starts_us) if session.timeline else 0,
        "is_whole": is_whole,
        "bytes": size,
        "render_s": render_s,
        "open_s": seconds,
        "is_right": None
        if options.is_small or opens is None
        else is_whole and size <= MOST_BYTES and opens <= MOST_SECONDS,
    }
