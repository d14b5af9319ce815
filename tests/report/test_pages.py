"""Pages as text: well formed, whole, and nothing of a user's own taken for HTML."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings, strategies as st

from gapless.doctor.session.notebook import Watched
from gapless.errors import UserError
from gapless.records.comparison import Spread
from gapless.records.finding import Session, Trial
from gapless.records.timeline import Gap
from gapless.records.training import RunHistory
from gapless.report.figures import short_number
from gapless.report.html.bars import Bar, Part, bars
from gapless.report.html.charts import Curve, chart, thinned
from gapless.report.html.comparison_page import comparison_page
from gapless.report.html.page import element, joined
from gapless.report.html.session_page import session_page, step_bars
from gapless.report.html.training_page import training_page
from made_up_session import CLIP, COPY, HOSTILE, ITEM, PRINT, UNKNOWN, made_up_session
from made_up_training import made_up_epoch
from report.pages import made_up_pages
from toys import made_up_report, made_up_rows


class Page(HTMLParser):
    """Elements, texts and tables of a page; raises where an element is not closed in its turn."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], Counter(), [], []
        self.tables = {}  # by caption: rows of cells, the heading first
        self.untitled = 0
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.attributes += attributes
        self.untitled += tag == "svg" and ("role", "img") in attributes
        if tag == "caption":
            self._caption = ""
        if tag == "tr":
            self._row = []
        if tag in ("th", "td"):
            self._row.append("")
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "tr":
            self.tables.setdefault(self._caption, []).append(self._row)

    def handle_data(self, data):
        self.texts.append(data)
        self.untitled -= self.open[-2:] == ["svg", "title"]
        if "caption" in self.open:
            self._caption += data
        elif "tr" in self.open:
            self._row[-1] += f"|{data}" if "span" in self.open else data

    @property
    def said(self):
        """All texts, one after the other."""
        return "".join(self.texts)

    def rows(self, caption):
        """Return the rows of a table by the names of its columns, without what stands under them."""
        head, *rows = self.tables[caption]
        return [dict(zip(head, row, strict=True)) for row in rows if len(row) == len(head)]

    def row(self, caption, first):
        """Return the row that begins with a text."""
        return next(row for row in self.rows(caption) if next(iter(row.values())) == first)


def of(*findings, **changed):
    return replace(made_up_session(num_steps=2, kernels=30), findings=findings, **changed)


def history(*rows, losses=(3.0, 2.0, None, 1.0)):
    train = [{"kind": "train", "step": n, "loss": loss} for n, loss in enumerate(losses)]
    return RunHistory.of_lines(json.dumps(row) for row in [*train, *rows])


def run_page(*rows, **changed):
    return training_page(history(*rows, **changed), title="r", about={})


# ------------------------------------------------------------------------------------ every page


@pytest.mark.parametrize("name", made_up_pages())
def test_what_a_user_wrote_is_text_and_a_page_loads_and_runs_nothing(name):
    """Tags, quotes and ampersands of a script are shown as they are; there is no script and no address."""
    text = made_up_pages(HOSTILE)[name]
    page = Page(text)
    loaded = [value for key, value in page.attributes if key in ("src", "action", "href")]

    assert HOSTILE in page.texts
    assert page.tags == Page(made_up_pages("harmless")[name]).tags
    assert page.tags["script"] == 0
    assert [value for value in loaded if not value.startswith("#")] == ["data:,"]
    assert "http://" not in text
    assert "https://" not in text
    assert (
        "content",
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    ) in page.attributes


@pytest.mark.parametrize("name", made_up_pages())
def test_a_page_can_be_read_by_who_does_not_see_it(name):
    """One main heading, names for tables, rows and drawings, ids that are there once."""
    page = Page(made_up_pages()[name])
    ids = [value for key, value in page.attributes if key == "id"]
    named = {value for key, value in page.attributes if key == "aria-labelledby"}
    links = {value[1:] for key, value in page.attributes if key == "href" and value[0] == "#"}

    assert page.tags["h1"] == 1
    assert page.tags["table"] == page.tags["caption"] == len(page.tables)
    assert page.tags["tbody"] == page.attributes.count(("scope", "row"))
    assert page.untitled == 0
    assert page.tags["svg"] > 0
    assert len(ids) == len(set(ids))
    assert named | links <= set(ids)
    assert ("lang", "en") in page.attributes


