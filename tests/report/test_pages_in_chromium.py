"""Pages in a real browser: on a wide screen, on a phone, in the dark and on paper."""

from __future__ import annotations

import pytest

from report.pages import made_up_pages


pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

# A name as long as a path of somebody's cluster, without a space to break it at.
LONG = "data/" + "a_very_long_name_without_a_space" * 8

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
    if (!text || !e.getClientRects().length || e.closest('.unseen, svg')) continue;
    const [a, b] = [light(parts(getComputedStyle(e).color)), light(behind(e))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < least[0]) least = [contrast, text];
  }
  return least;
})()"""

# What sticks out of the page, but for what lies in a box that scrolls.
OUTSIDE = """[...document.querySelectorAll('main *')].filter(e => !e.closest(INNER)
  && e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 90))"""

# Drawings that are not seen: of no size, or in the colour of the paper.
UNDRAWN = """[...document.querySelectorAll('rect.part, path.curve')].filter(e => {
  const { fill, stroke } = getComputedStyle(e);
  const colour = e.tagName === 'rect' ? fill : stroke;
  const { width, height } = e.getBoundingClientRect();
  return colour === 'none' || colour === getComputedStyle(document.body).backgroundColor
    || colour === 'rgb(0, 0, 0)' || !(width || height);
}).map(e => e.outerHTML.slice(0, 90))"""

# Curves that leave their chart.
ASTRAY = """[...document.querySelectorAll('.plot')].filter(plot => {
  const box = plot.querySelector('svg').getBoundingClientRect();
  return [...plot.querySelectorAll('path')].some(path => {
    const drawn = path.getBoundingClientRect();
    return drawn.left < box.left - 6 || drawn.right > box.right + 6 || drawn.bottom > box.bottom + 6;
  });
}).length"""

BOXES = "'.scroll, .unseen, svg'"

# A tab, and the colour of its paper.
SCREENS = {
    "wide": ({"width": 1280}, "rgb(255, 255, 255)"),
    "wide and dark": ({"width": 1280, "dark": True}, "rgb(16, 19, 24)"),
    "phone": ({"width": 375, "height": 700}, "rgb(255, 255, 255)"),
}


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Return the path of each page, and of each with long names."""
    folder = tmp_path_factory.mktemp("pages with a space")
    paths = {}
    for kind, word in (("", ""), (", long names", LONG)):
        for name, text in made_up_pages(word).items():
            path = paths[name + kind] = folder / f"{name}{kind}.html"
            path.write_text(text, encoding="utf-8")
    return paths


@pytest.mark.parametrize("screen", SCREENS)
def test_every_page_can_be_read_on_every_screen(browser, files, screen):
    """Nothing sticks out, every text has a contrast of 4.5, drawings are seen, and nothing is loaded."""
    options, paper = SCREENS[screen]
    width = options["width"]
    for path in files.values():
        with browser.tab(path, **options) as tab:
            contrast, text = tab.js(LEAST_CONTRAST)
            asked = [one["request"]["url"] for one in tab.events("Network.requestWillBeSent")]

            assert tab.js("document.documentElement.scrollWidth") == width, path.name
            assert tab.js(OUTSIDE.replace("INNER", BOXES)) == [], path.name
            assert contrast >= 4.5, (path.name, text)
            assert tab.js("getComputedStyle(document.body).backgroundColor") == paper
            assert tab.js(UNDRAWN) == [], path.name
            assert tab.js(ASTRAY) == 0, path.name
            assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
            assert tab.events("Runtime.exceptionThrown", "Log.entryAdded") == [], path.name


def test_nothing_is_cut_on_paper(browser, files):
    """As wide as a page of A4: tables and code fit, and the colours are printed."""
    for path in files.values():
        with browser.tab(path, width=718, height=1000, media="print") as tab:
            cut = tab.js(OUTSIDE.replace("INNER", "'.unseen, svg'"))
            colours = tab.js("getComputedStyle(document.documentElement).printColorAdjust")
            paper = tab.call("Page.printToPDF", printBackground=True)["data"]

        assert cut == [], path.name
        assert colours == "exact"
        assert len(paper) > 20_000


def test_a_wide_table_scrolls_in_its_box_which_the_keyboard_reaches(browser, files):
    """On a phone the table of plans is wider than the page; what has the focus is outlined."""
    with browser.tab(files["compare"], width=375) as tab:
        inner, outer = tab.js(
            "(e => [e.scrollWidth, e.clientWidth])(document.querySelector('.scroll'))"
        )
        tab.press_tab()
        focused, outline = tab.js(
            "(e => [e.getAttribute('aria-label'), getComputedStyle(e).outlineStyle])"
            "(document.activeElement)"
        )

    assert inner > outer
    assert (focused, outline) == ("Plans", "solid")


@pytest.mark.parametrize("width", [900, 600, 375])
@pytest.mark.parametrize("name", ["doctor", "doctor, long names"])
def test_all_figures_of_a_finding_are_seen_on_a_narrow_page(name, width, browser, files):
    """With their names, without scrolling, also beside a long path; on a wide one they are columns."""
    shown = """[...document.querySelectorAll('#findings [data-of]')].map(e => {
      const { left, right, height } = e.getBoundingClientRect();
      const of = getComputedStyle(e, '::before').content;
      return left >= 0 && right <= innerWidth && height > 0 && of.includes(e.dataset.of);
    })"""
    with browser.tab(files[name], width=width) as tab:
        seen = tab.js(shown)
        inner, outer = tab.js(
            "(e => [e.scrollWidth, e.clientWidth])(document.querySelector('#findings .scroll'))"
        )

    assert len(seen) > 4
    assert all(seen)
    assert inner == outer
