"""Settings that a run chooses by corpus and device."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace

import pytest
from hypothesis import given, strategies as st

from gapless.errors import DataError, UserError
from gapless.nmt.run.new_run import choose_run
from gapless.nmt.settings.config import TrainConfig, make_config
from gapless.nmt.settings.defaults import (
    CHOSEN,
    Facts,
    TextFacts,
    choose,
    choose_vocabulary,
    chosen_settings,
)


FACTS = st.builds(
    lambda pairs, length, **more: Facts(pairs=pairs, tokens=pairs * length, **more),
    pairs=st.integers(1, 50_000_000),
    length=st.integers(1, 100),
    vocabulary=st.integers(5, 60_000),
    is_accelerator=st.booleans(),
    cores=st.integers(1, 256),
    memory_bytes=st.none() | st.integers(2**32, 2**38),
)

GIVEN = st.fixed_dictionaries(
    {},
    optional={
        "d_model": st.sampled_from([16, 64, 96, 256, 1024]),
        "ffn": st.sampled_from([8, 512, 4096]),
        "encoder_layers": st.integers(1, 12),
        "dropout": st.sampled_from([0.0, 0.5]),
        "batch_tokens": st.integers(1, 50_000),
        "accumulate": st.integers(1, 8),
        "epochs": st.integers(1, 1000),
        "max_steps": st.integers(1, 10**6),
        "max_time": st.sampled_from(["1s", "90s", "2h"]),
        "warmup": st.integers(0, 8000),
        "lr": st.sampled_from([1e-4, 1e-2]),
        "schedule": st.sampled_from(["inverse-sqrt", "cosine", "constant"]),
        "val_interval": st.integers(1, 100),
        "validate_every": st.sampled_from(["50", "30s"]),
        "patience": st.integers(0, 9),
    },
)

GPU = Facts(
    pairs=5000,
    tokens=60_000,
    vocabulary=3000,
    is_accelerator=True,
    memory_bytes=141 * 2**30,
)
CPU = replace(GPU, is_accelerator=False, cores=2, memory_bytes=None)


def text(**settings):
    return chosen_settings(choose_vocabulary(TextFacts(**settings), {}))


@given(facts=FACTS, asked=GIVEN)
def test_any_corpus_gets_valid_settings(facts, asked):
    """With any flags; none of them is chosen, and all that can be chosen is known as such."""
    choices = choose(facts, asked)
    chosen = chosen_settings(choices)

    make_config({"data": "somewhere", **chosen, **asked})
    assert not chosen.keys() & asked.keys()
    assert chosen.keys() <= CHOSEN
    assert all(choice.reason for choice in choices)
    assert sum(len(choice.settings) for choice in choices) == len(chosen)


@given(facts=FACTS, heads=st.integers(1, 24))
def test_heads_that_were_given_divide_the_model(facts, heads):
    """The width follows them."""
    chosen = chosen_settings(choose(facts, {"heads": heads}))

    make_config({"data": "somewhere", "heads": heads, **chosen})


@given(facts=FACTS, asked=GIVEN)
def test_warm_up_leaves_most_of_the_updates(facts, asked):
    """At most a tenth of them."""
    asked.pop("warmup", None)
    known = {**asked, **chosen_settings(choose(facts, asked))}
    per_epoch = math.ceil(facts.tokens / known["batch_tokens"])
    per_epoch = math.ceil(per_epoch / known.get("accumulate", 1))
    updates = known["epochs"] * per_epoch

    assert 0 <= known["warmup"] <= max(updates, 1) / 10
    assert known["warmup"] < known.get("max_steps", math.inf)


@given(facts=FACTS, factor=st.integers(2, 100))
def test_more_text_never_gets_a_smaller_model(facts, factor):
    """Nor smaller batches, more dropout, or more epochs."""
    more = replace(facts, pairs=facts.pairs * factor, tokens=facts.tokens * factor)
    large = replace(facts, memory_bytes=None), replace(more, memory_bytes=None)
    few, many = (chosen_settings(choose(one, {})) for one in large)

    for name in ("d_model", "ffn", "encoder_layers", "batch_tokens"):
        assert few[name] <= many[name]
    for name in ("dropout", "epochs", "lr"):
        assert few[name] >= many[name]


@given(characters=st.integers(1, 10**10), alphabet=st.integers(1, 20_000))
def test_a_vocabulary_holds_the_alphabet(characters, alphabet):
    """And all bytes; it is not larger than it has to be, and grows with the text."""
    size = text(characters=characters, alphabet=alphabet)["vocab_size"]

    assert size > alphabet + 256
    assert size <= max(32_000, 1.25 * (alphabet + 260)) + 100
    assert size <= text(characters=characters + 1000, alphabet=alphabet)["vocab_size"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"shared_vocab": True, "share": "all"}),
        ({"shared_vocab": False}, {"share": "decoder"}),
        ({"shared_vocab": True}, {"share": "all"}),
        ({"share": "none"}, {"shared_vocab": False}),
        ({"share": "all"}, {"shared_vocab": True}),
        ({"share": "all", "shared_vocab": True}, {}),
    ],
)
def test_sharing_follows_what_was_given(asked, expected):
    """All embeddings are one only where the vocabulary is."""
    asked = {**asked, "vocab_size": 500}
    chosen = chosen_settings(choose_vocabulary(TextFacts(characters=1, alphabet=1), asked))

    assert chosen == expected


def test_words_that_are_given_are_all_kept():
    """Text that is tokenised already has no number of subwords."""
    chosen = choose_vocabulary(TextFacts(characters=1, alphabet=1), {"tokenizer": "none"})

    assert "vocab_size" not in chosen_settings(chosen)


def test_a_small_gpu_gets_the_same_update_in_parts():
    """Smaller batches, and as many more of them in an update."""
    facts = replace(GPU, pairs=10**6, tokens=3 * 10**7)
    large = chosen_settings(choose(facts, {}))
    small = chosen_settings(choose(replace(facts, memory_bytes=12 * 2**30), {}))

    assert small["accumulate"] > 1
    assert small["batch_tokens"] * small["accumulate"] == pytest.approx(
        large["batch_tokens"], rel=0.1
    )


def test_a_cpu_ends_a_run_when_people_have_waited():
    """It makes fewer epochs than a GPU, by a schedule that ends with them."""
    cpu, gpu = (chosen_settings(choose(facts, {})) for facts in (CPU, GPU))

    assert cpu["epochs"] < gpu["epochs"]
    assert (cpu["schedule"], gpu["schedule"]) == ("cosine", "inverse-sqrt")


def test_who_asks_for_an_end_gets_it():
    """No patience ends the run before the epochs or updates that were given."""
    assert "patience" in chosen_settings(choose(GPU, {}))
    assert "patience" not in chosen_settings(choose(GPU, {"epochs": 50}))
    assert "patience" not in chosen_settings(choose(GPU, {"max_steps": 50}))


def test_few_pairs_have_more_patience():
    """A score on few pairs is luck to a good part."""
    few, many = (
        chosen_settings(choose(replace(GPU, pairs=pairs, tokens=12 * pairs), {}))
        for pairs in (500, 5000)
    )

    assert few["patience"] > many["patience"]


def test_long_epochs_are_validated_inside():
    """By updates; short ones only every so many."""
    long = chosen_settings(choose(replace(GPU, pairs=10**6, tokens=3 * 10**7), {}))

    assert int(long["validate_every"]) >= 100
    assert "val_interval" not in long
    assert chosen_settings(choose(GPU, {}))["val_interval"] > 1


def test_a_line_names_settings_values_and_reason():
    """As it is printed."""
    lines = [choice.line for choice in choose(GPU, {"epochs": 10, "batch_tokens": 3000})]

    assert "warmup 20: 10% of about 200 updates" in lines


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_steps": 150}, "10% of 150 updates"),
        ({"max_steps": 150, "epochs": 100}, "10% of 150 updates"),
        ({"max_steps": 10**6, "epochs": 10}, "10% of about 200 updates"),
        ({"max_time": "1h", "epochs": 10}, "10% of about 200 updates"),
    ],
)
def test_a_number_of_updates_that_is_estimated_is_told_as_such(given, told):
    """Only that of `max_steps` is known before the batches are made."""
    choices = choose(GPU, {"batch_tokens": 3000, **given})

    assert [one.reason for one in choices if "warmup" in one.settings] == [told]


def test_a_time_that_is_none():
    """Is named with its setting."""
    with pytest.raises(UserError, match=r"`max_time` must be a time such as 90s.*'soon'"):
        choose(GPU, {"max_time": "soon"})


def test_what_may_be_chosen_are_settings():
    """Of these names."""
    assert {item.name for item in fields(TrainConfig)} >= CHOSEN


@given(facts=FACTS, world=st.sampled_from([1, 2, 4, 8]))
def test_a_held_update_is_that_of_one_rank(facts, world):
    """In tokens: all ranks together take as many as one alone, but for what rounding adds."""
    held = replace(facts, world=world, holds_update=True)
    alone = chosen_settings(choose(replace(held, world=1), {}))
    several = chosen_settings(choose(held, {}))
    update = alone["batch_tokens"] * alone["accumulate"]

    assert several["batch_tokens"] * several["accumulate"] * world == pytest.approx(
        update, abs=world * several["accumulate"], rel=0.34
    )


@pytest.mark.parametrize(("world", "accumulate"), [(1, 8), (2, 4), (4, 2), (8, 1), (16, 1)])
@pytest.mark.parametrize("batch", [{"batch_tokens": 1024}, {"batch_size": 100}])
def test_a_held_update_of_batches_that_are_given(world, accumulate, batch):
    """They stay as they are; each rank takes as many as an update of that size needs."""
    facts = replace(GPU, pairs=51_200, tokens=524_288, world=world, holds_update=True)
    choices = choose(facts, batch)
    (choice,) = [choice for choice in choices if "accumulate" in choice.settings]

    assert choice.settings == {"accumulate": accumulate}
    assert f"{world} x {accumulate} batches" in choice.reason
    assert "8,192" in choice.reason


def test_a_larger_update_makes_fewer_of_them():
    """What counts updates follows the number of ranks, unless the update is held."""
    facts = replace(GPU, pairs=10**6, tokens=3 * 10**7)
    one, two = (chosen_settings(choose(replace(facts, world=n), {})) for n in (1, 2))

    assert two["batch_tokens"] == one["batch_tokens"]
    assert int(two["validate_every"]) == pytest.approx(int(one["validate_every"]) / 2, abs=1)


def test_text_that_is_too_long_to_train_on_decides_nothing(tmp_path):
    """One line of a whole book would make the vocabulary of a book, for few sentences."""
    rows = [f"a {n} b {n * n} c\tx {n} y {n * n} z" for n in range(100)]
    rows += [f"{n} {'qwertz ' * 20_000}\tx" for n in range(9)]
    sizes = []
    for name, lines in (("short.tsv", rows[:100]), ("long.tsv", rows)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        data = str(tmp_path / name)
        chosen = choose_run({"data": data, "columns": "en,de", "tgt": "de", "device": "cpu"})
        sizes.append(chosen.config.vocab_size)

    assert chosen.task.skipped_long > 0
    assert sizes[1] == pytest.approx(sizes[0], abs=100)
    assert "qwertz" not in chosen.task.vocabs.src.decode(list(range(sizes[1])))


def test_pairs_count_as_often_as_they_are_seen(tmp_path):
    """A small corpus of long sentences with a large weight makes more updates than its share of the text."""
    for name, rows in (("short", ["a b\tx y"] * 90), ("long", ["a b c d e f g h i j\tx"] * 10)):
        text = "".join(f"{n} {row}\n" for n, row in enumerate(rows))
        (tmp_path / f"{name}.tsv").write_text(text)
    data = f"{tmp_path}/short.tsv\n{tmp_path}/long.tsv"
    given = {"columns": "en,de", "tgt": "de", "device": "cpu", "d_model": 32, "data": data}
    warmups = [
        choose_run({**given, "weights": weights, "batch_tokens": 40, "epochs": 40}).config.warmup
        for weights in (None, "1,9")
    ]

    assert warmups[1] > 1.5 * warmups[0] > 0


@pytest.mark.parametrize(
    ("facts", "given", "patience"),
    [
        (CPU, {"max_time": "90s"}, 6),  # of 10 validations
        (GPU, {"max_steps": None}, 10),  # of 15
        (GPU, {"batch_tokens": 200}, 10),  # of 25
    ],
)
def test_few_pairs_leave_validations_after_their_patience(facts, given, patience):
    """It can end a run: no more than two thirds of the validations that are planned."""
    few = replace(facts, pairs=1_500, tokens=18_000)

    assert chosen_settings(choose(few, given))["patience"] == patience


@pytest.mark.parametrize(
    "name", ["max_steps", "accumulate", "batch_size", "batch_tokens", "heads", "d_model"]
)
@pytest.mark.parametrize("value", [0, -4])
def test_a_number_that_is_too_small_is_refused_by_its_name(name, value):
    """Not by that of a setting which follows from it."""
    with pytest.raises(UserError, match=rf"`{name}` must be at least \d, but is {value}"):
        choose_run({"data": "anywhere.tsv", name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("tags", "<2de> <2fr>"), ("columns", "en"), ("filter_length", "9:2")]
)
def test_a_list_of_names_is_refused_before_the_text_is_read(name, value):
    """That may take an hour."""
    with pytest.raises(DataError, match=rf"`{name}` must be .*, but is {value!r}"):
        choose_run({"data": "anywhere.tsv", name: value})


@pytest.mark.parametrize("steps", [1, 2, 5, 60])
def test_the_reason_for_validations_counts_those_that_come(steps):
    """Not more than there are updates."""
    choices = choose(CPU, {"max_steps": steps})
    reason = next(one.reason for one in choices if "val" in " ".join(one.settings))
    count = int(re.search(r"about (\d+) validation", reason)[1])

    assert 1 <= count <= steps
