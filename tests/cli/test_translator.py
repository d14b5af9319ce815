"""`gapless.nmt.Translator`: a trained run in Python, as on the command line."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch

from gapless.device.numerics import numerics_restored
from gapless.errors import DataError, DeviceError, RunFolderError, TranslationWarning, UserError
from gapless.nmt import Translator


LINES = ["the big dog sees the cat 5.", "", "red cat 1.", "   ", "dog 2."]

pytestmark = pytest.mark.filterwarnings("ignore::gapless.errors.TranslationWarning")


@pytest.fixture(scope="module")
def translator(tiny_run):
    with numerics_restored():
        yield Translator(tiny_run, device="cpu")


@pytest.mark.parametrize("options", [{}, {"beam": 3}, {"batch": 1}, {"max_length": 3}])
def test_python_gives_what_the_command_line_prints(gapless, tiny_run, translator, options):
    """One line for each sentence, in their order; an empty one stays empty."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]

    printed = gapless("translate", tiny_run, *flags, *LINES)

    assert printed.out.split("\n")[:-1] == translator.translate(LINES, **options)


def test_the_caller_keeps_deterministic_algorithms(tiny_run):
    """They are the process's own, and a translator needs none."""
    with numerics_restored():
        torch.use_deterministic_algorithms(True, warn_only=True)
        Translator(tiny_run, device="cpu")

        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_sentences_may_come_from_anywhere(translator):
    """An empty list is answered with an empty list, and a generator as the list of what it gives."""
    assert translator.translate([]) == []
    assert translator.translate(line for line in LINES) == translator.translate(LINES)


def test_a_batch_changes_no_translation(translator):
    """However many sentences go together, each gets the same translation."""
    lines = [f"the {word} cat {n}." for n, word in enumerate(["red", "big", "the"] * 4)]

    assert translator.translate(lines, batch=1) == translator.translate(lines, batch=5)


def test_checkpoints_and_averages_can_be_chosen(gapless, tiny_run):
    """As with the flags of the same names."""
    with numerics_restored():
        averaged = Translator(str(tiny_run), average=2, device="cpu").translate(LINES)
        last = Translator(tiny_run, checkpoint="epoch-0002", device="cpu").translate(LINES)

    assert averaged == gapless("translate", tiny_run, "--average", 2, *LINES).out.split("\n")[:-1]
    flags = ["--checkpoint", "epoch-0002"]
    assert last == gapless("translate", tiny_run, *flags, *LINES).out.split("\n")[:-1]


@pytest.mark.parametrize(
    ("sentences", "options", "error", "message"),
    [
        ("a cat", {}, TypeError, r"must be a list of str.*write \[sentence\]"),
        (["a", None], {}, TypeError, "sentence 1 is NoneType"),
        (["a", "caf\udce9"], {}, DataError, "sentence 1 is not Unicode text"),
        (["a"], {"beam": 0}, UserError, "`beam` must be at least 1, but is 0"),
        (["a"], {"batch": 0}, UserError, "`batch` must be at least 1, but is 0"),
        (["a"], {"max_length": 42}, UserError, "`max_length` must be 1 to 41"),
    ],
)
def test_what_cannot_be_translated_is_named(translator, sentences, options, error, message):
    """Mistakes are errors of one line that say what was expected."""
    with pytest.raises(error, match=message):
        translator.translate(sentences, **options)


def test_what_cannot_be_loaded_is_named(tiny_run, tmp_path):
    """A folder that is no run, an absent checkpoint or device, and two ways to choose weights."""
    with pytest.raises(RunFolderError, match="is not a run folder"):
        Translator(tmp_path)
    with pytest.raises(UserError, match="absent does not exist"):
        Translator(tiny_run, checkpoint="absent")
    with pytest.raises(DeviceError, match="unknown device 'tpu'"):
        Translator(tiny_run, device="tpu")
    with pytest.raises(UserError, match="`checkpoint` or `average`, not both"):
        Translator(tiny_run, checkpoint="best", average=2)
    with pytest.raises(UserError, match="`average` must be at least 1"):
        Translator(tiny_run, average=0)


@pytest.mark.parametrize("average", [1.5, True, "2"])
def test_an_average_is_a_whole_number(tiny_run, average):
    """Other values are refused in one line, as those of other options are."""
    with pytest.raises(UserError, match=rf"`average` must be a whole number, but is '?{average}"):
        Translator(tiny_run, device="cpu", average=average)


