"""The judge of the trainer's defaults: fixed cuts and configurations, equal time, honest verdicts."""

from __future__ import annotations

import gzip
import hashlib
import json

import pytest
from benchmarks.newcomers import (
    __main__ as judge_command,
    cuts,
    grid,
    lesson,
    order,
    runs as runs_of_users,
    small,
    verdicts,
)
from benchmarks.newcomers.order import DEFAULTS, Order
from benchmarks.newcomers.runs import Setting

from gapless.cli.main import run_command
from gapless.errors import UserError


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


def test_the_other_direction_has_the_same_pairs():
    """Source and target change places, and with them the tokeniser."""
    cut = cuts.draw(
        "some", pool_of(90), size=30, languages=("en", "zh"), num_test=9, num_choosing=9
    )

    other = cut.reversed()

    assert other.train == [(target, source) for source, target in cut.train]
    assert (cut.tokeniser, other.tokeniser) == ("zh", "13a")
    assert (cut.name, other.name) == ("some-30-en-zh", "some-30-zh-en")


def test_a_corpus_that_is_too_small_is_told():
    """A cut with fewer pairs would be another case."""
    with pytest.raises(UserError, match=r"some gives \d+ training pairs, and the cut needs 90"):
        cuts.draw(
            "some", pool_of(100), size=90, languages=("en", "zh"), num_test=9, num_choosing=9
        )


def test_corpora_are_read_as_they_are(tmp_path):
    """Quotes stay, a third column does not count, pairs come once; a missing file is named."""
    folder = tmp_path / "tatoeba-zh-en"
    folder.mkdir()
    text = '"Hi," he said.\t“嗨。”\tby mia\nYes\t是\tby jon\nYes\t是\tby mia\n...\t。\tby mia\n'
    for split in ("train", "val"):
        (folder / f"{split}.tsv.gz").write_bytes(gzip.compress(text.encode()))

    with pytest.raises(UserError, match=r"no file .*test\.tsv\.gz; name the folder"):
        cuts.read(tmp_path, "tatoeba-zh-en")

    (folder / "test.tsv.gz").write_bytes(gzip.compress("No\t不\tby mia\n".encode()))
    assert cuts.read(tmp_path, "tatoeba-zh-en") == [
        ('"Hi," he said.', "“嗨。”"),
        ("Yes", "是"),
        ("No", "不"),
    ]


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


def test_a_time_that_is_given_lets_all_runs_share_the_machine_at_once():
    """Nothing waits for the defaults, and they need no company."""
    waiting = order_of(2, jobs=6, seconds=90)

    runs = [waiting.next(90.0) for _ in range(6)]

    assert [run.max_time for run in runs] == [None, None, *["90s"] * 4]
    assert waiting.next(90.0) is None


def test_defaults_never_have_the_machine_for_themselves():
    """Where there are more jobs than cuts, they run with other seeds beside the measured ones."""
    make, runs = made_in(10.0)

    make_all(order_of(2, jobs=5), make)

    defaults = [(run.cut.corpus, run.flags) for run in runs if run.name.startswith(DEFAULTS)]
    assert defaults == [
        ("c0", ()),
        ("c0", ("--seed", "2")),
        ("c0", ("--seed", "3")),
        ("c1", ()),
        ("c1", ("--seed", "2")),
        ("c1", ("--seed", "3")),
    ]


def test_some_runs_can_be_made_alone():
    """Such as the defaults, which had not ended before, and the best configurations once more."""
    waiting = order_of(2, jobs=6, seconds=90, names=[DEFAULTS, "configuration 02"])

    runs = [waiting.next(90.0) for _ in range(4)]

    assert [run.name for run in runs] == [*[DEFAULTS] * 2, *["configuration 02"] * 2]
    assert waiting.next(90.0) is None


def test_a_run_that_there_is_not_is_told(capsys):
    assert judge_command.main(["--small", "--runs", "defaults, configuration 3"]) == 2
    assert "no run is named 'configuration 3'" in capsys.readouterr().err


def test_runs_made_before_are_not_made_again():
    """A configuration that had another time is."""
    make, runs = made_in(60.0)
    waiting = order_of(1, jobs=1)
    name = "c0-30-en-zh"
    waiting.know(
        [
            ran(DEFAULTS, cut=name, seconds=60.0, bleu=1.0),
            ran("configuration 01", cut=name, max_time="60s", bleu=1.0),
            ran("configuration 02", cut=name, max_time="59s", bleu=1.0),
        ]
    )

    make_all(waiting, make)

    assert [run.name for run in runs] == ["configuration 02"]


def test_no_run_begins_that_cannot_end_in_time():
    """What is left waits for the next call; failed defaults have no configurations."""
    make, runs = made_in(60.0)
    waiting = order_of(1, jobs=1)

    make_all(waiting, make, seconds_left=59.0)

    assert [run.name for run in runs] == [DEFAULTS]
    assert len(waiting) == 2


def test_runs_are_spread_over_gpus(tmp_path):
    """So many beside each other on each, and each run sees one of them."""
    setting = Setting(device="cuda", jobs=2, gpus=("3", "5"))

    seen = [
        setting.environment(tmp_path, gpu=gpu)["CUDA_VISIBLE_DEVICES"] for gpu in setting.places
    ]

    assert sorted(seen) == ["3", "3", "5", "5"]


