"""Print README.md of this folder: `PYTHONPATH=tests python3 -m hazards.table > tests/hazards/README.md`."""

from __future__ import annotations

from hazards.harness import CPU, GPU, SAME, SIMULATED
from hazards.themes import CASES


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


def readme():
    def num_on(kind):
        return sum(kind in one.devices for one in CASES)

    parts = [
        HEAD.format(
            num=len(CASES),
            num_cpu=num_on(CPU),
            num_simulated=num_on(SIMULATED),
            num_gpu=num_on(GPU),
        )
    ]
    for theme in dict.fromkeys(one.theme for one in CASES):
        parts.append(
            f"\n## {theme}\n\n| case | what users do | devices | verdict |\n|---|---|---|---|\n"
        )
        for one in (one for one in CASES if one.theme == theme):
            verdict = "same" if one.verdict == SAME else "holds"
            parts.append(
                f"| `{one.name}` | {one.sentence} | {', '.join(one.devices)} | {verdict} |\n"
            )
    return "".join(parts)


if __name__ == "__main__":
    print(readme(), end="")
