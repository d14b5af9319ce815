"""The page of results, made from the JSON alone."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Callable


Entry = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the benchmark.

    Attributes:
        module: that measures it.
        title: of its section.
        about: how it is measured and when it is right.
        head: of its table.
        cells: of an entry, below the head.
        needs: the option without which it is not measured; empty if there is none.
    """

    module: str
    title: str
    about: str
    head: tuple[str, ...]
    cells: Callable[[Entry], tuple[str, ...]]
    needs: str = ""

    def line(self, entry: Entry) -> str:
        """Return an entry in one line."""
        pairs = zip(self.head[1:], self.cells(entry)[1:], strict=True)
        return ", ".join(f"{name} {cell}" for name, cell in pairs if cell)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _ms(values: list[float] | float | None) -> str:
    if values is None or values == []:
        return ""
    return f"{median(values) if isinstance(values, list) else values:.2f}"


def _times(gain: float | None) -> str:
    return "" if gain is None else f"{gain:.3f}"


def _right(entry: Entry) -> str:
    return {True: "yes", False: "NO", None: ""}[entry["is_right"]]


def _corpus(entry: Entry) -> tuple[str, ...]:
    if entry["name"] == "cases":
        found = f"{entry['right']} of {entry['cases']} cases"
        alarms = f"{entry['false_alarms']} false alarms, {entry['harmless']} harmless lines"
        return (alarms, "", found, "", "", _right(entry))
    counts = [str(entry[key]) for key in ("labels", "right", "line", "sync_debug")]
    return (entry["name"], *counts, _right(entry))


def _planted(entry: Entry) -> tuple[str, ...]:
    return (
        entry["name"],
        _ms(entry["with_wait_ms"]),
        _ms(entry["without_wait_ms"]),
        _percent(entry["saved"]),
        _percent(entry["gain"]),
        _percent(entry["exposed"]),
        _right(entry),
    )


def _several(entry: Entry) -> tuple[str, ...]:
    return (
        entry["name"],
        _ms(entry["written_ms"]),
        _ms(entry["edited_ms"]),
        _times(entry["edited_gain"]),
        _times(entry["trial_gain"]) or entry["why_not"],
        _right(entry),
    )


def _overhead(entry: Entry) -> tuple[str, ...]:
    launches = entry["launches"]
    return (
        entry["name"],
        "" if launches is None else f"{launches:.0f}",
        _ms(entry["alone_ms"]),
        _ms(entry["before_ms"]),
        _percent(entry["sites_overhead"]),
        _percent(entry["times_overhead"]),
        _percent(entry["after_overhead"]),
        _right(entry),
    )


def _said(entry: Entry) -> tuple[str, ...]:
    return (entry["name"], entry["lines"][0])


def _static(entry: Entry) -> tuple[str, ...]:
    return (
        entry["name"],
        f"{entry['lines']:,}",
        f"{entry['files']:,}",
        _ms(entry["seconds"]),
        _ms(entry["cpu_seconds"]),
        _right(entry),
    )


PARTS = {
    "corpus": Part(
        module="corpus",
        title="The corpus: lines that wait, and lines that only look so",
        about="Scripts that were labelled before the doctor was written. Right: the line, the thread and the count "
        "are those of the label. Beside it, what `torch.cuda.set_sync_debug_mode` finds.",
        head=("where", "lines that wait", "right", "line found", "sync debug mode", "all right"),
        cells=_corpus,
        needs="judged",
    ),
    "planted": Part(
        module="planted",
        title="Single planted waits",
        about="A device-bound step with one wait that leaves the device idle for the share in its name. Saved: what "
        "the step becomes shorter without it, in turns. Right: the reported gain is within 10 % of that, or within "
        "2 % of the step; what saves nothing is reported as at most 1 %. Below: saved/reported, in % of the step, for "
        "each share; `!`: not right.",
        head=(
            "loop, share",
            "ms with",
            "ms without",
            "saved",
            "reported gain",
            "reported idle",
            "right",
        ),
        cells=_planted,
    ),
    "several": Part(
        module="several",
        title="Several waits: `--try` beside the edited script",
        about="How many times as fast: by `--try` on the script as written, and by the script edited by hand, in "
        "turns. Right: within 10 %.",
        head=("loop", "ms as written", "ms edited", "edited", "`--try`", "right"),
        cells=_several,
    ),
    "overhead": Part(
        module="overhead",
        title="What watching costs",
        about="The loop times its own steps, by its own clock, before, while and after it is watched. Names are the "
        "way of watching and the waits a step. Right: at most 15 % while lines are looked for.",
        head=(
            "way, waits",
            "launches",
            "ms alone",
            "ms before",
            "lines",
            "times",
            "afterwards",
            "right",
        ),
        cells=_overhead,
    ),
    "said": Part(
        module="first_lines",
        title="What it says first",
        about="The first lines of the report of programs of other people, which run untouched.",
        head=("program", "first line"),
        cells=_said,
        needs="programs",
    ),
    "static": Part(
        module="static_look",
        title="The look at the syntax",
        about="`gapless doctor --static` over files of installed packages, on one core. Right: at most 10 s of its "
        "processor, with the start of the command.",
        head=("where", "lines", "files", "s", "CPU s", "right"),
        cells=_static,
    ),
}


