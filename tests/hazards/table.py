"""Print README.md of this folder: `PYTHONPATH=tests python3 -m hazards.table > tests/hazards/README.md`."""

from __future__ import annotations

from hazards.harness import CPU, GPU, SAME, SIMULATED
from hazards.themes import CAPTURED_CASES, CASES


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
    return "".join([*parts, *captured_parts()])


def captured_parts():
    """Return the part of the table about captured steps."""
    names = [one.expect.name for one in CAPTURED_CASES]
    of_verdicts = {name: names.count(name) for name in ("captured", "refused", "either", "holds")}
    parts = [CAPTURED_HEAD.format(**counted(CAPTURED_CASES), **of_verdicts)]
    for theme in dict.fromkeys(one.theme for one in CAPTURED_CASES):
        parts.append(
            f"\n## {theme}\n\n| case | what users do | devices | expected |\n|---|---|---|---|\n"
        )
        for one in (one for one in CAPTURED_CASES if one.theme == theme):
            parts.append(
                f"| `{one.name}` | {one.sentence} | {', '.join(one.devices)} | "
                f"{in_words(one.expect)} |\n"
            )
    return parts


def in_words(verdict):
    """Return the verdict, and what a refusal must name."""
    named = [f"`{word}`" for word in verdict.words]
    if verdict.at:
        named.append(f"the line of `{verdict.at}`")
    return f"{verdict.name}: {', '.join(named)}" if named else verdict.name


if __name__ == "__main__":
    print(readme(), end="")
