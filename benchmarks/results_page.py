"""Fill the tables of the result pages from the files beside them.

    python3 -m benchmarks.results_page docs/results

A page has marks, `<!-- from: NAME -->` and `<!-- end -->`; what stands between is made from one or
more files of the folder, with where and by which command they were measured. The same files give
the same pages. Needs neither torch nor gapless.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from benchmarks.launch_bound.table import page


RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"

Row: TypeAlias = dict[str, Any]
Lines: TypeAlias = Iterator[str]

_MARK = re.compile(r"(<!-- from: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def read(folder: Path, name: str) -> Any:
    """Return a file's content; of a file of lines, the list of them."""
    text = (folder / name).read_text(encoding="utf-8")
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Lines:
    """Return a Markdown table."""
    yield f"|{'|'.join(head)}|"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"|{'|'.join(row)}|"


def measured(facts: Row) -> str:
    """Return where, when and by which command something was measured."""
    torch = facts["versions"].partition(",")[0]
    # Where it was written to is of one machine, or where it stands now.
    command = re.sub(r" --(out|json|runs) \S+", "", facts["command"])
    return f"{facts['hardware']}, {torch}, {facts['commit']}, {facts['date']}: `{command}`."


def _spread(found: Row, form: str = "{:.1f}") -> str:
    middle, least, most = (form.format(found[name]) for name in ("median", "min", "max"))
    return f"{middle} ({least} to {most})"


def _percent(share: float | None, form: str = "{:.0%}") -> str:
    return "-" if share is None else form.format(share).replace("%", " %")


def _gib(size: float | None) -> str:
    return f"{size / 2**30:.1f}" if size else "-"


# --- beside other trainers ---


def peers(folder: Path, name: str) -> Lines:
    """Rows of `benchmarks.peers`."""
    facts = read(folder, name)
    head = ("row", "steps/s", "target tokens/s", "`captured` is faster", "busy", "kernels", "GiB")
    yield f"{measured(facts)} {facts['batches']}."
    yield ""
    yield from table(head, [_peer(row) for row in facts["rows"]])


def _peer(row: Row) -> list[str]:
    ratio = row.get("captured_ratio_target_tokens")
    kernels = row.get("kernels_per_step")
    return [
        row["title"].removeprefix("gapless, ") + (" \\*" if row["own_layout"] else ""),
        _spread(row["steps_per_second"]),
        f"{row['target_tokens_per_second']['median']:,.0f}",
        f"{ratio:.2f}x" if ratio else "-",
        _percent(row.get("busy_share")),
        f"{kernels:,.0f}" if kernels else "-",
        _gib(row["held_memory_bytes"]),
    ]


_AUTO = (
    ("auto-workloads-thirty-rounds.json", ("launch-bound", "host-read")),
    ("auto-workloads-others.json", ("device-bound", "image-classifier")),
    ("auto-workloads-data-bound.json", ("data-bound",)),
)


def auto(folder: Path) -> Lines:
    """Workloads of `benchmarks.auto_workloads`, each from the file with the most rounds."""
    plans = ("blocking", "gapless", "captured", "auto")
    rows = []
    for name, workloads in _AUTO:
        facts = read(folder, name)
        yield measured(facts)
        for one in facts["results"]:
            if one["workload"] in workloads:
                ms = [f"{one['ms_a_step'][plan]:.2f}" for plan in plans]
                rounds = len(one["rounds_ms"]["auto"])
                rows.append([one["workload"], *ms, f"{one['auto_to_best']:.3f}", str(rounds)])
    yield ""
    yield from table(("workload", *plans, "`auto` to the best", "rounds"), rows)


# --- limits ---


def limits(folder: Path, *names: str) -> Lines:
    """Rows of `benchmarks.limits`."""
    rows = []
    for name in names:
        facts = read(folder, name)
        yield measured(facts)
        found = [row for case in facts["cases"] for row in case["rows"] if row["rounds"]]
        rows += [_limit(row) for row in found if row["title"] not in {one[0] for one in rows}]
    yield ""
    head = ("row", "ms a step", "target tokens/s", "padding", "TFLOP/s", "of the peak", "GiB")
    yield from table(head, rows)


def _limit(row: Row) -> list[str]:
    return [
        row["title"].removeprefix("packed, captured, layers compiled, "),
        _spread(row["ms_per_step"], "{:.2f}"),
        f"{row['target_tokens_per_second']['median']:,.0f}",
        _percent(row["padding_share"], "{:.1%}"),
        f"{row['model_tflops']['median']:,.0f}",
        _percent(row["utilisation"], "{:.1%}"),
        _gib(row["held_memory_bytes"]),
    ]


