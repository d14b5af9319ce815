"""`gapless verify`, as a user runs it on a file of theirs and on the demo."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
import torch

from gapless.compare.workload import Workload
from gapless.errors import UserError
from gapless.plans import PLANS


# A regression on twelve batches; `breaks` says what goes wrong after which step.
FILE = """
import random
import sys
from types import MappingProxyType
import torch
import gapless

RUNS = []


def plan_of_run():
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "run_plan":
        frame = frame.f_back
    return None if frame is None else frame.f_locals["plan"]


class Batches:
    def __iter__(self):
        for n in range(12):
            yield {"x": torch.full((4, 8), float(n % 5 + 1)), "n": n}


def make(device=None, breaks=None, batches=None):
    RUNS.append(None)
    model = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = Batches() if batches is None else batches
    plan = plan_of_run()
    done = 0

    def step(batch):
        nonlocal done
        done += 1
        loss = model(batch["x"]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if breaks is not None:
            out = breaks(model, done, plan)
            loss = loss if out is None else loss.detach() * out
        return loss

    return gapless.Workload(model=model, optimizer=optimizer, batches=batches, step=step)


def by_plan(device):
    def breaks(model, done, plan):
        if done == 3 and plan == "gapless":
            model[1].weight.data[0, 2:4] += torch.tensor([0.5, 0.25])
    return make(device, breaks)


def by_chance(device):
    def breaks(model, done, plan):
        if done == 4:
            model[1].bias.data += random.SystemRandom().random()
    return make(device, breaks)


def by_run(device):
    def breaks(model, done, plan):
        if done == 2 and len(RUNS) == 4:
            model[1].bias.data += 1.0
    return make(device, breaks)


def slightly(device):
    return make(device, lambda model, done, plan: 1.001 if done > 5 and plan == "gapless" else None)


def fails(device):
    def breaks(model, done, plan):
        open("/absent/file")
    return make(device, breaks)


def nan_batches(device):
    return make(device, batches=BatchesOf(float("nan")))


class BatchesOf(Batches):
    def __init__(self, value):
        self.value = value

    def __iter__(self):
        for batch in super().__iter__():
            late = batch["n"] >= 3
            yield {"x": torch.full((4, 8), self.value)} if late else batch


def scatters(device):
    def breaks(model, done, plan):
        torch.zeros(4).put_(torch.tensor([1]), torch.tensor([2.0]))
    return make(device, breaks)


def generator():
    return gapless.Workload(
        model=torch.nn.Linear(1, 1), optimizer=make().optimizer, batches=iter([1]), step=len
    )


def one_batch_left():
    class Once:
        batches = iter(Batches())

        def __iter__(self):
            return iter(list(self.batches))

    return make(batches=Once())


def read_only():
    return make(batches=[MappingProxyType(batch) for batch in Batches()])


def no_batches():
    return make(batches=[])


def no_loss():
    workload = make()
    def step(batch):
        workload.step(batch)
    return gapless.Workload(
        model=workload.model, optimizer=workload.optimizer, batches=Batches(), step=step
    )


def leaves():
    workload = make()
    def step(batch):
        raise SystemExit(0)
    return gapless.Workload(
        model=workload.model, optimizer=workload.optimizer, batches=Batches(), step=step
    )


def without_optimizer():
    workload = make()
    return gapless.Workload(model=workload.model, batches=Batches(), step=workload.step)


def with_arguments(rate, device, size=3, *, decay):
    return make()


def nothing():
    pass


number = 3
"""


@pytest.fixture
def verify(gapless, monkeypatch, tmp_path):
    """Run the command on the CPU in a folder that holds the file above as w.py."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    Path("w.py").write_text(FILE)

    def call(*arguments):
        return gapless("verify", "--device", "cpu", *arguments)

    yield call
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and tmp_path in (tmp_path / file).parents:
            del sys.modules[name]


def test_the_demo_is_identical_under_the_plan(process, terminal, tmp_path):
    """A real process trains the demo's model four times and says what it saw, bar or no bar."""
    screen, read = terminal
    done = process("verify", "--device", "cpu", "--steps", "2", stderr=screen)
    bar = read()

    assert done.returncode == 0, bar
    lines = done.stdout.splitlines()
    assert lines[0].startswith("workload  model of gapless train on the embedded corpus, dropout")
    assert lines[1].startswith("plans     gapless against a plain loop and blocking, determ")
    assert lines[3] == "steps     2, seed 1"
    assert [line.partition(" (2 losses, ")[0] for line in lines[4:8]] == [
        "a plain loop against itself: bit-identical",
        "blocking against a plain loop: bit-identical",
        "gapless against a plain loop: bit-identical",
        "gapless against blocking: bit-identical",
    ]
    assert lines[8] == "host waits: blocking 4 (batch 2, loss_read 2); gapless 1 (epoch_end 1)"
    assert len(lines) == 9
    # On the terminal behind standard error, and there alone.
    assert "a plain loop, first run" in bar
    assert "| 1/2 [" in bar
    assert list(tmp_path.iterdir()) == []


def test_the_files_workload_is_identical(verify):
    """A workload in a file is verified, and its twelve batches are passed twice for twenty steps."""
    outcome = verify("interval", "--steps", "20", "--workload", "w.py:make")

    assert (outcome.code, outcome.err, outcome.new_files) == (0, "", [])
    assert "a plain loop, first run  1/20\n" in outcome.progress
    assert "workload  w.py:make" in outcome.out
    assert "a plain loop against itself: bit-identical (20 losses, 11 tensors x 20 steps)" in (
        outcome.out
    )
    assert "interval against a plain loop: bit-identical" in outcome.out
    assert "interval against blocking: bit-identical" in outcome.out
    assert "batches: 2 passes over 12 for 20 steps" in outcome.out
    assert "host waits: blocking 40 (batch 20, loss_read 20); interval 4 (" in outcome.out


def test_a_plan_that_replayed_nothing_is_told_so(verify):
    """On a CPU nothing is captured, so equal bits say nothing of graphs: exit code 3."""
    outcome = verify("captured", "--steps", "6", "--workload", "w.py:make")

    assert (outcome.code, outcome.err) == (3, "")
    assert outcome.out.splitlines()[-1] == (
        "captured: nothing was verified: no step ran as a graph: a CPU runs its work itself, "
        "there is nothing to launch"
    )


@pytest.mark.slow
def test_a_second_opinion_adds_a_few_lines(verify):
    """On a step of a workload of its own, with the exit code as it is without."""
    outcome = verify("captured", "--steps", "2", "--workload", "w.py:make", "--second-opinion")
    *_, head, reads, others, writes, stopped = outcome.out.splitlines()

    assert (outcome.code, outcome.err) == (3, "")
    assert head == "second opinion: TorchDynamo on one step"
    assert re.match(r"  reads: \d\d named by both, \d+ only by gapless, 0 only by Torch", reads)
    assert re.search(r"\d+ of optimizers and gradients by themselves, \d+ of libraries", others)
    # It counts its calls.
    assert writes == "  writes: gapless saw 1, 0 only by TorchDynamo"
    assert "backward" in stopped


def test_a_difference_counts_more_than_that_nothing_was_replayed(verify):
    """A workload that is not reproducible is so under any plan: exit code 1."""
    assert verify("captured", "--steps", "10", "--workload", "w.py:by_chance").code == 1


def test_a_broken_plan_is_told_with_step_tensor_and_size(verify):
    """A plan that changes two of eight weights after step 3 is told so; the exit code is 1."""
    outcome = verify("--steps", "10", "--workload", "w.py:by_plan")

    assert (outcome.code, outcome.err) == (1, "")
    assert "a plain loop against itself: bit-identical" in outcome.out
    assert "blocking against a plain loop: bit-identical" in outcome.out
    assert "gapless against a plain loop: different, from step 3 on\n" in outcome.out
    assert "gapless against blocking: different, from step 3 on\n" in outcome.out
    assert "  parameter 1.weight: 2 of 8 elements differ, by at most 0.5\n" in outcome.out
    assert "  1 of 11 tensors differ after step 3\n" in outcome.out
    assert "  first loss that differs, step 4: " in outcome.out
    assert "did not occur again" not in outcome.out


def test_a_workload_that_is_not_reproducible_is_told_so(verify):
    """Where the workload does not equal itself the plan is not run, and advice is given."""
    outcome = verify("--steps", "10", "--workload", "w.py:by_chance")

    assert outcome.code == 1
    assert "a plain loop against itself: not reproducible, from step 4 on" in outcome.out
    assert "  parameter 1.bias: 1 of 1 elements differ, by at most " in outcome.out
    assert "random numbers that are not seeded" in outcome.out
    assert "tolerance" in outcome.out
    assert "gapless against" not in outcome.out.partition("itself:")[2]
    assert "host waits" not in outcome.out


def test_a_difference_that_does_not_come_back_points_at_a_race(verify):
    """A difference that does not come back is called a race, and its size stays unknown."""
    outcome = verify("--steps", "10", "--workload", "w.py:by_run")

    assert outcome.code == 1
    assert "different, from step 2 on\n  parameter 1.bias: differed, but not when" in outcome.out
    assert "did not occur again when both were run again. This points at a race" in outcome.out


@pytest.mark.parametrize(("tolerance", "code"), [("1e-2", 0), ("1e-4", 1)])
def test_a_tolerance_lets_small_differences_through(verify, tolerance, code):
    """Losses that are 0.1 % off are within a tolerance of 1 % and outside one of 0.01 %."""
    outcome = verify("--steps", "10", "--workload", "w.py:slightly", "--tolerance", tolerance)

    assert outcome.code == code
    assert (
        f"plans     gapless against a plain loop and blocking, tolerance {float(tolerance):g}"
        in outcome.out
    )
    if code:
        assert (
            "gapless against blocking: outside the tolerance 0.0001, from step 6 on" in outcome.out
        )
        assert "  0 of 11 tensors are outside at the end" in outcome.out
    else:
        assert (
            "gapless against blocking: within the tolerance 0.01; losses differ by at most 0.000999"
        ) in outcome.out


def test_a_workload_beyond_the_tolerance_by_itself_is_told_so(verify):
    """A workload outside the tolerance by itself is told so, and the plan is not blamed."""
    outcome = verify("--workload", "w.py:by_chance", "--tolerance", "1e-9")

    assert outcome.code == 1
    assert "itself: not reproducible within the tolerance 1e-09, from step 5 on" in outcome.out
    assert "random numbers that are not seeded" in outcome.out
    assert "gapless against" not in outcome.out.partition("itself:")[2]
    assert "host waits" not in outcome.out


@pytest.mark.parametrize("bound", [[], ["--tolerance", "1e-2"]])
def test_equal_bits_of_nan_prove_nothing(verify, bound):
    """Equal bits of NaN prove nothing: the step is named and the exit code is 1."""
    outcome = verify("--steps", "10", "--workload", "w.py:nan_batches", *bound)

    assert (outcome.code, outcome.err) == (1, "")
    assert "bit-identical" not in outcome.out
    assert "itself: inconclusive: no difference, but the loss of step 4 is nan\n" in outcome.out
    assert "ask for 3 instead" in outcome.out
    assert "gapless against" not in outcome.out.partition("itself:")[2]
    assert "host waits" not in outcome.out
    # What it advises.
    assert verify("--steps", "3", "--workload", "w.py:nan_batches", *bound).code == 0


def test_what_the_step_raises_reaches_the_user(process, tmp_path):
    """What a workload's step raises is printed with its traceback, also an OSError."""
    (tmp_path / "w.py").write_text(FILE)

    done = process("verify", "--device", "cpu", "--workload", "w.py:fails")

    assert done.returncode == 1
    assert 'w.py", line ' in done.stderr
    assert done.stderr.rstrip().endswith("No such file or directory: '/absent/file'")


def test_output_without_a_reader_is_no_error_of_the_workload(gapless, verify, monkeypatch):
    """A reader that goes away, as `head` does, ends the command in silence with exit code 1."""

    class Left(io.StringIO):
        def write(self, text):
            if "against itself" in text:
                raise BrokenPipeError
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", Left())
    outcome = verify("--steps", "2", "--workload", "w.py:make")

    assert (outcome.code, outcome.err) == (1, "")


def test_a_refused_algorithm_says_who_refused_it(verify):
    """Torch's error about determinism comes with a note on what switched determinism on."""
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic") as caught:
        verify("--workload", "w.py:scatters")

    assert ["with a --tolerance" in note for note in caught.value.__notes__] == [True]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["fast"], ["PLAN", "'fast'", *PLANS]),
        (["--against", "slow"], ["--against", "'slow'", *PLANS]),
        (["--steps", "0"], ["steps must be at least 1, but is 0"]),
        (["--steps", "some"], ["--steps", "'some'"]),
        (["--seed", "-1"], ["seed must be 0 to", "but is -1"]),
        (["--tolerance", "-1"], ["tolerance must be a finite number of 0 or more, but is -1.0"]),
        (["--tolerance", "nan"], ["tolerance must be", "but is nan"]),
        (["--device", "tpu"], ["unknown device 'tpu'"]),
        (["--precision", "fp8"], ["--precision", "'fp8'", "bf16"]),
        (["--precision", "fp16"], ["fp16 needs a GPU"]),
    ],
)
def test_flags_that_cannot_be(verify, arguments, parts):
    """A flag that cannot be is named with its value and range before anything runs."""
    outcome = verify(*arguments)

    outcome.check_refused(*parts)
    assert outcome.out == ""


