"""Pages in a real browser: drawn, moved, sorted and read by whoever opens them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gapless.records.timeline import Gap, Lane, Span, Timeline
from gapless.report.html.comparison_page import comparison_page
from gapless.report.html.session_page import session_page
from gapless.report.html.training_page import training_page
from made_up_session import FINDINGS, HOSTILE, made_up_session, made_up_timeline
from made_up_training import made_up_run
from toys import made_up_report


pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

# How many pixels of the timeline, or of some of its rows, there are of each colour.
COLOURS_IN = """((from, to) => {
  const canvas = document.querySelector('.lanes');
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, from, canvas.width, (to ?? canvas.height) - from);
  const found = {};
  for (let i = 0; i < data.length; i += 4) {
    const name = '#' + [0, 1, 2].map(n => data[i + n].toString(16).padStart(2, '0')).join('');
    found[name] = (found[name] || 0) + 1;
  }
  return found;
})"""
COLOURS = f"{COLOURS_IN}(0)"

KERNEL, WAIT, DATA, IDLE = "#0072b2", "#d55e00", "#e69f00", "#fbe9df"


@pytest.fixture(scope="session")
def session_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "report of a session.html"
    path.write_text(session_page(made_up_session(num_steps=8, kernels=120)), encoding="utf-8")
    return path


@pytest.fixture
def tab(browser, session_file):
    with browser.tab(session_file) as found:
        yield found
        assert found.events("Runtime.exceptionThrown", "Log.entryAdded") == []
        assert found.events("Runtime.consoleAPICalled") == []


def view(tab):
    """Return the part of the timeline that is shown, as two places in microseconds."""
    tab.settle()
    found = tab.js("({...document.querySelector('.lanes').dataset})")
    return float(found["from"]), float(found["to"])


def focus(tab, selector=".lanes"):
    tab.js(f"document.querySelector({selector!r}).focus()")


def test_the_timeline_is_drawn_and_nothing_is_asked_of_the_network(tab):
    """Kernels, waits, waits for data and gaps have their colours, and only the file is opened."""
    colours = tab.js(COLOURS)
    asked = [event["request"]["url"] for event in tab.events("Network.requestWillBeSent")]

    assert min(colours.get(name, 0) for name in (KERNEL, WAIT, DATA, IDLE)) > 50
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert len(asked) <= 2


def test_each_wait_is_joined_to_the_gap_that_it_exposed(tab):
    """Lines in the colour of waits cross the lane of the loader's thread, which never waits."""
    lane = "(108, 136)"  # below the axis and the lanes of two other threads

    joins = tab.js(f"{COLOURS_IN}{lane}").get(WAIT, 0)

    assert joins > 20

    # What was printed exposed nothing, so all others fade.
    tab.js("document.querySelector('tbody[data-row=\"4\"] .pick').click()")
    tab.settle()

    assert tab.js(f"{COLOURS_IN}{lane}").get(WAIT, 0) < joins / 5


def test_a_place_in_the_strip_comes_into_view(tab):
    """The strip above the timeline is the whole; what is pressed there is shown, as wide as before."""
    tab.click("[data-action=zoom-in]")
    start, end = view(tab)
    box = tab.box(".overview")
    x, y = box["x"] + box["width"] * 0.5, box["y"] + 10
    for kind in ("mousePressed", "mouseReleased"):
        tab.mouse(kind, x + box["width"] * 0.2, y, button="left", clickCount=1)
    later = view(tab)

    assert later[1] - later[0] == pytest.approx(end - start)
    assert sum(later) / 2 == pytest.approx(0.7 * 2 * (end - start), rel=1e-2)


def test_a_line_with_tags_is_shown_as_it_is(tab):
    """Nothing of a script's text becomes an element."""
    assert HOSTILE in tab.js("document.querySelector('#findings').innerText")
    assert tab.js("document.scripts.length") == 2


def test_buttons_zoom_move_and_show_the_whole(tab):
    """Each button does what it says."""
    whole = view(tab)
    tab.click("[data-action=zoom-in]")
    near = view(tab)
    tab.click("[data-action=right]")
    later = view(tab)
    tab.click("[data-action=zoom-out]")
    tab.click("[data-action=whole]")

    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2)
    assert later[0] - near[0] == pytest.approx((near[1] - near[0]) / 4)
    assert view(tab) == whole


