"""Pictures of pages for docs/pages.md, of made-up figures. `make screens` takes them anew."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from browser import Browser, find_chromium
from gapless.report.html.comparison_page import comparison_page
from gapless.report.html.session_page import session_page
from gapless.report.html.training_page import training_page
from made_up_session import made_up_session, made_up_timeline
from made_up_training import made_up_run
from toys import made_up_report


IMAGES = Path(__file__).parents[2] / "docs" / "images"


def main():
    """Write the pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        browser = Browser(find_chromium(), f"{name}/profile")
        try:
            for take in (take_session, take_comparison, take_training):
                take(browser, Path(name) / "page.html")
        finally:
            browser.close()


def take_session(browser, path):
    """The head of a session, and the wait that costs most with the gap that it exposes."""
    text = session_page(made_up_session(num_steps=8, kernels=160))
    path.write_text(text, encoding="utf-8")
    with browser.tab(path, width=1080, height=1100) as tab:
        tab.js("document.querySelector('.pick').click()")
        tab.js("document.querySelector('.show-gap').click()")
        tab.js("document.querySelector('[data-action=zoom-out]').click()")
        tab.js("document.activeElement.blur(); scrollTo({top: 0, behavior: 'instant'})")
        tab.settle()
        (IMAGES / "doctor-session.png").write_bytes(tab.screenshot())


def take_comparison(browser, path):
    """Timelines of three plans, in dark."""
    plans = [("blocking", False), ("captured", True), ("auto", True)]
    whole = [
        made_up_timeline(num_steps=5, kernels=160, mended=mended, title=plan, seed=seed)
        for seed, (plan, mended) in enumerate(plans)
    ]
    # A plan has one host thread.
    timelines = tuple(replace(one, lanes=(one.lanes[0], *one.lanes[3:])) for one in whole)
    path.write_text(comparison_page(made_up_report(timelines=timelines)), encoding="utf-8")
    with browser.tab(path, width=1080, height=600, dark=True) as tab:
        tab.js("document.querySelector('.timelines').closest('section').scrollIntoView()")
        tab.settle()
        (IMAGES / "compare-timelines.png").write_bytes(tab.screenshot())


def take_training(browser, path):
    """Curves of a run."""
    about = {
        "device": "cuda:0 (NVIDIA H200), torch 2.13.0, bf16",
        "plan": "captured",
        "model": "5,412,864 parameters",
    }
    text = training_page(made_up_run(), title="runs/multi30k", about=about)
    path.write_text(text, encoding="utf-8")
    with browser.tab(path, width=1080, height=900) as tab:
        (IMAGES / "train-report.png").write_bytes(tab.screenshot())


if __name__ == "__main__":
    main()