@pytest.mark.parametrize(
    ("workload", "parts"),
    [
        ("w.py", ["workload must be FILE:FUNCTION, but is 'w.py'", "train.py:make_workload"]),
        ("w.py:", ["workload must be FILE:FUNCTION", "'w.py:'"]),
        (":make", ["workload must be FILE:FUNCTION", "':make'"]),
        ("w.py:make me", ["workload must be FILE:FUNCTION"]),
        ("absent.py:make", ["workload file absent.py does not exist"]),
        (".:make", ["workload file . is a folder; expected a Python file"]),
        ("w.py:mak", ["w.py has no function 'mak'", "make, by_plan, by_chance"]),
        ("empty.py:make", ["empty.py has no function 'make'; it defines no function"]),
        ("w.py:number", ["number in w.py is of type int, expected a function"]),
        ("w.py:with_arguments", ["with_arguments in w.py needs the arguments rate, decay"]),
        ("w.py:nothing", ["nothing in w.py returned", "type NoneType", "gapless.Workload(model="]),
        (
            "w.py:generator",
            ["batches of the workload", "list or a loader, which allow several passes"],
        ),
        ("w.py:one_batch_left", ["gave no batch in another pass after 12 steps"]),
        ("w.py:no_batches", ["batches gave no batch at all"]),
        ("w.py:read_only", ["a batch of the workload: cannot rebuild a mappingproxy"]),
        ("w.py:no_loss", ["a loss must be a tensor", "but is None", "let the step return"]),
        ("w.py:leaves", ["the workload called sys.exit(0)", "before the comparison was done"]),
        ("w.py:without_optimizer", ["without_optimizer in w.py", "missing", "'optimizer'"]),
        ("raises.py:make", ["raises.py cannot be imported: raises.py:3: ZeroDivisionError"]),
        ("exits.py:make", ["exits.py cannot be imported: exits.py:2: SystemExit: 3"]),
        ("broken.py:make", ["broken.py cannot be imported: broken.py:2: SyntaxError"]),
        ("binary.py:make", ["binary.py cannot be imported: ", "null bytes"]),
        ("lonely.py:make", ["lonely.py:1: ModuleNotFoundError: No module named 'absent_friend'"]),
    ],
)
def test_workloads_that_cannot_be(verify, workload, parts):
    """A file, function or workload that cannot be used is named in one line with the way out."""
    Path("empty.py").write_text("")
    Path("raises.py").write_text("def half(x):\n    return x / 2\nhalf(1 / 0)\n")
    Path("exits.py").write_text("import sys\nsys.exit(3)\n")
    Path("broken.py").write_text("x = 1\ndef make(:\n")
    Path("binary.py").write_bytes(b"\0\0")
    Path("lonely.py").write_text("import absent_friend\n")

    verify("--steps", "20", "--workload", workload).check_refused(*parts)