def test_the_wheel_zooms_where_the_pointer_is_and_a_drag_moves(tab):
    """The place under the pointer stays there; without Ctrl the wheel is the page's own."""
    box = tab.box(".lanes")
    x, y = box["x"] + box["width"] * 0.25, box["y"] + box["height"] / 2
    start, end = view(tab)
    under, pixel = start + 0.25 * (end - start), (end - start) / box["width"]
    tab.mouse("mouseWheel", x, y, deltaX=0, deltaY=-300, modifiers=2)
    tab.wait_for(f"document.querySelector('.lanes').dataset.to < {end}")
    start, end = view(tab)

    assert start + 0.25 * (end - start) == pytest.approx(under, abs=pixel)

    tab.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
    tab.mouse("mouseMoved", x - 100, y, button="left", buttons=1)
    tab.mouse("mouseReleased", x - 100, y, button="left", clickCount=1)

    assert view(tab)[0] == pytest.approx(start + 100 / box["width"] * (end - start), rel=1e-2)


def test_keys_move_the_timeline(tab):
    """Arrows, plus and minus, Home, End and 0 on the focused timeline."""
    whole = view(tab)
    focus(tab)
    tab.key("+")
    near = view(tab)
    tab.key("ArrowRight")
    later = view(tab)
    tab.key("ArrowLeft")
    back = view(tab)
    tab.key("End")
    end = view(tab)
    tab.key("Home")
    home = view(tab)
    tab.key("0")

    assert near[1] - near[0] < whole[1] - whole[0]
    assert later[0] > near[0]
    assert back == pytest.approx(near)
    assert end[1] == pytest.approx(whole[1])
    assert home[0] == 0.0
    assert view(tab) == whole


def test_gaps_are_visited_in_turn_and_said(tab):
    """N shows the next gap, with its cause for who cannot see it; the list shows the longest."""
    focus(tab)
    tab.key("n")
    first, said = view(tab), tab.js("document.querySelector('#said').textContent")
    tab.key("n")
    second = view(tab)
    tab.key("p")

    assert said.startswith("Gap of")
    assert second[0] > first[0]
    assert view(tab) == pytest.approx(first)

    tab.click(".show-gap")
    length = tab.js("(({start, end}) => end - start)(document.querySelector('.show-gap').dataset)")
    start, end = view(tab)

    assert end - start == pytest.approx(5 * length, rel=1e-3)


def test_everything_can_be_reached_by_the_keyboard_and_shows_that_it_is(tab):
    """Tab comes to every button, the timeline and each table, and each draws an outline."""
    reachable = tab.js(
        "[...document.querySelectorAll('button, summary, .lanes, .scroll')]"
        ".map((e, i) => (e.dataset.place = i))"
    )
    visited, plain = set(), []
    for _ in range(3 * len(reachable)):
        tab.key("Tab")
        place, outline = tab.js(
            "(e => { const { outlineStyle, outlineWidth } = getComputedStyle(e);"
            " return [e.dataset.place ?? null, outlineStyle === 'solid' ? parseFloat(outlineWidth) : 0]; })"
            "(document.activeElement)"
        )
        if place is not None:
            visited.add(int(place))
            plain += [] if outline >= 2 else [place]
        if len(visited) == len(reachable):
            break

    assert sorted(visited) == reachable
    assert plain == []


def test_arrows_move_between_findings_and_enter_chooses_one(tab):
    """The chosen row stands out, its spans stand out, and all others fade."""
    before = tab.js(COLOURS)
    focus(tab, ".pick")
    tab.key("ArrowDown")
    tab.key("Enter")
    chosen = tab.js("[...document.querySelectorAll('tbody.chosen')].map(e => e.dataset.row)")
    pressed = tab.js("document.activeElement.getAttribute('aria-pressed')")
    after = tab.js(COLOURS)

    assert chosen == ["1"]
    assert pressed == "true"
    # Row 1 is the loader: what waits for data keeps its colour.
    assert after.get(WAIT, 0) < before[WAIT] / 2
    assert after.get(DATA, 0) > before[DATA] / 2

    focus(tab)
    tab.key("Escape")

    assert tab.js("document.querySelectorAll('tbody.chosen').length") == 0


def test_a_click_on_a_span_chooses_its_finding_and_its_tip_names_it(tab):
    """The wait under the pointer is that of the line in the tip."""
    tab.click(".show-gap")
    box = tab.box(".lanes")
    # From the left to the right over the lane of the main thread.
    for part in range(1, 40):
        x, y = box["x"] + box["width"] * part / 40, box["y"] + 22 + 15 + 8
        tab.mouse("mouseMoved", x, y)
        tip = tab.js(
            "document.querySelector('.tip').hidden || document.querySelector('.tip').innerText"
        )
        if tip is not True and "GAP" in tip:
            break
    for kind in ("mousePressed", "mouseReleased"):
        tab.mouse(kind, x, y, button="left", clickCount=1)
    tab.settle()
    row = tab.js("Number(document.querySelector('tbody.chosen').dataset.row)")

    assert f"{FINDINGS[row].code} {FINDINGS[row].site}" in tip


