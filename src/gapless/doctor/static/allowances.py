"""Comments that allow a wait: `# gapless: allow(reason)`."""

from __future__ import annotations

import ast
import io
import re
import tokenize


_ALLOWANCE = re.compile(r"#\s*gapless:\s*allow\(\s*[^)\s][^)]*\)")


def allowed_lines(source: str, tree: ast.Module) -> set[int]:
    """Return the lines at which waits are allowed.

    A comment at the end of a line allows the statement that the line is in; alone on its line, the
    statement of the next. Of a block it is the header. A comment without a reason allows nothing.
    """
    if "gapless:" not in source:
        return set()
    spans = _spans(tree)
    allowed: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and _ALLOWANCE.search(token.string):
            line = token.start[0]
            is_alone = not token.line[: token.start[1]].strip()
            allowed.update(_span(spans, line + 1 if is_alone else line))
    return allowed


def _spans(tree: ast.Module) -> list[range]:
    """Return the lines of each statement; of a block, those of its header."""
    spans = []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            last = node.end_lineno or node.lineno
            body = getattr(node, "body", None)
            if body:
                last = max(node.lineno, body[0].lineno - 1)
            spans.append(range(node.lineno, last + 1))
    return spans


def _span(spans: list[range], line: int) -> range:
    """Return the shortest span around a line."""
    return min((span for span in spans if line in span), key=len, default=range(line, line + 1))
