"""Mends in a script's own names are run: the same weights and the same log, healthy and with a NaN batch."""

from __future__ import annotations

import logging
import re
import textwrap

import pytest
import torch

from gapless.doctor.static.look import findings_of


SCRIPT = """\
import logging
import gapless
import torch
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = torch.nn.Linear(4, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.randn(12, 4)
if is_bad:
    rows[5] = float("nan")
train_rows = torch.utils.data.DataLoader(rows, batch_size=3{options})
log, epoch_total, results, names = [], 0.0, [], [0.5, 0.25, 1.0]
logger = logging.getLogger("own mends")
for {head}:
    {before}
    loss = F.mse_loss(model(part), torch.ones(len(part), 2, device=device))
    {inside}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
{after}
weights = [one.detach().clone() for one in model.parameters()]
"""
HEAD = "part in train_rows"
MOVES = "part = part.to(device)"
# What stands in the loop, and the marked line.
CASES = {
    "a sum": {
        "inside": "epoch_total += loss.item()",
        "after": "log.append(float(epoch_total) / 4)",
    },
    "a weighted sum": {
        "inside": "epoch_total += loss.item() * len(part)",
        "after": "log.append(float(epoch_total) / 12)",
    },
    "numbers that a list is longer by": {
        "inside": "results += [loss.item()]",
        "after": "log += results",
    },
    "results of a list": {
        "inside": "results.extend(model(part).argmax(1).tolist())",
        "after": "log += [results]",
    },
    "results one after the other": {
        "inside": "results.append(model(part).detach().cpu())",
        "after": "log += torch.as_tensor(results if torch.is_tensor(results) else torch.cat(results))",
    },
    "weights made here": {
        "inside": "loss = loss * torch.ones(2, 2).to(device).mean()",
        "after": "log.append(loss.detach())",
    },
    "places made here": {
        "inside": "log.append(torch.arange(part.size(1)).to(device))",
        "after": "",
    },
    "a list made a tensor": {
        "inside": "log.append(torch.tensor(names).to(device))",
        "after": "",
    },
    "numbers of a list": {
        "inside": "results.append(loss.item())",
        "after": "log += results",
    },
    "numbers made here, rounded and of another shape": {
        "inside": "log.append(torch.full((2, 2), 2.5).long().unsqueeze(0).to(device))",
        "after": "",
    },
    "numbers made here, rounded by the copy": {
        "inside": "log.append(torch.full((2, 2), 2.5).to(device, torch.long))",
        "inner": "torch.full((2, 2), 2.5).to(device, torch.long)",
        "after": "",
    },
    "batches that are numbered": {
        "head": "number, part in enumerate(train_rows)",
        "before": MOVES,
        "after": "log += [loss.detach(), number]",
    },
    "batches that are page-locked, and cast": {
        "inside": "log.append(part.half().to(device))",
        "before": "pass",
        "inner": "part.half().to(device)",
        "after": "",
        "options": ", pin_memory=torch.cuda.is_available()",
    },
    "a distribution": {
        "inside": "log.append(torch.distributions.Poisson(model(part).nan_to_num().square()).mean)",
        "inner": "torch.distributions.Poisson(model(part).nan_to_num().square())",
        "after": "",
    },
    "batches of a loader": {"before": MOVES, "after": "log.append(loss.detach())"},
    "batches that are page-locked": {
        "before": MOVES,
        "inner": "part.to(device)",
        "after": "log.append(loss.detach())",
        "options": ", pin_memory=torch.cuda.is_available()",
    },
    "a text of a logger": {
        "inside": "logger.debug(f'{loss.item()}')",
        "after": "",
    },
}


def source_of(case):
    parts = {"head": HEAD, "before": MOVES, "inside": "pass", "after": "", "options": ""} | case
    return SCRIPT.format(**parts)


def mended(source, case):
    """Return the script with the mend of its line: code up to `...` in its place, the rest behind the loop."""
    line = case.get("marked", case.get("inside", case.get("before")))
    number = next(n for n, one in enumerate(source.splitlines(), 1) if one.strip() == line)
    mend = next(one.mend for one in findings_of(source, "s.py") if one.site.line == number)
    _, _, code = mend.partition("\n")
    here, _, behind = code.partition("...")
    here = "\n".join(one.partition("  #")[0] for one in here.strip().splitlines())
    behind = "\n".join(behind.strip().splitlines()[1:])
    if here.startswith("for "):  # another head of the loop, and no copy in it
        return source.replace(f"for {case.get('head', HEAD)}:", here).replace(line, "pass")
    inner = case.get("inner")
    if inner or not here.startswith(re.match(r"\w+", line).group()):
        here = line.replace(inner or inner_of(line), here)
    after = case["after"]
    if behind.endswith(".item()"):
        behind = ""
    return source.replace(line, textwrap.indent(here, "    ").strip()).replace(
        after or "\n\n\n", f"{behind}\n{after}"
    )


def inner_of(line):
    """Return the expression of a line that is mended: what is made and then moved."""
    start = line.index("torch.")
    return line[start : line.index(".to(device)") + len(".to(device)")]


def run(source, *, is_bad):
    names = {"is_bad": is_bad}
    exec(compile(source, "s.py", "exec"), names)
    return names["weights"], names["log"]


def same(one, other):
    one, other = (torch.as_tensor(value, dtype=torch.float64) for value in (one, other))
    return torch.equal(one.nan_to_num(7e77), other.nan_to_num(7e77))


@pytest.mark.parametrize("is_bad", [False, True], ids=["healthy", "nan"])
@pytest.mark.parametrize("name", CASES)
def test_a_mend_computes_the_same(name, is_bad):
    """Bit for bit, and with a NaN batch the same end."""
    case = CASES[name]
    source = source_of(case)
    with_mend = mended(source, case)

    weights, log = run(source, is_bad=is_bad)
    weights_too, log_too = run(with_mend, is_bad=is_bad)

    assert with_mend != source
    assert all(map(same, weights, weights_too))
    assert len(log) == len(log_too)
    for one, other in zip(log, log_too, strict=True):
        assert same(one, other) or abs(float(one) - float(other)) <= 1e-6
    assert any(one.isnan().any() for one in weights) == is_bad


def test_a_logger_whose_level_is_off_reads_nothing():
    """The argument of a message is formatted only if it is written."""
    source = source_of(CASES["a text of a logger"])
    logging.getLogger("own mends").setLevel(logging.ERROR)

    (mend,) = [one.mend for one in findings_of(source, "s.py") if "logger" in one.site.source]

    assert "%s" in mend
    assert "logger.debug" in mend


KEPT_APART = {
    "the environment needs it": (
        "action = model(part).argmax(1)\n    seen = env.step(action.cpu().numpy())",
        "needs this value",
    ),
    "a bound of a slice": (
        "most = int((part > 0).sum())\n    part = part[:most]",
        "on the host as well",
    ),
    "an early stop": ("if loss > 9:\n        break", "every few steps"),
}


@pytest.mark.parametrize("name", KEPT_APART)
def test_what_the_host_needs_is_not_deferred(name):
    """No sum and no late read is advised where the loop goes on with the value."""
    code, says = KEPT_APART[name]
    source = source_of({"inside": code})

    mends = [one.mend for one in findings_of(source, "s.py") if one.code in ("GAP001", "GAP003")]

    assert mends
    assert all(says in one for one in mends)
    assert not any("DeferredLoss" in one or "torch.where" in one for one in mends)
