"""The kinds of findings: for each cause its stable code."""

from __future__ import annotations

from typing import Literal


# Why the host stands still, or is slow without standing still.
Cause = Literal[
    "item",
    "float",
    "int",
    "bool",
    "format",
    "index",
    "print",
    "cpu",
    "tolist",
    "save",
    "copy",
    "pageable copy",
    "strided copy",
    "new tensor",
    "cpu index",
    "shape",
    "equal",
    "linalg",
    "validation",
    "scaler",
    "clip",
    "optimizer",
    "stream",
    "event",
    "device",
    "query",
    "empty_cache",
    "allocation",
    "host allocation",
    "collective",
    "loader",
    "launch",
    "shapes",
    "gc",
    "unknown",
]

CODE_OF: dict[Cause, str] = {
    **dict.fromkeys(("item", "float", "int", "bool", "format", "index"), "GAP001"),
    "print": "GAP002",
    **dict.fromkeys(("cpu", "tolist", "save"), "GAP003"),
    "copy": "GAP004",
    **dict.fromkeys(("pageable copy", "strided copy"), "GAP005"),
    "new tensor": "GAP006",
    "shape": "GAP007",
    "cpu index": "GAP008",
    **dict.fromkeys(("equal", "linalg", "validation"), "GAP009"),
    **dict.fromkeys(("scaler", "clip", "optimizer"), "GAP010"),
    **dict.fromkeys(("stream", "device"), "GAP011"),
    "event": "GAP012",
    "query": "GAP013",
    **dict.fromkeys(("empty_cache", "allocation"), "GAP014"),
    "host allocation": "GAP015",
    "loader": "GAP016",
    "launch": "GAP017",
    "shapes": "GAP018",
    "gc": "GAP019",
    "collective": "GAP020",
    "unknown": "GAP021",
}