def test_the_table_sorts_by_every_column(tab):
    """Figures by size and the largest first, text from A; once more turns it; what is missing is last."""
    columns = tab.js("document.querySelector('#findings table').tHead.rows[0].cells.length")
    for column in range(columns):
        button = f"#findings th:nth-child({column + 1}) button"
        for turn in range(2):
            tab.click(button)
            values, kind, order = tab.js(
                "(() => { const table = document.querySelector('#findings table');"
                f" const head = table.tHead.rows[0].cells[{column}];"
                f" return [[...table.tBodies].map(b => b.rows[0].cells[{column}].dataset.value ?? null),"
                " head.dataset.sort, head.getAttribute('aria-sort')]; })()"
            )
            known = [float(v) if kind == "number" else v for v in values if v is not None]
            keys = known if kind == "number" else [_natural(value) for value in known]

            assert order == ("descending" if (kind == "number") == (turn == 0) else "ascending")
            assert keys == sorted(keys, reverse=order == "descending")
            assert values[len(known) :] == [None] * (len(values) - len(known))


def _natural(text):
    """Return a text as the browser compares it: letters as letters, digits as numbers."""
    parts = re.split(r"(\d+)", text.lower())
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def test_a_narrow_screen_needs_no_scrolling_sideways(browser, session_file):
    """At 375 pixels the page is as wide as the screen; a wide table scrolls in its own box."""
    with browser.tab(session_file, width=375, height=700) as tab:
        page = tab.js("document.documentElement.scrollWidth")
        wide = tab.js(
            "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, .unseen') "
            "&& e.getBoundingClientRect().right > 375.5).map(e => e.outerHTML.slice(0, 80))"
        )
        inner, outer = tab.js(
            "(e => [e.scrollWidth, e.clientWidth])(document.querySelector('#findings .scroll'))"
        )

    assert page == 375
    assert wide == []
    assert inner > outer


