"""Scripts that do with late numbers what nobody expects: they end and print as they are written."""

from __future__ import annotations

from pathlib import Path

import pytest


RUNNER = Path(__file__).with_name("late_script.py")

LOSSES = """
import torch
losses = [torch.tensor(1.0 / (step + 1)) for step in range(6)]
"""

SCRIPTS = {
    "a_copy_is_changed_in_place": """
for loss in losses:
    kept = (loss * 1).cpu()
    same = kept.add_(1) is kept
    kept.mul_(3)
    print(same, kept.item(), float(kept), kept.tolist(), kept)
    kept[...] = 7
    kept += 1
    print(kept.item())
    other = (loss * 1).cpu()
    other.numpy()[...] = 5
    print(other.item(), f"{other:.2f}", int(other))
    torch.add(loss, 1, out=other)
    print(other.item())
""",
    "the_form_of_a_copy_is_changed": """
for loss in losses:
    kept = (loss * 1).cpu()
    kept.unsqueeze_(0)
    print(kept.shape, kept.tolist(), kept.dim(), kept.item())
    weight = (loss * 1).cpu().requires_grad_()
    (weight * 2).backward()
    print(weight.grad, weight.requires_grad)
    other = (loss * 1).cpu()
    other.data = torch.ones(2)
    print(other.tolist(), other.shape)
""",
    "numbers_outlive_the_variant": """
import json, statistics
class Slots:
    __slots__ = ("loss", "__own")
    def __init__(self, loss):
        self.loss = self.__own = loss
    def both(self):
        return [self.loss, self.__own]
def train():
    best = losses[-1].item()
    yield
    kept = Slots(losses[0].item()), {losses[1].item()}, (losses[2].item(),)
    yield
    print(json.dumps({"best": best, "kept": kept[2]}), torch.tensor(best), torch.as_tensor([best]))
    print(torch.ones(1).new_tensor(best), statistics.mean([best, *kept[2], *kept[1]]))
    print(json.dumps(kept[0].both()), type(kept[0].loss).__name__)
going = train()
next(going), next(going)
def afterwards():
    list(going)
""",
    "a_checkpoint_is_loaded": """
import collections, io, pickle
for loss in losses:
    state = collections.OrderedDict(loss=loss.item(), all=[loss.item(), (loss.item(), 1)], copy=loss.cpu())
    same = state["all"]
    file = io.BytesIO()
    torch.save({"state": state}, file)
    file.seek(0)
    print(torch.load(file, weights_only=True))
    print(len(pickle.dumps(state["loss"])), pickle.loads(pickle.dumps(state)), state["all"] is same)
""",
    "a_record_has_too_few_arguments": """
import logging
logging.basicConfig(format="%(message)s")
logging.raiseExceptions = False
for loss in losses:
    logging.warning("bad %d %d", loss.item())
    logging.warning("good %.3f", loss.item())
print("end")
""",
    "letters_that_the_output_has_not": """
for loss in losses:
    try:
        print(f"\\xe9 {loss.item():.3f}")
    except UnicodeEncodeError as error:
        print("caught", error.reason, loss.item())
""",
    "it_leaves_at_once": """
import os
for loss in losses:
    print(f"{loss.item():.3f}", flush=True)
os._exit(3)
""",
    "it_becomes_another_program": """
import os, sys
for loss in losses:
    print(f"{loss.item():.3f}", flush=True)
os.execv(sys.executable, [sys.executable, "-S", "-c", "print('other')"])
""",
    "it_writes_past_the_streams": """
import os, sys, tempfile
for loss in losses:
    print(f"{loss.item():.3f}", flush=True)
    os.write(1, b"past\\n")
with tempfile.TemporaryFile() as file:
    kept = os.dup(1)
    print(f"before {losses[0].item():.3f}", flush=True)
    os.dup2(file.fileno(), 1)
    print(f"within {losses[1].item():.3f}", flush=True)
    os.dup2(kept, 1)
    file.seek(0)
    print(file.read())
""",
    "it_counts_what_it_writes": """
import sys
for loss in losses:
    count = sys.stdout.write(f"{loss.item():.4f}\\n")
    print(count)
""",
    "it_seeds_by_a_number": """
for loss in losses:
    torch.manual_seed((loss * 100).long().item())
    print(torch.rand(1))
""",
}


def run(launcher, tmp_path, way, name):
    """Return the exit code and all that was written, of both outputs."""
    script = tmp_path / f"{name}.py"
    script.write_text(LOSSES + SCRIPTS[name], encoding="utf-8")
    with (tmp_path / way).open("wb") as file:
        done = launcher.run(
            *(RUNNER, way, script),
            folder=tmp_path,
            module="faults.as_python",
            stdout=file,
            stderr=file,
            PYTHONIOENCODING="ascii",
        )
    return done.code, (tmp_path / way).read_bytes()


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_and_ends_as_it_is_written(launcher, tmp_path, name):
    """The same bytes and the same exit code."""
    assert run(launcher, tmp_path, "late", name) == run(launcher, tmp_path, "written", name)
