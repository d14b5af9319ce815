"""The judge of the trainer's defaults: fixed cuts and configurations, equal time, honest verdicts."""

from __future__ import annotations

import hashlib
import json

import pytest
from benchmarks.newcomers import (
    __main__ as judge_command,
    cuts,
    grid,
    order,
    small,
    verdicts,
)
from benchmarks.newcomers.order import DEFAULTS, Order

from gapless.cli.main import run_command


SIZES_AND_LANGUAGES = [
    (size, languages) for size in cuts.SIZES for languages in (("en", "zh"), ("en", "de"))
]


def digest(value):
    """Return what changes if anything in a value does."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def pool_of(number):
    """Return pairs, of which every tenth has the source side of another one."""
    return [(f"source {at - (at % 10 == 0)}", f"target {at}.") for at in range(number)]


def ran(name, **found):
    """Return a run of the cut `c`, as it is kept."""
    flags = {"cut": "c", "run": name, "flags": [], "problem": None, "max_time": None}
    return {**flags, "seconds": 60.0, "choosing_bleu": found.get("bleu"), **found}


def failed(run):
    """Return a run that came to nothing."""
    return {
        "cut": run.cut.name,
        "run": run.name,
        "max_time": run.max_time,
        "problem": "exit code 1",
    }


# ------------------------------------------------------------------------------- cuts and grid


def test_a_cut_is_the_same_whenever_it_is_drawn():
    """Nobody can choose the pairs that suit the defaults: seed and draw are fixed."""
    first, again = [
        cuts.draw(
            "some", pool_of(200), size=99, languages=("en", "zh"), num_test=9, num_choosing=9
        )
        for _ in range(2)
    ]

    assert first == again
    assert digest([first.train, first.test, first.choosing]) == "3e59e01a41962103"


def test_training_never_sees_a_side_of_a_test_pair():
    """Not even one that differs in letter case and punctuation alone."""
    pool = [*pool_of(300), *((source.upper() + "!", target) for source, target in pool_of(300))]

    cut = cuts.draw("some", pool, size=100, languages=("en", "zh"), num_test=30, num_choosing=30)

    unseen = [*cut.test, *cut.choosing]
    assert (len(cut.train), len(cut.test), len(cut.choosing)) == (100, 30, 30)
    for side in (0, 1):
        trained = {cuts.plain(pair[side]) for pair in cut.train}
        assert not trained & {cuts.plain(pair[side]) for pair in unseen}


def test_the_grid_is_fixed():
    """It was drawn before the defaults were written; a change would judge them by another grid."""
    drawn = [grid.configurations(size, languages) for size, languages in SIZES_AND_LANGUAGES]

    assert [len({tuple(flags) for flags in one}) for one in drawn] == [24] * 6
    assert digest(drawn) == "55c4eed9fe5181ec"


@pytest.mark.parametrize(("size", "languages"), SIZES_AND_LANGUAGES)
def test_the_trainer_knows_every_flag_of_the_grid(size, languages, tmp_path, capsys, numerics):
    """It gets as far as the data, which are not there."""
    for flags in grid.configurations(size, languages):
        assert run_command(["train", "--data", str(tmp_path / "absent.tsv"), *flags]) == 2
        assert "absent.tsv" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- order


def order_of(num_cuts, *, jobs, seconds=None, names=()):
    """Return an order of small cuts with two configurations each."""
    drawn = [
        cuts.draw(
            f"c{at}", pool_of(90), size=30, languages=("en", "zh"), num_test=9, num_choosing=9
        )
        for at in range(num_cuts)
    ]
    chosen = {cut.name: [["--lr", "1"], ["--lr", "2"]] for cut in drawn}
    return Order(drawn, chosen, defaults=(), jobs=jobs, seconds=seconds, names=names)


def made_in(seconds):
    """Return a maker of runs, and the list of those that it made."""
    runs = []

    def make(run):
        runs.append(run)
        return ran(run.name, cut=run.cut.name, seconds=seconds, max_time=run.max_time, bleu=1.0)

    return make, runs


def make_all(waiting, make, *, seconds_left=1e9):
    """Make the runs of an order one after the other."""
    ended = []
    order.make_all(
        waiting, make, jobs=1, seconds_left=lambda: seconds_left,
        tell=lambda found, _: ended.append(found),
    )  # fmt: skip
    return ended


def test_configurations_get_the_time_that_the_defaults_took():
    """All defaults come first, so that they share the machine; then one cut after the other."""
    make, runs = made_in(73.9)

    make_all(order_of(2, jobs=2), make)

    seen = [(run.cut.corpus, run.name, run.max_time) for run in runs]
    assert seen == [
        ("c0", "defaults", None),
        ("c1", "defaults", None),
        ("c0", "configuration 01", "73s"),
        ("c0", "configuration 02", "73s"),
        ("c1", "configuration 01", "73s"),
        ("c1", "configuration 02", "73s"),
    ]
    assert [run.flags for run in runs] == [(), (), *[("--lr", "1"), ("--lr", "2")] * 2]


# ------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(("bleu", "word"), [(19.0, "passes"), (18.99, "fails"), (None, "fails")])
def test_the_defaults_pass_at_95_percent_of_the_best(bleu, word):
    """The best one on the very pairs that are scored, which luck helps; failed defaults fail."""
    found = [
        ran(DEFAULTS, bleu=bleu, problem=None if bleu else "exit code 1"),
        ran("configuration 01", max_time="60s", bleu=20.0, choosing_bleu=9.0),
        ran("configuration 02", max_time="60s", bleu=10.0, choosing_bleu=11.0),
    ]

    verdict = verdicts.judge(found, cut="c", num_configurations=2)

    assert verdict.word == word
    assert verdict.share == (bleu and bleu / 20.0)
    assert verdict.share_of_chosen == (bleu and bleu / 10.0)


# -------------------------------------------------------------------------------------- command


@pytest.mark.slow
def test_made_up_text_is_judged_once(tmp_path, capsys, monkeypatch):
    """Every run is kept as soon as it ends, with its commit; the next call makes none of them."""
    monkeypatch.setattr(small, "CONFIGURATIONS", small.CONFIGURATIONS[:1])
    file = tmp_path / "newcomers.jsonl"
    command = ["--small", "--jobs", "2", "--json", str(file)]

    codes = [judge_command.main(command)]
    first = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    codes.append(judge_command.main(command))
    second = file.read_text(encoding="utf-8").splitlines()

    assert sorted(one["run"] for one in first) == [
        "configuration 01",
        "defaults",
        "defaults",
        "defaults, seed 2",
    ]
    assert [one["problem"] for one in first] == [None] * 4
    assert all(one["seconds"] > 0.0 and one["commit"] for one in first)
    assert len(second) == 4
    assert codes[0] == codes[1]
    out = capsys.readouterr().out
    assert out.count(f"| {small.cut().name} | ") == 2