# The least contrast of any text with what is behind it, and the text.
LEAST_CONTRAST = """(() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const colour = parts(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  let least = [99, ''];
  for (const e of document.querySelectorAll('body *')) {
    const text = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join('');
    if (!text || !e.getClientRects().length || e.closest('.unseen, script')) continue;
    const [a, b] = [light(parts(getComputedStyle(e).color)), light(behind(e))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < least[0]) least = [contrast, text];
  }
  return least;
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_in_light_and_in_dark(browser, session_file, dark):
    """Every text has a contrast of 4.5 with its background, which is dark where that is preferred."""
    with browser.tab(session_file, dark=dark) as tab:
        colours = tab.js(COLOURS)
        tab.click(".pick")
        # Colours may take a moment to change.
        tab.js("Promise.all(document.getAnimations().map(one => one.finished)).then(() => 0)")
        contrast, text = tab.js(LEAST_CONTRAST)
        paper = tab.js("getComputedStyle(document.body).backgroundColor")

    assert contrast >= 4.5, text
    assert paper == ("rgb(16, 19, 24)" if dark else "rgb(255, 255, 255)")
    assert colours.get("#2f93d1" if dark else KERNEL, 0) > 50


def test_nothing_is_cut_on_paper(browser, session_file):
    """As wide as a page of A4: tables and code fit, every mend is unfolded, the colours are there."""
    with browser.tab(session_file, width=718, height=1000) as tab:
        tab.call("Emulation.setEmulatedMedia", media="print")
        tab.js("dispatchEvent(new Event('beforeprint'))")
        cut = tab.js(
            "[...document.querySelectorAll('main *')].filter(e => !e.closest('.unseen, svg') "
            "&& (e.getBoundingClientRect().right > 718.5 || e.scrollWidth > e.clientWidth + 1 "
            "&& getComputedStyle(e).display !== 'inline')).map(e => e.outerHTML.slice(0, 90))"
        )
        folded = tab.js("document.querySelectorAll('details:not([open])').length")
        tab.js("dispatchEvent(new Event('afterprint'))")
        folded_again = tab.js("document.querySelectorAll('details:not([open])').length")
        paper = tab.call("Page.printToPDF", printBackground=True)["data"]

    assert cut == []
    assert folded == 0
    assert folded_again == len(FINDINGS) - 1
    assert len(paper) > 20_000


def test_who_prefers_calm_sees_nothing_move(browser, session_file):
    """With reduced motion nothing has a transition."""
    ask = "Math.max(...[...document.querySelectorAll('*')].map(e => parseFloat(getComputedStyle(e).transitionDuration)))"
    with browser.tab(session_file, calm=True) as tab:
        calm = tab.js(ask)
    with browser.tab(session_file) as tab:
        lively = tab.js(ask)

    assert calm == 0.0
    assert lively > 0.0


def test_plans_stand_under_each_other_on_one_axis(browser, tmp_path):
    """A timeline of each plan, shorter ones with their end, and no button for gaps where there are none."""
    plans = [made_up_timeline(num_steps=n, mended=n < 4, title=f"plan {n}") for n in (5, 3)]
    path = tmp_path / "compare.html"
    path.write_text(comparison_page(made_up_report(timelines=tuple(plans))), encoding="utf-8")
    with browser.tab(path) as tab:
        whole, colours = view(tab), tab.js(COLOURS)
        tab.click("#plans th:nth-child(3) button")
        first = tab.js("document.querySelector('#plans tbody').innerText")
        marked = tab.js("document.querySelector('#plans tbody.marked').innerText")
        trouble = tab.events("Runtime.exceptionThrown", "Log.entryAdded")

    assert whole[1] == pytest.approx(max(plan.end_us for plan in plans), abs=0.1)
    assert min(colours.get(name, 0) for name in (KERNEL, WAIT, DATA)) > 50
    assert first.startswith("blocking")
    assert marked.startswith("captured")
    assert trouble == []

    bare = [replace(plan, gaps=()) for plan in plans]
    path.write_text(comparison_page(made_up_report(timelines=tuple(bare))), encoding="utf-8")
    with browser.tab(path) as tab:
        assert tab.js("document.querySelector('[data-action=next]')") is None


@pytest.mark.parametrize("width", [375, 1280])
def test_a_run_is_drawn_on_any_screen(browser, tmp_path, width):
    """Curves lie in their charts, texts can be read, and nothing needs scrolling sideways."""
    path = tmp_path / "run.html"
    text = training_page(made_up_run(), title="runs/demo", about={"device": "cuda:0"})
    path.write_text(text, encoding="utf-8")
    with browser.tab(path, width=width) as tab:
        page = tab.js("document.documentElement.scrollWidth")
        outside = tab.js(
            "[...document.querySelectorAll('path')].filter(path => {"
            " const [a, b] = [path, path.closest('svg')].map(e => e.getBoundingClientRect());"
            " return !(a.width > 20 && a.left >= b.left - 5 && a.right <= b.right + 5"
            " && a.top >= b.top - 5 && a.bottom <= b.bottom + 5); }).length"
        )
        contrast, said = tab.js(LEAST_CONTRAST)
        trouble = tab.events("Runtime.exceptionThrown", "Log.entryAdded")

    assert page == width
    assert outside == 0
    assert contrast >= 4.5, said
    assert trouble == []


def test_two_hundred_steps_of_a_thousand_kernels_are_a_small_page(browser, tmp_path):
    """At most 5 MB, drawn in the browser."""
    path = tmp_path / "large.html"
    path.write_text(session_page(made_up_session(num_steps=200, kernels=1200)), encoding="utf-8")
    with browser.tab(path) as tab:
        colours = tab.js(COLOURS)

    assert path.stat().st_size <= 5_000_000
    assert colours.get(KERNEL, 0) > 50


LONG = "data/" + "a_very_long_name_without_a_space" * 8
ODD = {
    "empty": Timeline(lanes=(), end_us=0.0),
    "idle lane": Timeline(lanes=(Lane(name="main", is_device=False, spans=()),), end_us=5.0),
    "no steps": replace(made_up_timeline(num_steps=2, kernels=9), step_starts_us=()),
    "long names": Timeline(
        lanes=(
            Lane(
                name=LONG,
                is_device=True,
                spans=(Span(name=LONG * 9, kind="kernel", start_us=0.0, end_us=9.0),),
            ),
        ),
        gaps=(Gap(start_us=9.0, end_us=1e9, cause=LONG, finding=99),),
        step_starts_us=(0.0,),
        end_us=1e9,
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_sessions_break_nothing(browser, tmp_path, name):
    """Without steps or spans, or with names and times beyond measure: drawn, moved, no trouble."""
    finding = replace(
        FINDINGS[0], site=replace(FINDINGS[0].site, path=LONG), cause=LONG, mend=LONG
    )
    session = replace(
        made_up_session(num_steps=2, kernels=9),
        command=(LONG,),
        verdict=LONG,
        notes=(LONG,),
        findings=(finding,),
        timeline=ODD[name],
    )
    path = tmp_path / "odd.html"
    path.write_text(session_page(session), encoding="utf-8")
    with browser.tab(path, width=375) as tab:
        focus(tab)
        for key in "+n-pN0":
            tab.key(key)
        tab.key("End")
        tab.click(".pick")
        start, end = view(tab)
        page = tab.js("document.documentElement.scrollWidth")
        trouble = tab.events("Runtime.exceptionThrown", "Log.entryAdded")

    assert 0.0 <= start < end
    assert page == 375
    assert trouble == []
