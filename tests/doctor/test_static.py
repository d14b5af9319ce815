"""What the look at the syntax tree says of lines that would wait for a GPU."""

from __future__ import annotations

import json

import pytest

from doctor.judge import judge_static
from doctor.labels import all_cases
from doctor.tables import static_snippets
from gapless.cli.main import run_command
from gapless.doctor.static.look import findings_of


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


@pytest.mark.parametrize(("is_planted", "num_labels"), [(False, 140), (True, 10)])
def test_lines_of_the_corpus_get_their_verdicts(is_planted, num_labels, capsys):
    """Labelled waits are found as their label asks; nothing else is called sure."""
    # A file is known by its name alone.
    cases = [case for case in all_cases() if (case.apart == "planted") == is_planted]
    files = {path for case in cases for path in [case.path, *[one.path for one in case.waits]]}

    assert run_command(["doctor", "--static", "--format", "json", *sorted(map(str, files))]) == 0
    judged = judge_static(cases, json.loads(capsys.readouterr().out))

    assert [(one["case"], *one["mistakes"]) for one in judged if not one["right"]] == []
    assert sum(len(one["labels"]) for one in judged) >= num_labels
