"""What a run says of itself before it starts is true."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from gapless.nmt.run.config import make_config
from gapless.nmt.run.observer import describe_run


@pytest.fixture
def task():
    corpus = SimpleNamespace(val=[1], test=[1, 2])
    return SimpleNamespace(train=[1, 2, 3], corpus=corpus, skipped_long=0)


@pytest.mark.parametrize(
    ("is_accelerator", "pin_memory", "staging"),
    [(True, True, "pinned"), (True, False, "pageable"), (False, True, "pageable")],
)
def test_staging_is_named_as_it_is(task, is_accelerator, pin_memory, staging):
    """A CPU has no memory to pin for, whatever the plan asks for."""
    config = make_config({})
    device = SimpleNamespace(
        is_accelerator=is_accelerator, torch_device="here", describe=lambda: "a device"
    )
    plan = replace(config.resolved_plan(), pin_memory=pin_memory)

    facts = describe_run(config, task, device=device, plan=plan, workers=3)

    assert f"3 workers, {staging} staging" in facts["plan"]