def page(entries: list[Entry]) -> str:
    """Return the page of what was measured; parts without a figure say by which command to get it."""
    newest = {(entry["part"], entry["name"]): entry for entry in entries if not entry["is_small"]}
    lines = [
        "# What the doctor says, beside the clock",
        "",
        "`benchmarks/doctor` measures, `docs/results/doctor.json` holds every figure, and this page is made from it:",
        "",
        "```",
        "PYTHONPATH=src python3 -m benchmarks.doctor --json docs/results/doctor.json",
        "python3 -m benchmarks.doctor --page docs/results/doctor.json docs/results/doctor.md",
        "```",
    ]
    for name, part in PARTS.items():
        mine = [entry for (which, _), entry in newest.items() if which == name]
        lines += ["", f"## {part.title}", "", part.about, ""]
        if mine and name == "said":
            lines += [*_places(mine), *(line for entry in mine for line in _block(entry))]
        elif mine and name == "planted":
            lines += _by_share(mine)
        else:
            lines += _table(part, mine) if mine else [_missing(name)]
    return "\n".join(lines) + "\n"


def _missing(name: str) -> str:
    needs = PARTS[name].needs
    more = f" --{needs} {needs.upper()}" if needs else ""
    command = f"PYTHONPATH=src python3 -m benchmarks.doctor --only {name}{more} --json docs/results/doctor.json"
    return f"Not measured yet: `{command}`"


def _places(entries: list[Entry]) -> list[str]:
    return sorted(
        {
            f"{entry['hardware']}, {entry['versions'].partition(',')[0]}, commit {entry['commit']}, "
            f"{entry['date']}."
            for entry in entries
        }
    )


def _block(entry: Entry) -> list[str]:
    said = entry["lines"][: entry["lines"].index("")]
    return ["", f"{entry['name']}, {entry['at']}:", "", "```text", *said, "```"]


def _by_share(entries: list[Entry]) -> list[str]:
    cells: dict[str, dict[float, str]] = {}
    for entry in entries:
        reported = entry["exposed"] if entry["gain"] is None else entry["gain"]
        text = f"{100 * entry['saved']:.1f}/{100 * (reported or 0.0):.1f}"
        wrong = "!" if entry["is_right"] is False else ""
        cells.setdefault(entry["name"].split()[0], {})[entry["planted"]] = text + wrong
    shares = sorted({entry["planted"] for entry in entries})
    head = ["loop", *(f"{share:g}" for share in shares)]
    return [
        *_places(entries),
        *sorted({entry["note"] for entry in entries if "note" in entry}),
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
        *(
            f"| {' | '.join([loop, *(its.get(share, '') for share in shares)])} |"
            for loop, its in cells.items()
        ),
    ]


def _table(part: Part, entries: list[Entry]) -> list[str]:
    rows = [f"| {' | '.join(part.cells(entry))} |" for entry in entries]
    head = [f"| {' | '.join(part.head)} |", "|---" * len(part.head) + "|"]
    return [*_places(entries), "", *head, *rows]