# ------------------------------------------------------------------- figures in their own columns


# Page, table, how its row begins, and cells of it by the names of their columns.
FIGURES = [
    (
        *("doctor", "Findings", "GAP005"),
        "code=GAP005; line=train.py:49; waited|ms a step=0.71; idle|ms a step=0.64; idle|of "
        "the step=3.9%; count|a step=3; call=Tensor.to; certainty=seen",
    ),
    ("doctor", "Findings", "GAP021", "line=no line known; idle|ms a step=-"),
    (
        *("doctor", "Trials", "recorded batches"),
        "gain|times as fast=1.22; steps/s|variant=74.9 (74.1 to 75.3); steps/s|as "
        "written=61.2 (60.7 to 61.9); windows=5; clear=yes",
    ),
    (
        *("compare", "Plans", "blocking"),
        "same bits=yes; time|ms a step=41.0; spread=24.4%; speed|tokens/s=20,000; host "
        "waits|a step=2.00; launch|ms a step=25.0; waited|ms a step=12.5; data wait|ms a "
        "step=0.50; host CPU=101%",
    ),
    (
        *("compare", "Device", "captured"),
        "busy|ms a step=10.2; gap=8.0%; NVML=-; kernels|a step=1,234; peak memory=1,024 MiB; "
        "held memory=1,536 MiB; capture|s=1.50",
    ),
    (
        *("train", "Epochs", "8"),
        "loss=1.922; loss|validation=2.175; BLEU|validation=26.00; speed|tokens/s=98,124; "
        "batches=100; time|ms a batch=40.0; in steps|ms a batch=3.50; data wait|ms a "
        "batch=0.20; busy=96.7%; host waits|a batch=0.110; waited|ms a batch=0.39; gap=1.4%; "
        "peak memory=1,024 MiB",
    ),
    ("train", "Host waits", "interval", "count=80; time|ms=232.0; time|ms a batch=0.290"),
]


@pytest.mark.parametrize(("name", "caption", "first", "cells"), FIGURES)
def test_figures_stand_in_their_columns(name, caption, first, cells):
    """Each figure under its own name and unit."""
    row = Page(made_up_pages()[name]).row(caption, first)

    expected = dict(cell.split("=") for cell in cells.split("; "))
    assert {key: row[key] for key in expected} == expected


# ---------------------------------------------------------------------- what a page says, and not

NOTHING = Session(command=("a.py",), device="cpu", versions={})
RAN = {"steps_per_second": Spread.of([2.0]), "baseline": Spread.of([2.0])}
EPOCHS = (made_up_epoch(1, tokens_per_second=100.0), made_up_epoch(2, val_loss=3.1, val_bleu=12.5))
BARE = [made_up_epoch(n, busy_share=None, gap_share=None, gap_ms=None) for n in (1, 2)]
ON_A_CPU = {"gap_share": None, "nvml_percent": None, "busy_ms_per_step": None}
CPU_ROWS = tuple(replace(row, **ON_A_CPU) for row in made_up_rows())


