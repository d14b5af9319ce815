"""Pictures of pages for docs/pages.md, of made-up figures. `make pictures` takes them anew."""

from __future__ import annotations

import tempfile
from pathlib import Path

from browser import Browser, find_chromium
from report.pages import made_up_pages


IMAGES = Path(__file__).parents[2] / "docs" / "images"

# Height of what is shown, and whether it is dark.
SHOWN = {"doctor": (860, False), "compare": (800, True), "train": (620, False)}


def main():
    """Write the pictures."""
    with tempfile.TemporaryDirectory() as name:
        browser = Browser(find_chromium(), f"{name}/profile")
        try:
            for page, text in made_up_pages().items():
                if page in SHOWN:
                    path = Path(name) / f"{page}.html"
                    path.write_text(text, encoding="utf-8")
                    height, dark = SHOWN[page]
                    with browser.tab(path, width=800, height=height, dark=dark) as tab:
                        (IMAGES / f"{page}-page.png").write_bytes(tab.screenshot())
        finally:
            browser.close()


if __name__ == "__main__":
    main()
