"""Every kind of page, of made-up figures, for tests and pictures."""

from __future__ import annotations

from dataclasses import replace

from gapless.records.finding import Site
from gapless.report.html.comparison_page import comparison_page
from gapless.report.html.session_page import session_page
from gapless.report.html.training_page import training_page
from made_up_session import FINDINGS, made_up_session
from made_up_training import made_up_run
from toys import made_up_report


ABOUT = {
    "device": "cuda:0 (NVIDIA H200), torch 2.13.0, bf16",
    "plan": "captured",
    "model": "5,412,864 parameters",
}


def made_up_pages(word=""):
    """Return all pages by their command; a word stands wherever text of a user's own does."""
    one = FINDINGS[0]
    finding = replace(
        one,
        site=Site(path=word, line=1, source=word),
        **dict.fromkeys(("call", "cause", "mend", "thread"), word),
    )
    findings = (finding, *FINDINGS) if word else FINDINGS
    texts = {"verdict": word, "step": word, "device": word, "notes": (word,), "command": (word,)}
    session = made_up_session(num_steps=8, kernels=120)
    session = replace(session, findings=findings, **(texts if word else {}))
    texts = {"workload": word, "hardware": word, "notes": (word,), "unit": word}
    return {
        "doctor": session_page(session, timeline_file=word or "timeline.json"),
        "compare": comparison_page(made_up_report(**(texts if word else {}))),
        "train": training_page(
            made_up_run(), title=word or "runs/multi30k", about={"device": word} if word else ABOUT
        ),
    }