def test_half_precision_is_up_to_the_workloads_step(verify):
    """Half precision is refused for a workload, whose step alone could use it."""
    outcome = verify("--precision", "bf16", "--workload", "w.py:make")

    outcome.check_refused("precision bf16", "torch.autocast", "fp32 or tf32")


def test_a_file_finds_its_neighbours_and_knows_its_device(verify, tmp_path):
    """A workload file may import its neighbours, and its function may take the device."""
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "neighbour_of_two.py").write_text(FILE)
    (folder / "two.py").write_text(
        "import torch, neighbour_of_two\n"
        "def placed(device):\n"
        "    assert device == torch.device('cpu'), device\n"
        "    return neighbour_of_two.make(device)\n"
        "def unplaced():\n"
        "    return neighbour_of_two.make()\n"
    )

    for name in ("placed", "unplaced"):
        assert verify("--steps", "2", "--workload", f"deep/two.py:{name}").code == 0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model", torch.relu, "model of the workload is of type builtin_function_or_method"),
        ("optimizer", None, "optimizer of the workload is of type NoneType, expected a torch"),
        ("batches", 3, "batches of the workload is of type int, expected a list of batches"),
        ("batches", (n for n in [1]), "type generator, expected a list or a loader"),
        ("batches", zip([1], [2], strict=True), "type zip, expected a list or a loader"),
        ("step", 1, "step of the workload is of type int, expected a function of a batch"),
    ],
)
def test_a_workload_of_the_wrong_parts_is_refused_where_it_is_made(field, value, message):
    """A workload of the wrong parts is refused with field, type and what was expected."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    parts = {"model": model, "optimizer": optimizer, "batches": [1], "step": len}

    assert Workload(**parts).batches == [1]
    with pytest.raises(UserError, match=message):
        Workload(**{**parts, field: value})
