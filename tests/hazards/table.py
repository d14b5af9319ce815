"""Print README.md of this folder: `PYTHONPATH=tests python3 -m hazards.table > tests/hazards/README.md`."""

from __future__ import annotations

from hazards.harness import CPU, GPU, SAME, SIMULATED
from hazards.themes import CAPTURED_CASES, CASES, IN_PLACE_CASES


HEAD = """# Loops as people write them

Each case is one loop of a user. It gets a `Place` (`harness.py`), which is a machine: the CPU, the
simulated device, or a GPU. A case of verdict *same* runs twice: once plainly, with
`.to(device, non_blocking=True)` and `.item()` and a wait after each of them, and once with
`gapless.prefetch` and `gapless.DeferredLoss`. Values, dtypes, shapes, strides, devices, `requires_grad`
and types of all that the loop returns must be equal bit for bit. A case of verdict *holds* asserts what
it expects itself. On the simulated device a case also fails if an access is unordered.

The cases were written from what is promised, before the code that they judge. If one fails, the code is
wrong, or the promise changes: say so in the case.

* `test_hazards.py` runs all cases on the CPU and on the simulated device, under four schedules;
  `tests/gpu/test_hazards_on_gpu.py` runs them on a GPU.
* `test_harness.py`: the plain loop passes every case; planted mistakes do not.
* `table.py` writes this file; a test compares.

{num} cases: {num_cpu} on the CPU, {num_simulated} on the simulated device, {num_gpu} on a GPU.
"""

CAPTURED_HEAD = """
# Captured steps

Each of these cases captures the step of a loop (`captured_harness.py`) and runs twice: once with the step
itself, and once with what `gapless.capture` makes of it. What the loop returns, raises and prints, and the
states of all random generators after it, must be equal bit for bit. On top of that:

* *captured*: at least a third of the calls were replays;
* *refused*: the report's refusals say the words that the case names, and most often the line;
* *either*: the promise leaves open what happens, so long as the bits are the same;
* *holds*: the loop asserts what it expects itself.

`test_captured_hazards.py` runs them on the simulated device, `tests/gpu/test_captured_hazards_on_gpu.py` on
a GPU; `test_captured_harness.py` tests the harness. Small models are in `captured_models.py`.

{num} cases: {num_cpu} on the CPU, {num_simulated} on the simulated device, {num_gpu} on a GPU; {captured}
captured, {refused} refused, {either} either, {holds} holds.
"""

IN_PLACE_HEAD = """
# Captured where the code stands

Each of these cases captures a model, a loss module or an optimizer in place (`in_place_harness.py`): forward,
backward and update replay inside the loop as it stands. A case runs twice, as it is and captured, and the
same must be equal as for captured steps. On top of that:

* *captured*: of each captured object, or of those that the case names, at least half of the calls were
  replays; a call of a model or of a loss is one call, whatever its backward does, and so is a step of an
  optimizer;
* *refused*: the reports name the words (regular expressions, in any case), and the line;
* *either*: the same, unless half of all calls were replays; with no words, the promise leaves open what
  happens, so long as the bits are the same;
* *holds*: the loop asserts what it expects itself.

On a CPU nothing is captured, and the bits alone are compared. `test_in_place_hazards.py` runs them on the CPU
and on the simulated device, `tests/gpu/test_in_place_hazards_on_gpu.py` on a GPU; `test_in_place_harness.py`
tests the harness. Small models are in `in_place_models.py`.

{num} cases: {num_cpu} on the CPU, {num_simulated} on the simulated device, {num_gpu} on a GPU; {captured}
captured, {refused} refused, {either} either, {holds} holds.
"""


def counted(cases):
    """Return how many cases there are, and on each device."""
    kinds = {"num_cpu": CPU, "num_simulated": SIMULATED, "num_gpu": GPU}
    numbers = {name: sum(kind in one.devices for one in cases) for name, kind in kinds.items()}
    return {"num": len(cases), **numbers}


def readme():
    parts = [HEAD.format(**counted(CASES))]
    for theme in dict.fromkeys(one.theme for one in CASES):
        parts.append(
            f"\n## {theme}\n\n| case | what users do | devices | verdict |\n|---|---|---|---|\n"
        )
        for one in (one for one in CASES if one.theme == theme):
            verdict = "same" if one.verdict == SAME else "holds"
            parts.append(
                f"| `{one.name}` | {one.sentence} | {', '.join(one.devices)} | {verdict} |\n"
            )
    parts += captured_parts(CAPTURED_HEAD, CAPTURED_CASES)
    return "".join([*parts, *captured_parts(IN_PLACE_HEAD, IN_PLACE_CASES)])


def captured_parts(head, cases):
    """Return the part of the table about cases that capture something."""
    names = [one.expect.name for one in cases]
    of_verdicts = {name: names.count(name) for name in ("captured", "refused", "either", "holds")}
    parts = [head.format(**counted(cases), **of_verdicts)]
    for theme in dict.fromkeys(one.theme for one in cases):
        parts.append(
            f"\n## {theme}\n\n| case | what users do | devices | expected |\n|---|---|---|---|\n"
        )
        for one in (one for one in cases if one.theme == theme):
            parts.append(
                f"| `{one.name}` | {one.sentence} | {', '.join(one.devices)} | "
                f"{in_words(one.expect)} |\n"
            )
    return parts


def in_words(verdict):
    """Return the verdict, what it is about, and what a refusal must name."""
    words = (*getattr(verdict, "of", ()), *verdict.words)
    named = [f"`{word}`".replace("|", "\\|") for word in words]
    if verdict.at:
        named.append(f"the line of `{verdict.at}`")
    return f"{verdict.name}: {', '.join(named)}" if named else verdict.name


if __name__ == "__main__":
    print(readme(), end="")