@pytest.mark.parametrize(
    ("text", "said", "unsaid"),
    [
        (
            session_page(of(ITEM, COPY)),
            [ITEM.site.source, ITEM.cause, "losses.add(loss)  # instead", COPY.cause, "pin_memory=True"],
            ["Gain: predicted"],
        ),
        (
            session_page(of(ITEM, replace(ITEM, site=replace(ITEM.site, line=99)))),
            ["Instead: as for GAP001 train.py:57"],
            [],
        ),
        (session_page(of(replace(ITEM, gain_ms=1.0))), ["Gain: predicted"], []),
        (
            session_page(of(replace(CLIP, rank=1), num_ranks=2)),
            [
                "on thread autograd, in the backward pass of src/model/block.py:31: "
                "x = self.mlp(self.norm(x)), in process 1",
                "processes2",
            ],
            [],
        ),
        (
            session_page(of(ITEM, verdict="Held back.", notes=("A note.",))),
            ["Held back.", "NVIDIA H200", "a call of AdamW.step", "torch 2.13.0", "A note."],
            ["Longest gaps of"],
        ),
        (
            session_page(NOTHING),
            ["Nothing was found that makes the host wait.", "needs a device and torch's profiler"],
            ["Longest gaps", "Trials", "Where a step", "Notes"],
        ),
        (session_page(of(), timeline_file="t.json"), ["It lies in t.json.", "ui.perfetto.dev"], []),
        (session_page(of()), ["No timeline was written; --perfetto FILE writes one"], ["lies in"]),
        (
            session_page(
                of(
                    trials=(
                        Trial(name="same", change="Changed.", details=("Detail.",), **RAN),
                        Trial(name="x", change="", steps_per_second=None, baseline=None, refusal="why"),
                    )
                )
            ),
            ["Changed.", "Detail.", "Not measured: why"],
            [],
        ),
        (
            comparison_page(made_up_report()),
            ["Recommended: captured", "3.69x the steps a second", "cuda:0 (NVIDIA H200)", "A note.",
             "plans in turns", "auto: launch-bound", "then no more: train.py:7: a host wait"],
            ["A CPU has no gaps"],
        ),
        (
            comparison_page(made_up_report(is_accelerator=False, rows=CPU_ROWS)),
            ["A CPU has no gaps to close"],
            ["NVML", "gap\n", "score"],
        ),
        (
            comparison_page(
                made_up_report(
                    recommendation=replace(
                        made_up_report().recommendation, plan=None, excluded={"auto": "differs"}
                    ),
                    settings={"steps": 50, "tolerance": 1e-5},
                ),
                timeline_file="t.json",
            ),
            ["No plan is recommended.", "not auto: it differs", "It lies in t.json."],
            ["same bits"],
        ),
        (
            run_page(*EPOCHS, {"kind": "test", "step": 2, "bleu": 14.0}),
            ["Loss 2.5 in epoch 2; BLEU 14.00 of the final model on the test set; 10k target tokens a "
             "second without the first epoch.", "Loss of each batch", "Utilisation of the device"],
            [],
        ),
        (run_page(*EPOCHS), ["BLEU 12.50 of the validation"], []),
        (run_page(*BARE), [], ["Utilisation", "BLEU", "gap between steps"]),
        (run_page(losses=()), ["No epoch has ended; 0 batches."], ["Epochs", "Course"]),
        (run_page(EPOCHS[0]), ["100 target tokens a second."], ["without the first"]),
    ],
    ids=[
        "findings", "the same mend", "gain", "where else", "verdict and facts",
        "nothing", "timeline in a file", "no timeline file", "trials", "plans",
        "plans on a cpu", "no plan wins", "a run", "a validation", "a run on a cpu",
        "no epoch", "one epoch",
    ],
)  # fmt: skip
def test_a_page_says_what_is_known_and_no_more(text, said, unsaid):
    """What was not measured is left out, and what is missing is named."""
    found = Page(text).said

    assert [one for one in said if one not in found] == []
    assert [one for one in unsaid if one in found] == []


def test_findings_keep_their_order_and_unknown_columns_are_left_out():
    """None of the findings has a predicted gain, and those of the syntax have no times."""
    unseen = {"waited_ms": None, "exposed_ms": None, "share": None}
    page = Page(session_page(of(*(replace(one, **unseen) for one in (PRINT, UNKNOWN, ITEM)))))

    assert [row["code"] for row in page.rows("Findings")] == ["GAP002", "GAP021", "GAP001"]
    assert page.tables["Findings"][0] == [
        *("code", "line", "count|a step", "call", "certainty", "part")
    ]


def test_the_longest_gaps_are_listed_with_what_exposed_them():
    """Longest first, eight at most, with the place by which they are found in the timeline."""
    session = of(ITEM)
    gaps = [Gap(start_us=1000.0 * n, end_us=1000.0 * n + n, cause="data") for n in range(1, 12)]
    gaps.append(Gap(start_us=5e5, end_us=6e5, cause="host wait", finding=0))
    timeline = replace(session.timeline, gaps=tuple(gaps), step_starts_us=(2.5e3, 4e5))
    rows = Page(session_page(replace(session, timeline=timeline))).rows("Longest gaps")

    assert len(rows) == 8
    assert rows[0] == {
        "length|ms": "100.0",
        "begins|ms": "500.000",
        "step": "1",
        "cause": "host wait",
        "finding": "GAP001 train.py:57",
    }
    assert [row["step"] for row in rows[1:]] == ["0"] * 7
    assert rows[1]["length|ms"] == "0.01"
    assert rows[1]["finding"] == "-"