def attention(folder: Path) -> Lines:
    """Kernels of `benchmarks.attention` by size of the model; a failing kernel has its own line."""
    facts = read(folder, "attention.json")
    cases = facts["cases"]
    failing = {name for rows in cases.values() for name, row in rows.items() if row["problem"]}
    kernels = [name for name in next(iter(cases.values())) if name not in failing]
    yield measured(facts)
    yield ""
    yield from table(
        ("size", "kernel", "forward, ms", "backward, ms", "error"),
        [
            [size, kernel, *_range_of([rows[kernel] for rows in sizes])]
            for size, sizes in _by_size(cases).items()
            for kernel in kernels
        ],
    )
    for name in sorted(failing):
        yield ""
        yield f"{name}: {next(iter(cases.values()))[name]['problem']} in every case."


def _by_size(cases: dict[str, Row]) -> dict[str, list[Row]]:
    sizes: dict[str, list[Row]] = {}
    for case, rows in cases.items():
        sizes.setdefault(case.partition(",")[0], []).append(rows)
    return sizes


def _range_of(rows: Sequence[Row]) -> Lines:
    for name, form in (("forward_ms", ".3f"), ("backward_ms", ".3f"), ("largest_error", ".2g")):
        least, most = (format(end(row[name] for row in rows), form) for end in (min, max))
        yield least if least == most else f"{least} to {most}"


# --- translation ---


def multi30k(folder: Path) -> Lines:
    """Runs of `benchmarks.multi30k`."""
    facts = read(folder, "multi30k.json")
    yield measured(facts)
    yield ""
    rows = [[str(run["seed"]), *_run(run)] for row in facts["rows"] for run in row["runs"]]
    head = ("seed", "BLEU", "updates", "training, s", "warm-up, s", "whole command, s", "gap")
    yield from table(head, rows)
    yield ""
    yield from ("```", f"gapless train --data DIR {' '.join(facts['recipe'])}", "```")


def _run(run: Row) -> list[str]:
    return [
        f"{run['bleu']:.2f}",
        f"{run['steps']:,}",
        *(f"{run[name]:.1f}" for name in ("train_seconds", "warm_up_seconds", "seconds")),
        _percent(run["gap_share"], "{:.1%}"),
    ]


# --- loops of users ---


def prefetch_host(folder: Path) -> Lines:
    """The loop's own thread for a batch, by `benchmarks.prefetch_time`, the newest of each."""
    rows = [row for row in read(folder, "prefetch-time.json") if "to host us" in row]
    newest = {(row["case"], row["loader"]): row for row in rows}
    yield from sorted({measured(row) for row in newest.values()})
    yield ""
    head = ("batch", "loader", "`to`, us", "`prefetch`, us")
    yield from table(
        head,
        [
            [*key, *(f"{row[f'{way} host us']['median']:,.1f}" for way in ("to", "prefetch"))]
            for key, row in newest.items()
        ],
    )


def prefetch_loops(folder: Path) -> Lines:
    """Whole loops of batches of 6 MB, by `benchmarks.prefetch_time`."""
    rows = [row for row in read(folder, "prefetch-time.json") if "to us" in row]
    yield measured(rows[0])
    yield ""
    ways = ("to", "prefetch", "prefetch, depth 2", "accelerate", "torchtnt")
    yield from table(
        ("loop, ms a batch", *ways),
        [
            [row["case"], *(f"{row[f'{way} us']['median'] / 1e3:.2f}" for way in ways)]
            for row in rows
        ],
    )


def deferred(folder: Path) -> Lines:
    """Rows of `benchmarks.deferred_metrics`."""
    facts = read(folder, "deferred-metrics.json")
    yield measured(facts)
    yield ""
    rows = [
        [name, f"{row['us']:.1f}", f"{row['kernels']:.0f}"] for name, row in facts["rows"].items()
    ]
    yield from table(("a step", "host, us", "kernels"), rows)


def public_loops(folder: Path) -> Lines:
    """Loops of `benchmarks.public_loops`, the newest call of each."""
    newest = {
        one["loop"]: (call, one)
        for call in read(folder, "public-loops.json")
        for one in call["results"]
    }
    yield from sorted({measured(call) for call, _ in newest.values()})
    yield ""
    rows = [
        [
            one["title"].partition(" (")[0],
            f"{one['speed']:.3f}",
            " to ".join(f"{end:.3f}" for end in one["middle_half_speed"]),
            one["bits"],
        ]
        for _, one in newest.values()
    ]
    yield from table(("loop", "speed", "middle half", "bits"), rows)


def launch_bound(folder: Path) -> Lines:
    """Scripts of `benchmarks.launch_bound`, every call."""
    yield from page(read(folder, "launch-bound.json"))


def integrations(folder: Path) -> Lines:
    """Rows of `benchmarks.integrations`, the newest of each."""
    newest = {
        row["loop"]: (call, row)
        for call in read(folder, "integrations.jsonl")
        for row in call["rows"]
    }
    yield from sorted({measured(call) for call, _ in newest.values()})
    yield ""
    rows = [
        [
            name,
            *(f"{median(row[f'steps_per_s_{way}']):,.1f}" for way in ("alone", "captured")),
            f"{row['ratio']:.2f}",
            *(f"{row[f'waits_{way}']:.1f}" for way in ("alone", "captured")),
            "same" if row["same_log"] and row["same_weights"] else "OTHER",
        ]
        for name, (_, row) in newest.items()
    ]
    head = ("loop", "steps/s alone", "captured", "ratio", "waits a step", "captured", "bits")
    yield from table(head, rows)


