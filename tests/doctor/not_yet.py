"""Cases that fail today, and what was seen: whoever mends one deletes its row."""

from __future__ import annotations

import pytest


NOT_YET = {
    "text: in_an_object": 'nothing at `text = f"{state.step}: {state.loss:.3f}"`',
    "constructor: mask_of_a_method": "nothing at `return (ids != 0) & later(ids.size(-1)).type_as(ids)`",
    "distribution: subclass": "nothing at `self.base = pyd.Normal(mean, std)`; nothing at `chance = moves.log_prob(x.tanh())`",
    "loader: device_of_options": "nothing at `return labels.to(self.options.device)`",
    "sure: branch_of_the_host": "GAP004 maybe at `return batch.to(device)`",
    "host: tokens": 'GAP001 maybe at `longest = words["attention_mask"].sum(1).max().item()`; GAP003 maybe at `ids = words["input_ids"].tolist()`',
    "host: checkpoint": "GAP001 maybe at `print(name, value.item())`",
    "host: prepared": "GAP004 maybe at `loss = model(batch.to(accelerator.device)).mean()`",
    "host: prepared_in_a_class": "GAP004 maybe at `batch = next(self.loader).to(device)`",
}


def marked(name: str) -> pytest.MarkDecorator:
    """Return the mark of a test by the name of its row."""
    return pytest.mark.xfail(name in NOT_YET, reason=NOT_YET.get(name, ""), strict=True)


def params(cases: dict) -> list:
    """Return a parameter for each named case, those that fail today marked so."""
    return [pytest.param(case, id=name, marks=[marked(name)]) for name, case in cases.items()]
