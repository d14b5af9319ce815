"""Figures as people read them on a page, each with its unit."""

from __future__ import annotations


MISSING = "–"

_MEGABYTE = 2**20


def milliseconds(value: float | None) -> str:
    """Return a time in milliseconds with three digits that count, without its unit."""
    if value is None:
        return MISSING
    if abs(value) >= 100.0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10.0 else f"{value:.2f}"


def with_unit(text: str, unit: str) -> str:
    """Return a figure with its unit behind a space that does not break; what is missing has none."""
    return text if text == MISSING else f"{text}\N{NO-BREAK SPACE}{unit}"


def percent(share: float | None) -> str:
    """Return a share, 0 to 1, as a percentage with its sign."""
    return with_unit(MISSING if share is None else f"{share * 100.0:.1f}", "%")


def count(value: float | None) -> str:
    """Return a count, which may be a mean."""
    if value is None:
        return MISSING
    if value == round(value) or abs(value) >= 100.0:
        return f"{value:,.0f}"
    return f"{value:.2f}"


def change(before: float | None, after: float | None) -> str:
    """Return by how much a figure changed, as a percentage with a sign."""
    if before is None or after is None or not before:
        return MISSING
    found = round((after / before - 1.0) * 100.0, 1)
    return with_unit(f"{found:+.1f}".replace("-", "\N{MINUS SIGN}") if found else "0.0", "%")


def size(num_bytes: float | None) -> str:
    """Return a size in MiB, without its unit."""
    return MISSING if num_bytes is None else f"{num_bytes / _MEGABYTE:,.0f}"