# --- several GPUs ---


_RANK_ROWS = ("plain", "ddp", "accelerate-ddp", "captured", "flat", "no-sum")


def ranks(folder: Path) -> Lines:
    """Rows of `benchmarks.ranks`: of each case the call that has one GPU beside two."""
    for call in read(folder, "2026-11-26-h200-ranks.json"):
        kept = [row for row in call["rows"] if row["name"] in _RANK_ROWS and row["rounds"]]
        if "captured" not in {row["name"] for row in kept}:
            continue
        yield (
            f"{call['case']}: {call['batches']}; 2 x {call['hardware']}, "
            f"{call['versions'].partition(',')[0]}, {call['commit']}, {call['date']}:"
        )
        yield ""
        head = ("row", "GPUs", "target tokens/s", "ms a step", "efficiency", "exposed, ms")
        yield from table(head, [_rank_row(row) for row in kept])
        yield ""


def _rank_row(row: Row) -> list[str]:
    return [
        row["title"].removeprefix("gapless, "),
        str(row["gpus"]),
        f"{row['tokens_per_second']['median']:,.0f}",
        _spread(row["ms_per_step"], "{:.2f}"),
        _percent((row.get("efficiency") or {}).get("median"), "{:.1%}"),
        _spread(row["exposed_ms"], "{:.2f}") if row.get("exposed_ms") else "-",
    ]


# --- large corpora ---


def corpora(folder: Path) -> Lines:
    """Runs of `benchmarks.corpora`, each beside the same one of the smallest text."""
    facts = read(folder, "corpora.json")
    rows = facts["rows"]
    empty = {row["run"]: row for row in rows if row["pairs"] == rows[0]["pairs"]}
    loads = [row["load"] for row in rows]
    yield f"{measured(facts)} Load {min(loads)} to {max(loads)}."
    yield ""
    head = ("pairs", "run", "s", "processor s", "MiB", "above", "anonymous", "together")
    yield from table(head, [_corpus(row, empty[row["run"]]) for row in rows])
    for one in facts["kills"]:
        same = all(one[name] for name in one if "equal" in name)
        yield ""
        yield (
            f"Killed thrice while storing {one['pairs']:,} pairs and once in training: {one['updates']} losses and the "
            f"store are {'those' if same else 'NOT those'} of a run that was not."
        )


def _corpus(row: Row, empty: Row) -> list[str]:
    sizes = ("command_peak_mib", "command_anonymous_mib", "all_proportional_mib")
    return [
        f"{row['pairs']:,}",
        row["run"],
        f"{row['first_update_s']:.1f}",
        f"{row['processor_s']:.0f}",
        f"{row['command_peak_mib']:,}",
        *(f"{row[name] - empty[name]:,}" for name in sizes),
    ]


PARTS: dict[str, Callable[[Path], Lines]] = {
    "peers-base32": lambda folder: peers(folder, "peers-base32.json"),
    "peers-base8192": lambda folder: peers(folder, "peers-base8192.json"),
    "peers-compiled": lambda folder: peers(folder, "peers-base32-compiled.json"),
    "auto": auto,
    "limits-base": lambda folder: limits(
        folder, "limits-base8192.json", "limits-base8192-padded.json"
    ),
    "limits-big": lambda folder: limits(folder, "limits-big25k.json"),
    "attention": attention,
    "multi30k": multi30k,
    "prefetch-host": prefetch_host,
    "prefetch-loops": prefetch_loops,
    "deferred": deferred,
    "public-loops": public_loops,
    "launch-bound": launch_bound,
    "integrations": integrations,
    "ranks": ranks,
    "corpora": corpora,
}


def filled(text: str, folder: Path) -> str:
    """Return a page with its tables, from the files of a folder.

    Raises:
        KeyError: a mark names no part.
        OSError: a file is missing.
    """

    def made(found: re.Match[str]) -> str:
        body = "\n".join(PARTS[found[2]](folder)).strip("\n")
        return f"{found[1]}\n{body}\n\n{found[3]}"

    return _MARK.sub(made, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages of a folder; return 0, or 2 if a file cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.results_page", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("folder", type=Path, nargs="?", default=RESULTS)
    folder = parser.parse_args(arguments).folder
    try:
        for page in sorted(folder.glob("*.md")):
            text = page.read_text(encoding="utf-8")
            made = filled(text, folder)
            if made != text:
                page.write_text(made, encoding="utf-8")
                print(f"written: {page}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{folder} cannot be rendered: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
