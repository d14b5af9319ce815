"""What the look at the syntax tree says of lines that would wait for a GPU."""

from __future__ import annotations

import pytest

from doctor.labels import Wait, all_cases, read_labels
from doctor.tables import static_snippets
from gapless.doctor.static.look import findings_in, findings_of


def verdicts(source: str) -> dict[int, str]:
    return {one.site.line: one.certainty for one in findings_of(source, "s.py")}


@pytest.mark.parametrize("snippet", static_snippets(), ids=lambda one: one.name)
def test_snippets_get_their_verdicts(snippet):
    """Each line is reported as the table says, and no other."""
    compile(snippet.source, snippet.name, "exec")  # else it would be right by chance
    found = verdicts(snippet.source)
    either = {line for line, verdict in snippet.expected.items() if verdict == "any"}
    expected = {line: one for line, one in snippet.expected.items() if line not in either}

    assert {line: one for line, one in found.items() if line not in either} == expected


FILES = sorted(
    {path for case in all_cases() for path in [case.path, *[one.path for one in case.waits]]}
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_lines_of_the_corpus_get_their_verdicts(path):
    """Labelled waits are found as their label asks; nothing else is called sure."""
    found = {one.site.line: one.certainty for one in findings_in([path])}
    labels = read_labels(path)
    waits = [one for one in labels if isinstance(one, Wait)]
    wrong = []
    for wait in waits:
        said = {
            verdict for line, verdict in found.items() if wait.first_line <= line <= wait.last_line
        }
        if wait.static == "surely" and "surely" not in said:
            wrong.append(f"{wait.line} {wait.cause} must be surely")
        if wait.static == "maybe" and wait.least and not said:
            wrong.append(f"{wait.line} {wait.cause} must be maybe")
    for line, verdict in found.items():
        if verdict == "surely" and not any(
            one.first_line <= line <= one.last_line for one in waits
        ):
            wrong.append(f"{line} is no wait for sure")

    assert wrong == []
