"""Elements of HTML from plain values. Whatever is not HTML yet is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, TypeAlias


if TYPE_CHECKING:
    from collections.abc import Iterable


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


# Text, HTML, or nothing.
Child: TypeAlias = str | None

# Elements that have no end; those of drawings have one.
_EMPTY = {"link", "meta"}


def element(name: str, /, *children: Child, **attributes: object) -> Html:
    """Return an element with its children.

    Args:
        name: of the element.
        children: text, which is escaped, or HTML; None is left out.
        attributes: by name; `class_` is `class`, and `_` in a name is `-`. True is an attribute
            without a value; None and False leave it out.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        parts.append(attribute if value is True else f'{attribute}="{escape(str(value))}"')
    start = f"<{' '.join(parts)}>"
    if name in _EMPTY:
        return Html(start)
    return Html(f"{start}{joined(children)}</{name}>")


def joined(children: Iterable[Child]) -> Html:
    """Return children one after the other, text escaped."""
    return Html(
        "".join(
            child if isinstance(child, Html) else escape(child)
            for child in children
            if child is not None
        )
    )
