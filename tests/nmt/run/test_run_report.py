"""What a run says about itself, and how long it still takes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gapless.nmt.data.corpus import Corpus
from gapless.nmt.data.sentences import Pairs
from gapless.nmt.run import run_report
from gapless.nmt.run.run_report import TimeEstimate, describe_data, describe_plan, plan_settings
from gapless.nmt.settings.config import make_config
from gapless.nmt.settings.effective_settings import resolve
from gapless.plans import PLANS, get_plan


@pytest.mark.parametrize(
    ("is_accelerator", "pin_memory", "staging"),
    [(True, True, "pinned"), (True, False, "pageable"), (False, True, "pageable")],
)
def test_staging_is_named_as_it_is(is_accelerator, pin_memory, staging):
    """A CPU has no memory to pin for, whatever the plan asks for."""
    device = SimpleNamespace(
        is_accelerator=is_accelerator, torch_device="here", describe=lambda: "a device"
    )
    effective = resolve(make_config({"pin_memory": pin_memory}), is_accelerator=is_accelerator)

    text = describe_plan(effective, device=device, workers=3)

    assert f"3 workers, {staging} staging" in text


@pytest.mark.parametrize("is_accelerator", [True, False])
def test_a_plan_that_captures_says_that_a_cpu_has_no_graphs(is_accelerator):
    device = SimpleNamespace(is_accelerator=is_accelerator)
    effective = resolve(make_config({"plan": "captured"}), is_accelerator=is_accelerator)

    text = describe_plan(effective, device=device, workers=0)

    assert ("no CUDA graphs" in text) is not is_accelerator


@pytest.mark.parametrize("name", PLANS)
def test_plan_settings_keep_their_keys(name):
    """`summary.json` describes a plan with these keys, in this order."""
    plan = get_plan(name)
    found = plan_settings(plan)

    assert list(found) == [
        *("name", "summary", "streams", "wait_with", "sync_interval", "loss_interval"),
        *("prefetch", "workers", "pin_memory", "run_ahead", "capture", "auto"),
    ]
    assert found["name"] == name
    assert (found["capture"], found["auto"]) == (name == "captured", name == "auto")


@pytest.mark.parametrize(("different", "is_told"), [(9, True), (10, False)])
def test_sentences_that_come_again_are_few(different, is_told):
    """A score of one sentence fifty times is a score of one sentence."""
    many = Pairs(src=[f"a{n % different}" for n in range(50)], tgt=["b"] * 50)
    corpus = Corpus(train=many, val=many, test=many)
    task = SimpleNamespace(corpus=corpus, train=many, val=many, skipped_long=0)

    text = describe_data(make_config({"data": "d"}), task)

    assert ("too few for scores to mean much" in text) == is_told


@pytest.mark.parametrize(
    ("kept", "told"), [(12, "12 validation,"), (9, "(3 too long for its loss),")]
)
def test_validation_pairs_without_a_loss_are_counted(kept, told):
    """They are translated and scored all the same."""
    pairs = Pairs(src=[f"a{n}" for n in range(12)], tgt=["b"] * 12)
    corpus = Corpus(train=pairs, val=pairs, test=pairs)
    val = pairs.take(range(kept))
    task = SimpleNamespace(corpus=corpus, train=pairs, val=val, skipped_long=0)

    assert told in describe_data(make_config({"data": "d"}), task)


# --- how long it still takes ---


@pytest.fixture
def run(monkeypatch):
    """A run of 100 updates that was resumed and has made its next, and a clock that a test sets."""
    made = SimpleNamespace(
        now=1000.0,
        total_updates=100,
        step=SimpleNamespace(num_updates=20, learning_rate=lambda: 0.5),
        time_limit=SimpleNamespace(seconds_left=None),
    )
    monkeypatch.setattr(run_report, "perf_counter", lambda: made.now)
    return made


def test_the_pace_is_that_of_this_process(run):
    """From its second update on: the first one compiles and captures."""
    estimate = TimeEstimate(run)
    first = estimate.progress().seconds_left
    run.now, run.step.num_updates = 1010.0, 25
    found = estimate.progress()

    assert first is None
    assert (found.num_updates, found.total_updates, found.learning_rate) == (25, 100, 0.5)
    assert found.seconds_left == pytest.approx(10.0 / 5 * 75)


def test_a_limit_of_time_ends_a_run_earlier(run):
    """It is known before the first update, too."""
    run.time_limit.seconds_left = 30.0
    estimate = TimeEstimate(run)
    first = estimate.progress().seconds_left
    run.now, run.step.num_updates = 1100.0, 30

    assert (first, estimate.progress().seconds_left) == (30.0, 30.0)
    run.time_limit.seconds_left = 3000.0
    assert estimate.progress().seconds_left == pytest.approx(700.0)