@pytest.mark.parametrize(
    ("said", "num_tries", "problem"),
    [("out of memory while translating", 2, None), ("no run there", 1, "no run there")],
)
def test_a_translation_waits_for_memory_that_runs_beside_it_hold(
    said, num_tries, problem, tmp_path, monkeypatch
):
    """Its time is not counted, and another failure is told at once."""
    commands = []

    def gapless(command, *, folder, out=None, **_):
        commands.append(command[0])
        if command[0] == "translate" and commands.count("translate") == 1:
            raise runs_of_users.CommandError(said)
        if out:
            out.write_text("a\nb\n")
        config = folder / "runs" / "train" / "config.yaml"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.touch()
        return 60.0

    monkeypatch.setattr(runs_of_users, "gapless", gapless)
    monkeypatch.setattr(runs_of_users, "SECONDS_BETWEEN_TRIES", 0.0)
    pairs = [("a", "a"), ("b", "b")]
    cut = cuts.Cut(
        corpus="c", size=2, source="en", target="de", train=pairs, test=pairs[:1], choosing=pairs[1:]
    )  # fmt: skip

    found = runs_of_users.made(
        runs_of_users.Run(cut=cut, name=DEFAULTS, flags=()),
        folder=tmp_path / "run",
        setting=Setting(device="cpu", jobs=1),
    )

    assert found["problem"] == problem
    assert commands.count("translate") == num_tries


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


def test_a_verdict_waits_for_all_configurations():
    """A configuration that failed was tried, and stands below the table."""
    found = [
        ran(DEFAULTS, bleu=20.0),
        ran("configuration 01", max_time="60s", bleu=20.0, seconds=70.0),
        ran("configuration 02", max_time="60s", problem="exit code 2"),
    ]

    words = [verdicts.judge(found, cut="c", num_configurations=num).word for num in (2, 3)]
    table = verdicts.table([verdicts.judge(found, cut="c", num_configurations=2)])

    assert words == ["passes", "incomplete"]
    assert "* c: configuration 02: exit code 2" in table
    assert "* c: configuration 01 took 70 s and was given 60s" in table


def test_configurations_with_less_time_than_the_defaults_say_nothing():
    """A verdict waits until they have had as long."""
    found = [
        ran(DEFAULTS, bleu=20.0, seconds=60.9),
        ran("configuration 01", max_time="59s", bleu=1.0),
        ran("configuration 02", max_time="60s", bleu=2.0),
    ]

    verdict = verdicts.judge(found, cut="c", num_configurations=2)

    assert verdict.word == "incomplete"
    assert verdict.others == [2.0]
    assert verdict.notes == ["configurations with less time than the defaults took: 1"]


@pytest.mark.parametrize(
    ("found", "passes"),
    [
        ({"bleu": 40.0, "seconds": 120.0}, True),
        ({"bleu": 39.9, "seconds": 100.0}, False),
        ({"bleu": 90.0, "seconds": 120.5}, False),
        ({"problem": "exit code 1"}, False),
    ],
)
def test_the_first_lesson_is_learned_in_time_or_not(found, passes):
    """BLEU of 40 within 120 seconds."""
    one = ran(DEFAULTS, processor_seconds=80.0, **found)

    assert verdicts.lesson_passes(one) is passes
    assert (": passes: " in verdicts.lesson_line(one)) is passes


def test_the_first_lesson_has_two_cores(monkeypatch):
    """Whoever measures on a large machine gives it no more; the thread has its cores back."""
    given = [{0, 1, 2, 3}]
    monkeypatch.setattr(lesson.os, "sched_getaffinity", lambda _: set(given[-1]))
    monkeypatch.setattr(lesson.os, "sched_setaffinity", lambda _, cores: given.append(set(cores)))

    with lesson._few_cores():
        pass

    assert given[1:] == [{0, 1}, {0, 1, 2, 3}]


# -------------------------------------------------------------------------------------- command


def test_a_case_that_there_is_not_is_told(capsys):
    """With the names of all cases."""
    assert judge_command.main(["--corpora", "unused", "--only", "wmt14"]) == 2

    message = capsys.readouterr().err
    assert (
        "no case has 'wmt14' in its name; they are first-lesson, tatoeba-zh-en-500-en-zh"
        in message
    )


def test_cases_come_in_the_order_in_which_they_are_wanted(tmp_path, monkeypatch):
    """Whoever has little time names first what matters most."""
    corpus = tmp_path / "tatoeba-zh-en"
    corpus.mkdir()
    text = "".join(f"{source}\t{target}\n" for source, target in pool_of(8_000))
    for split in ("train", "val", "test"):
        (corpus / f"{split}.tsv.gz").write_bytes(gzip.compress(text.encode()))
    begun = []
    monkeypatch.setattr(judge_command, "made", lambda run, **_: begun.append(run) or failed(run))
    only = "tatoeba-zh-en-5000-zh-en,tatoeba-zh-en-500-en-zh,tatoeba-zh-en-5000-"

    judge_command.main(["--corpora", str(tmp_path), "--only", only])

    names = ["tatoeba-zh-en-5000-zh-en", "tatoeba-zh-en-500-en-zh", "tatoeba-zh-en-5000-en-zh"]
    assert [run.cut.name for run in begun] == names


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
