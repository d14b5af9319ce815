"""The question for a language at a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from gapless.cli.language_question import ask_language
from gapless.errors import LanguageError


class Terminal(io.StringIO):
    """Keeps what is written; who is to type does something else."""

    answer = None

    def isatty(self):
        return True

    def readline(self):
        if isinstance(self.answer, str):
            return self.answer
        raise self.answer


@pytest.mark.parametrize(
    ("answer", "error"), [(KeyboardInterrupt(), KeyboardInterrupt), ("", LanguageError)]
)
def test_what_follows_an_interrupted_question_begins_on_a_line_of_its_own(
    monkeypatch, answer, error
):
    """Whether by Ctrl-C or by Ctrl-D."""
    terminal = Terminal()
    terminal.answer = answer
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(error):
        ask_language(LanguageError("the language is not known: name it", suggestion=None))

    assert terminal.getvalue().endswith("is the text of the target side in? \n")
