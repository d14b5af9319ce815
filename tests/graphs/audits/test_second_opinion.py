"""TorchDynamo as a second opinion: what it sees of a step and gapless does not is known, and settled."""

from __future__ import annotations

import re
import warnings

import pytest
import torch

from gapless.compare.second_opinion import second_opinion
from gapless.device.find import find_device
from graphs.audits.channels import CHANNELS
from graphs.audits.footgun_classes import FOOTGUNS
from graphs.audits.footguns import Training
from graphs.audits.harness import AUDITED, NEVER, Place, batch, run, values, verdict
from graphs.audits.opinions import (
    MISSED_BY_DYNAMO,
    MISSED_BY_GAPLESS,
    NO_OPINION,
    ONLY_DYNAMO,
)


CALLS, AT = 16, 10
each_channel = pytest.mark.parametrize("channel", CHANNELS, ids=str)


def footgun_step(footgun):
    """Return a function that sets up the step of a footgun."""

    def set_up(place):
        training = Training(footgun, place)
        return lambda x: training.train_step(x), None

    return set_up


STEPS = {
    **{channel.name: channel.set_up for channel in CHANNELS},
    **{footgun.name: footgun_step(footgun) for footgun in FOOTGUNS},
}


def opinion_on(set_up, folder):
    device = find_device("cpu")
    with Place(folder, device=device) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step, _ = set_up(place)
        return second_opinion(step, batch(place, 0), device=device)


def without_frame(name):
    """Return `net.log` of `L['self'].net.log`: by which variable it is reached depends on the frame."""
    return re.sub(r"^[LG]\['(\w+)'\]", r"\1", name)


def results_on_the_cpu(channel, folder, *, prepared=lambda step: step):
    """Return the results of a channel's loop on the CPU."""
    found = []
    with Place(folder, device=find_device("cpu")) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        as_written, change = channel.set_up(place)
        step = prepared(as_written)
        for number in range(CALLS):
            if number == AT:
                change()
            found.append(values(step(batch(place, number))))
    return found


def results_of_dynamo(channel, folder):
    """Return the same under TorchDynamo."""
    torch.compiler.reset()
    try:
        return results_on_the_cpu(
            channel, folder, prepared=lambda step: torch.compile(step, backend="eager")
        )
    finally:
        torch.compiler.reset()


def test_the_lists_name_steps_that_there_are():
    """A difference of a step that is gone is no difference."""
    channels = {channel.name for channel in CHANNELS}

    assert set(ONLY_DYNAMO) <= set(STEPS)
    assert channels >= MISSED_BY_DYNAMO | MISSED_BY_GAPLESS | NO_OPINION


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_what_torchdynamo_alone_names_is_settled(name, tmp_path):
    """A read or write that gapless neither compares nor sees, and that is not in the list, is a bug."""
    opinion = opinion_on(STEPS[name], tmp_path)
    alone = {*opinion.only_dynamo, *opinion.written_only_by_dynamo}

    assert {without_frame(one) for one in alone} <= set(ONLY_DYNAMO.get(name, {}))
    # What our own code raises comes as a failure of torch's.
    assert not [failure for failure in opinion.failures if "BackendCompilerFailed" in failure]


@pytest.mark.slow
@each_channel
def test_who_misses_a_change_is_known(channel, tmp_path):
    """What guards of gapless miss is told by audits, whether TorchDynamo sees it or not."""
    plain = run(channel, tmp_path, calls=CALLS, at=AT)
    alone = run(channel, tmp_path, calls=CALLS, at=AT, options={"audit_every": NEVER})
    is_missed = bool(alone.differs_from(plain))

    assert is_missed == (channel.name in MISSED_BY_GAPLESS)
    if is_missed:
        audited = run(channel, tmp_path, calls=CALLS, at=AT, options={"audit_every": 1})
        assert verdict(audited, plain) == AUDITED
    if channel.name not in NO_OPINION:
        follows = results_of_dynamo(channel, tmp_path) == results_on_the_cpu(channel, tmp_path)
        assert follows == (channel.name not in MISSED_BY_DYNAMO)