def test_an_average_of_more_epochs_than_there_are(gapless, tiny_run):
    """The numbers are told; no epoch is named, as none that was saved is missing."""
    asked = gapless("translate", tiny_run, "--average", "50", "cat")

    asked.check_refused(
        "keeps 2 epoch checkpoints of 2 epochs, but --average 50 asks for 50; lower it to 2"
    )
    assert "epoch-0" not in asked.err


def test_what_is_cut_is_warned_of(translator):
    """A translation at its longest, and a source beyond what the model reads, are named."""
    lines = ["", "the big red cat sees the dog 5.", "the cat " * 100]

    with pytest.warns(TranslationWarning) as caught:
        translator.translate(lines, max_length=1)

    long, cut = (str(warning.message) for warning in caught)
    assert long == "sentence 2 has more than 40 tokens; the rest is not translated"
    assert cut == "2 sentences, 1, 2, have translations that were cut at 1 tokens, `max_length`"
    assert {warning.filename for warning in caught} == {__file__}


def test_nothing_is_said_where_nothing_is_cut(translator):
    """An empty sentence has an empty translation, of which nothing was cut."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        assert translator.translate(["", " "]) == ["", ""]


def test_the_command_line_names_what_is_cut(gapless, tiny_run, tmp_path):
    """`translate` warns of each of a few lines and counts; `evaluate` counts and names lines."""
    translated = gapless("translate", tiny_run, "--max-length", "1", "", "big cat 1.", "dog 2.")
    evaluated = gapless("evaluate", tiny_run, "--max-length", "1")
    figures = json.loads(gapless("evaluate", tiny_run, "--max-length", "1", "--json").out)

    warning = "gapless: warning: "
    assert translated.err.splitlines() == [
        f"{warning}the translation of line 2 is cut at 1 tokens",
        f"{warning}the translation of line 3 is cut at 1 tokens",
        f"{warning}2 of 3 translations are cut; --max-length lets them be longer",
    ]
    assert "12 of 12 hypotheses are cut at 1 tokens, in lines 1, 2, 3, 4, 5, " in evaluated.out
    assert (figures["num_cut"], figures["cut"]) == (12, list(range(1, 13)))


def test_of_many_lines_three_are_named(gapless, tiny_run, tmp_path):
    """The count of all comes at the end, over all parts of a file."""
    (tmp_path / "f.txt").write_text(f"{'the cat ' * 100}\n" * 4)
    asked = gapless("translate", tiny_run, "--max-length", "1", "--file", "f.txt")

    warnings = [line.removeprefix("gapless: warning: ") for line in asked.err.splitlines()]
    assert [line[:10] for line in warnings if "the rest of it" in line] == [
        f"line {number} has" for number in (1, 2, 3)
    ]
    assert [line for line in warnings if "is cut" in line] == [
        f"the translation of line {number} is cut at 1 tokens" for number in (1, 2, 3)
    ]
    assert warnings[-2:] == [
        "4 lines have more than 40 tokens; the rest of them is not translated",
        "4 of 4 translations are cut; --max-length lets them be longer",
    ]


def test_evaluation_writes_what_it_compared(gapless, tiny_run, tiny_data, tmp_path):
    """Sources, references and hypotheses, a sentence a line, in the run folder or in another."""
    for folder, options in (
        (tiny_run, []),
        (tmp_path / "a" / "b", ["--out", tmp_path / "a" / "b"]),
    ):
        figures = json.loads(gapless("evaluate", tiny_run, "--json", *options).out)

        for name, side in (("sources", "en"), ("references", "zh")):
            path = Path(folder) / f"{name}.test.txt"
            assert str(path) == figures[name]
            assert path.read_bytes() == (tiny_data / f"test.{side}").read_bytes()
        hypotheses = (Path(folder) / "hypotheses.test.txt").read_text("utf-8")
        assert hypotheses.count("\n") == 12


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"beam": 2.0}, "`beam` must be a whole number, but is 2.0"),
        ({"beam": True}, "`beam` must be a whole number, but is True"),
        ({"batch": 1.5}, "`batch` must be a whole number, but is 1.5"),
        ({"max_length": "5"}, "`max_length` must be a whole number, but is '5'"),
        ({"beam": 1_000_000}, "`beam` must be at most 1,024, but is 1,000,000"),
    ],
)
def test_settings_that_no_search_can_have(translator, settings, said):
    """A line names them; a beam beyond reason would fill the memory."""
    with pytest.raises(UserError, match=said):
        translator.translate(LINES, **settings)