def test_the_recommended_plan_alone_is_marked():
    """Its row stands out."""
    text = comparison_page(made_up_report())

    assert text.count('<tbody class="marked"><tr><th scope="row">captured</th>') == 1
    assert text.count('class="marked"') == 1


# ------------------------------------------------------------------------------- bars and charts


def test_bars_share_one_axis_and_are_of_the_mean():
    """A bar of the median would be shorter than its parts where a few steps are long."""
    steps = replace(made_up_session(num_steps=2).steps, wall_ms=Spread.of([1.0, 1.0, 7.0]))
    host, _ = step_bars(replace(steps, data_ms=1.5, wait_ms=0.5, launch_ms=0.25))
    parts = [Part(name="a", colour="wait", ms=3.0), Part(name="b", colour="idle", ms=0.0)]
    drawn = bars([host, Bar(title="other", parts=parts), Bar(title="none", parts=())])

    assert host.ms == 3.0
    assert '<rect class="part wait" x="0.000%" y="0" width="100.000%"' in drawn
    assert '<rect class="part wait" x="50.000%" y="0" width="16.667%"' in drawn
    assert "other: a 3.00 ms" in drawn
    assert '<rect class="part idle"' not in drawn


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=3000))
@example([float(-number) for number in range(1000)])
@settings(max_examples=20, deadline=None)
def test_thinned_curves_keep_the_range(values):
    """At most 400 points in order, and the least and largest of all values are there."""
    means, ranges = thinned(values)
    known = [value for value in values if value is not None]

    assert len(means) == len(ranges) <= 400
    assert [x for x, _ in means] == sorted({x for x, _ in means})
    assert all(1 <= x <= len(values) for x, _ in means)
    if known:
        assert min(least for _, least, _ in ranges) == min(known)
        assert max(most for *_, most in ranges) == max(known)


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=50))
@settings(max_examples=20, deadline=None)
def test_every_point_lies_in_the_chart(values):
    """Whatever the values, no coordinate is outside of the square."""
    drawn = chart(
        "t", [Curve(name="c", points=list(enumerate(values)))], x_name="n", text=short_number
    )
    path = drawn.split('class="curve first" d="M')[1].split('"')[0]
    numbers = [float(part) for point in path.split("L") for part in point.split()]

    assert all(0.0 <= number <= 100.0 for number in numbers)
    assert numbers[::2] == sorted(numbers[::2])


def test_a_chart_has_its_axes_its_curves_and_their_range():
    """Round ticks, the ends of the axis, names of several curves, and a sentence for who cannot see it."""
    curves = [
        Curve(name="none", points=[]),
        Curve(name="one", points=[(1, 2.0), (4, 8.0)]),
        Curve(name="two", points=[(2, 5.0)]),
    ]
    drawn = chart("t", curves, x_name="epoch", text="{:g}".format, y_least=0.0)
    ticks = "".join(f"<span>{tick}</span>" for tick in (8, 6, 4, 2, 0))

    assert f'<div class="ticks">{ticks}</div>' in drawn
    assert "<span>1</span><span>epoch</span><span>4</span>" in drawn
    assert "t: one from 2 at epoch 1 to 8 at epoch 4; two from 5 at epoch 2" in drawn
    assert '<path class="curve first" d="M0.0 75.0L100.0 0.0"' in drawn
    assert '<span class="swatch second" aria-hidden="true"></span>two' in drawn
    assert chart("t", curves[::2], x_name="epoch", text=str) is None


def test_html_is_not_escaped_again():
    """Text is, between elements and in attributes; of those, some have no value or are left out."""
    drawn = element(
        "i", joined(["&", None]), "<", class_='"', aria_label="a", hidden=True, id=None
    )

    assert drawn == '<i class="&quot;" aria-label="a" hidden>&amp;&lt;</i>'


# ------------------------------------------------------------------------------------- notebooks


def test_what_a_notebook_watched_is_saved_as_a_page_and_as_a_timeline(tmp_path):
    """Both once the body has ended; without a device there is no timeline, and it says so."""
    watched = Watched()
    with pytest.raises(UserError, match="has ended"):
        watched.save_html(tmp_path / "page.html")
    watched.session = of(ITEM)
    watched.save_html(tmp_path / "page.html")
    watched.save_perfetto(tmp_path / "t.json")

    assert "train.py:57" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]

    watched.session = NOTHING
    with pytest.raises(UserError, match="needs a device"):
        watched.save_perfetto(tmp_path / "other.json")
