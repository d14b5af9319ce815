"""Cases that fail today, and what was seen: whoever mends one deletes its row."""

from __future__ import annotations


NOT_YET: dict[str, str] = {}
