"""Render what was measured of the origin's plans and claims, in English and in Chinese.

    python3 -m benchmarks.origin_page docs/results

Reads `origin-fp32.json`, `origin-tf32.json` and `origin-bf16.json` of a folder, as far as they are
there, and writes `origin.md` beside them. In a checkout it also fills `docs/zh/origin.md` between
its marks. The same files give the same pages. Needs neither torch nor gapless.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.origin_claims import CLAIMS, Claim, Result, check_claims, counts
from benchmarks.origin_words import (
    CONFIRMED,
    NOT_MEASURABLE,
    REASONS,
    REFUTED,
    VERDICTS,
    Language,
)


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


PRECISIONS = ("fp32", "tf32", "bf16")
PAGE = "origin.md"
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
CHINESE = ROOT / "docs" / "zh" / "origin.md"

# Of the files of a folder, by precision.
Files: TypeAlias = dict[str, dict[str, Any]]

# What plans are called in the origin's documents, and what that means.
ORIGINS_NAMES: dict[Language, dict[str, str]] = {
    "zh": {
        "blocking": "优化前",
        "deferred-loss": "延迟 loss 提取",
        "events": "方案 2",
        "interval": "方案 3",
        "events-interval": "方案 2+3, 阶段 1",
        "four-stream": "方案 1, 阶段 2",
        "full": "方案 4, 阶段 3",
    },
    "en": {
        "blocking": "优化前 (before)",
        "deferred-loss": "延迟 loss 提取 (late losses)",
        "events": "方案 2 (plan 2)",
        "interval": "方案 3 (plan 3)",
        "events-interval": "方案 2+3, 阶段 1 (plans 2+3, stage 1)",
        "four-stream": "方案 1, 阶段 2 (plan 1, stage 2)",
        "full": "方案 4, 阶段 3 (plan 4, stage 3)",
    },
}

_COMMAND = "PYTHONPATH=src python3 -m benchmarks.origin --precision {} --out docs/results"

_WORDS: dict[Language, dict[str, str]] = {
    "en": {
        "missing": "not measured yet",
        "how": "not measured yet: `{}`",
        "none": "Nothing on this page is measured yet.",
        "some": "Measured so far: {}. Not yet: {}.",
        "all": "",
        "folded": "{} claims, none of them measured yet on this workload.",
        "table": "| plan ({}) | the origin's name | same bits | waits a batch | CPU, of one core | GPU: NVML | "
        "GPU: kernels | 1,000 batches, s | MiB | times `blocking` |",
        "yes": "yes",
        "no": "NO",
        "unknown": "not compared",
        "na": "n/a",
        "ours": "ours",
        "claims": "The figures are of {}.",
        "claim": "* {said}: {verdicts}; {why}",
        "reasons": "Why:",
        "apart": "Timed in another call than the others: {}.",
        "problem": "Not measured, {}: {}.",
        "rounds": "The time limit allowed {done} of {total} rounds.",
        "spread": "Rounds differ by more than 10 %, read with care: {}.",
        "sentences": "sentences a batch",
        "every": "every {}",
        "untuned": "Not measured yet: the command above with `--tuning`.",
        "verdicts": "{}: {} confirmed, {} refuted, {} not measurable here.",
        "before": "Under `blocking` a step takes {ms:.1f} ms; launching it takes the host {launch:.1f} ms, "
        "its kernels take {busy:.1f}, and the host waits {waited:.1f}.",
        "best": "The fastest of the origin's plans is `{origins}` with {origins_x:.2f}x `blocking`, of all "
        "plans `{all}` with {all_x:.2f}x.",
        "conditions": "{hardware}, {host}, {versions}, commit {commit}, {date}; `{command}`.",
    },
    "zh": {
        "missing": "尚未测量",
        "how": "尚未测量：`{}`",
        "none": "下面各表尚未测量；已测的结论只有「先说结论」里的几条，来自别的测量。",
        "some": "下面的表中，已测量的是 {}，尚未测量的是 {}。",
        "all": "下面的方案和说法都已测量：{}。",
        "folded": "{} 条说法，都尚未在这个工作负载上测量。",
        "table": "| 方案（{}） | 原文的名字 | 逐位相同 | 每 batch 等待次数 | CPU，单核 | GPU：NVML | GPU：kernel | "
        "1000 个 batch，秒 | MiB | 相对优化前 |",
        "yes": "是",
        "no": "否",
        "unknown": "未比对",
        "na": "无",
        "ours": "本项目",
        "claims": "数字依次是 {}。",
        "claim": "* {said}：{verdicts}；{why}",
        "reasons": "原因：",
        "apart": "与其他方案不在同一次运行中计时：{}。",
        "problem": "未能测量 {}：{}。",
        "rounds": "因为限时，{total} 轮里只做了 {done} 轮。",
        "spread": "各轮相差超过 10 %，读数须谨慎：{}。",
        "sentences": "每 batch 句数",
        "every": "每 {} 个",
        "untuned": "尚未测量：在上面的命令后加 `--tuning`。",
        "verdicts": "{}：{} 条属实，{} 条不成立，{} 条此处无法测量。",
        "before": "在 `blocking` 下，一步用 {ms:.1f} ms；主机发射它要 {launch:.1f} ms，它的 kernel 要 {busy:.1f} ms，"
        "主机等待 {waited:.1f} ms。",
        "best": "原文的方案里最快的是 `{origins}`，为 `blocking` 的 {origins_x:.2f}x；所有方案里最快的是 `{all}`，"
        "为 {all_x:.2f}x。",
        "conditions": "{hardware}，{host}，{versions}，commit {commit}，{date}；`{command}`。",
    },
}

# What stands in a row of claims in place of some words of a finding.
_SIGNS = {
    "less than claimed": "<",
    "more than claimed": ">",
    "within the spread of the rounds": "≈",
}
_SHORT = (
    ("bit-identical", "="),
    ("NVML ", ""),
    ("kernels ", ""),
    ("/1000 batch", ""),
    ("/batch", ""),
)


def read_files(folder: Path) -> Files:
    """Return what was measured, by precision; nothing for a file that is not there.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is no JSON.
    """
    paths = {name: folder / f"origin-{name}.json" for name in PRECISIONS}
    return {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.exists()
    }


def write_page(folder: Path) -> Path:
    """Write `origin.md` of a folder's files, and return where; see the module for the other page."""
    files = read_files(folder)
    page = folder / PAGE
    page.write_text(page_text(files), encoding="utf-8")
    if folder.resolve() == RESULTS and CHINESE.exists():
        text = CHINESE.read_text(encoding="utf-8")
        CHINESE.write_text(filled(text, files), encoding="utf-8")
    return page


# --- the English page ---


def page_text(files: Files) -> str:
    """Return the English page."""
    return "\n".join(_page(files)) + "\n"


def _page(files: Files) -> Iterator[str]:
    title, *introduction = _INTRODUCTION.splitlines()
    yield title
    for line in state_lines(files, "en"):
        yield from ("", f"**{line}**")
    yield from introduction
    yield from ("", "## The plans", "")
    yield from plans_lines(files, "en")
    yield from ("", "## The claims", "")
    yield from _CLAIMS_TEXT.splitlines()
    yield ""
    yield from verdict_lines(files, "en")
    yield ""
    yield from claims_lines(files, "en")
    yield from ("", "## How often to read losses", "")
    yield from _TUNING_TEXT.splitlines()
    yield ""
    yield from tuning_lines(files, "en")


_INTRODUCTION = f"""# The origin's plans and claims

Five documents in Chinese describe a training system in C++, and claim what each of its plans would gain, before
anything was measured. Here every plan runs on their workload, a Transformer of width 512 with 8 heads and 6 + 6 layers and
batches of 32 sentences, and every claim gets a verdict. [What became of the system](../zh/origin.md), in Chinese. These
commands, 5 to 8 minutes on a GPU each, write this page:

```
{_COMMAND.format("fp32")}
{_COMMAND.format("bf16")}
{_COMMAND.format("fp32")} --tuning
```

* Data: synthetic pairs of about 28 tokens, vocabularies of 32,000; 93.3 million parameters, dropout 0.1, fused Adam;
  rows padded to few shapes.
* Same bits: every loss and, after every step, every tensor against a plain loop, with deterministic
  algorithms. Times are of rounds in turns, without them.
* NVML, as nvidia-smi shows it: the share of sample windows in which any kernel ran. Kernels: the share of time in which
  one ran, from a trace. CPU: of the training process. MiB: the peak of tensors.
* Hosts differ by 2x in how long they launch a step, and so in what launching less gains."""

_CLAIMS_TEXT = f"""{len(CLAIMS)} claims; what several documents say has one line. `000:117` is line 117 of document 000;
their words are in `benchmarks/origin_claims.py`. A claim is confirmed if the figure lies in the range that it names, and
refuted if it is less (<) or more (>). A time has to differ by more than the middle halves of the rounds (else ≈).
Shown is the change, or the figure where there is none; = are the same bits, – cannot be measured here.

Changes are from what the document starts from: 004 a loop that reads every loss, 000 to 002 one with late reads, 003 the
plan of 000. In 004 "plan 1" means late reads; in 001 to 003 four streams. A refuted claim is no fault of a plan. Some
contradict one another: 003 expects 6 to 10 % of two stages together, 001 and 002 10 to 15 % of the second alone."""


_TUNING_TEXT = """004 advises (lines 249 to 251) to read losses every 20 to 30 batches below 20 sentences, every 5 to 10
above 50, and every 10 otherwise. Milliseconds a batch under `deferred-loss`; bold: the fastest, and those whose rounds
overlap with its own."""


# --- parts, in both languages ---


def state_lines(files: Files, language: Language) -> Iterator[str]:
    """Say what is measured and what is not; in English nothing once all of it is."""
    words = _WORDS[language]
    measured = [name for name in _shown(files) if _results(files, name) is not None]
    missing = [name for name in _shown(files) if name not in measured]
    comma = "、" if language == "zh" else ", "
    if not measured:
        yield words["none"]
    elif missing:
        yield words["some"].format(comma.join(measured), comma.join(missing))
    elif words["all"]:
        yield words["all"].format(comma.join(measured))


def plans_lines(files: Files, language: Language) -> Iterator[str]:
    """Return the table of the plans, a figure for each precision, with its conditions and notes."""
    words = _WORDS[language]
    measured = {name: files[name] for name in _shown(files) if files.get(name, {}).get("rows")}
    for name in _shown(files):
        text = (
            _conditions(files[name]["facts"], words)
            if name in measured
            else words["how"].format(_COMMAND.format(name))
        )
        yield f"* {name}: {text}"
    if not measured:
        return
    yield ""
    yield words["table"].format(", ".join(measured))
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|--:|"
    found = [{row["plan"]: row for row in one["rows"]} for one in measured.values()]
    for plan in dict.fromkeys(plan for rows in found for plan in rows):
        cells = [_cells(rows.get(plan), rows.get("blocking"), language) for rows in found]
        told = [_joined(one) for one in zip(*cells, strict=True)]
        name = ORIGINS_NAMES[language].get(plan, words["ours"])
        yield f"| `{plan}` | {name} | {' | '.join(told)} |"
    for name, one in measured.items():
        rows = one["rows"]
        first = next((row for row in rows if row["plan"] == "blocking"), None)
        for note in [*_summary(rows, first, words), *_notes(one, words)]:
            yield from ("", f"{name}: {note}")


def _joined(figures: tuple[str, ...]) -> str:
    """Return a figure for each precision; one where all are the same."""
    return figures[0] if len(set(figures)) == 1 else ", ".join(figures)


def _conditions(facts: Mapping[str, Any], words: dict[str, str]) -> str:
    torch = facts["versions"].partition(",")[0]
    return words["conditions"].format(**{**facts, "versions": torch})


def _summary(
    rows: Sequence[Mapping[str, Any]], first: Mapping[str, Any] | None, words: dict[str, str]
) -> Iterator[str]:
    """Say where the time of a step goes, and which plans are fastest; nothing on a CPU."""
    if first is None or first["busy_ms_per_step"] is None:
        return
    ms = {row["plan"]: row["ms_per_step"]["median"] for row in rows}
    origins = min((plan for plan in ms if plan in ORIGINS_NAMES["en"]), key=ms.__getitem__)
    best = min(ms, key=ms.__getitem__)
    before = words["before"].format(
        ms=ms["blocking"],
        launch=first["launch_ms_per_step"],
        busy=first["busy_ms_per_step"],
        waited=first["waited_ms_per_step"],
    )
    fastest = words["best"].format(
        origins=origins,
        origins_x=ms["blocking"] / ms[origins],
        all=best,
        all_x=ms["blocking"] / ms[best],
    )
    yield f"{before} {fastest}"


def _cells(
    row: Mapping[str, Any] | None, first: Mapping[str, Any] | None, language: Language
) -> list[str]:
    words = _WORDS[language]
    na = words["na"]
    if row is None:
        return [na] * 8
    same = {True: words["yes"], False: words["no"], None: words["unknown"]}
    ms, busy, peak = row["ms_per_step"]["median"], row["busy_share"], row["peak_memory_bytes"]
    return [
        same[row["identical"]],
        f"{row['waits_per_step']:.2f}",
        _percent(row.get("own_cpu_percent"), na),
        _percent(row["nvml_percent"], na),
        na if busy is None else f"{100.0 * busy:.0f}%",
        f"{ms:.2f}",
        na if not peak else f"{peak / 2**20:,.0f}",
        na if first is None else f"{first['ms_per_step']['median'] / ms:.2f}x",
    ]


def _percent(value: float | None, na: str) -> str:
    return na if value is None else f"{value:.0f}%"


def _notes(found: Mapping[str, Any], words: dict[str, str]) -> Iterator[str]:
    for note in found.get("notes", []):
        rounds = _ROUNDS.fullmatch(note)
        yield words["rounds"].format(**rounds.groupdict()) if rounds else note
    apart = [row["plan"] for row in found["rows"] if row["facts"] != found["facts"]]
    if apart:
        yield words["apart"].format(", ".join(apart))
    unsteady = [row["plan"] for row in found["rows"] if _is_unsteady(row["ms_per_step"])]
    if unsteady and found["is_accelerator"]:
        yield words["spread"].format(", ".join(unsteady))
    for what, problem in found.get("problems", {}).items():
        yield words["problem"].format(what, problem)


# What `gapless.compare` says of rounds that were left out.
_ROUNDS = re.compile(r"The time limit allowed (?P<done>\d+) of (?P<total>\d+) rounds\.")


def _is_unsteady(spread: Mapping[str, Any]) -> bool:
    return bool(spread["max"] - spread["min"] > 0.1 * spread["median"])


def verdict_lines(files: Files, language: Language) -> Iterator[str]:
    """Return how many claims have each verdict, a line for each precision; none without figures."""
    words, colon = _WORDS[language], "：" if language == "zh" else ": "
    if not any(_results(files, name) for name in _shown(files)):
        yield words["folded"].format(len(CLAIMS))
        return
    for name in _shown(files):
        found = _results(files, name)
        if found is None:
            yield f"* {name}{colon}{words['missing']}"
            continue
        of = counts(found)
        text = words["verdicts"].format(name, of[CONFIRMED], of[REFUTED], of[NOT_MEASURABLE])
        yield f"* {text}"


def claims_lines(files: Files, language: Language) -> Iterator[str]:
    """Return the claims plan by plan, a line for what several documents say, and then the reasons."""
    names = _shown(files)
    found = {name: _results(files, name) for name in names}
    if not any(found.values()):
        return
    letters: dict[str, str] = {}
    yield _WORDS[language]["claims"].format(", ".join(names))
    for plan, groups in itertools.groupby(_groups(), key=_plan_of):
        yield from ("", f"`{plan}`", "")
        for group in groups:
            of_group = [results and results[group[0]] for results in found.values()]
            reasons = dict.fromkeys(one.finding.reason for one in of_group if one)
            for reason in reasons:
                letters.setdefault(reason, _letter(len(letters)))
            yield _WORDS[language]["claim"].format(
                said=_said([CLAIMS[at] for at in group], language),
                verdicts=_verdicts(of_group, language),
                why=", ".join(letters[reason] for reason in reasons),
            )
    yield ""
    yield _WORDS[language]["reasons"]
    yield ""
    for reason, letter in letters.items():
        yield f"* {letter}: {REASONS[language][reason]}"


def _groups() -> list[list[int]]:
    """Return the places of the claims, by plan, those together that one figure and range decide."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for at, claim in enumerate(CLAIMS):
        key = (claim.plan, claim.figure, claim.low, claim.high, claim.than)
        groups.setdefault(key, []).append(at)
    plans = list(ORIGINS_NAMES["en"])
    return sorted(groups.values(), key=lambda group: plans.index(_plan_of(group)))


def _plan_of(group: Sequence[int]) -> str:
    return CLAIMS[group[0]].plan


def _letter(number: int) -> str:
    return chr(ord("a") + number)


def _said(claims: Sequence[Claim], language: Language) -> str:
    where = ";".join(f"{claim.document}:{claim.lines.replace(' ', '')}" for claim in claims)
    first = claims[0]
    if language == "zh":
        return f"{where}「{first.quote}」"
    return f"{first.text} ({where})"


def _verdicts(results: Sequence[Result | None], language: Language) -> str:
    """Return a verdict and its figure for each precision; a verdict that stays is not said again."""
    told, parts = None, []
    for result in results:
        if result is None:
            parts.append(_WORDS[language]["missing"])
        elif result.verdict == NOT_MEASURABLE:
            parts.append("–")
        else:
            again = result.verdict == told
            verdict = "" if again else f"**{VERDICTS[language][result.verdict]}** "
            parts.append(f"{verdict}{_short(result)}".strip())
            told = result.verdict
    return ", ".join(part for part in parts if part)


def _short(result: Result) -> str:
    """Return the change alone where there is one, else the first figure, and a sign for its side."""
    text = result.finding.text
    signs = [sign for words, sign in _SIGNS.items() if words in f"{text}{result.side}"]
    changes = re.findall(r"\(([+-]?[\d.]+[%x]?)\)", text)
    figure = changes[-1] if changes else re.split(r"[;,](?! kernels) ", text)[0]
    for words, short in _SHORT:
        figure = figure.replace(words, short)
    figure = figure.removesuffix(" of one core").replace(" -> ", "→").replace(" %", "%")
    return "".join([figure, *signs])


def tuning_lines(files: Files, language: Language) -> Iterator[str]:
    """Return the tables of the intervals."""
    words = _WORDS[language]
    tuned = {name: found for name, found in files.items() if found.get("tuning")}
    if not tuned:
        yield words["untuned"]
    for name, found in tuned.items():
        intervals = [item["interval"] for item in found["tuning"][0]["intervals"]]
        yield f"{name}, {_conditions(found['tuning_facts'], words)}"
        yield ""
        yield f"| {words['sentences']} | {' | '.join(words['every'].format(n) for n in intervals)} |"
        yield f"|--:|{'--:|' * len(intervals)}"
        for row in found["tuning"]:
            yield f"| {row['sentences']} | {' | '.join(_tuned(row['intervals']))} |"


def _tuned(items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    best = min(items, key=lambda item: float(item["ms"]))
    for item in items:
        near = item["q1"] <= best["q3"] and best["q1"] <= item["q3"]
        yield f"**{item['ms']:.2f}**" if near else f"{item['ms']:.2f}"


def _shown(files: Files) -> list[str]:
    return [name for name in PRECISIONS if name in files or name != "tf32"]


def _results(files: Files, name: str) -> list[Result] | None:
    found = files.get(name)
    return check_claims(found) if found and found.get("rows") else None


# --- the Chinese page ---


def filled(text: str, files: Files) -> str:
    """Return a page with what was measured between its marks, `<!-- measured: NAME -->` to `end`.

    Args:
        text: of the page.
        files: of a folder.

    Raises:
        ValueError: a mark has no end, or names nothing that can be filled in.
    """
    parts = text.split(_MARK)
    kept = [parts[0]]
    for part in parts[1:]:
        name, closed, rest = part.partition(" -->\n")
        _, ended, after = rest.partition(_END)
        if not closed or not ended or name not in _PARTS:
            raise ValueError(f"{_MARK}{name!r} is no mark with a {_END}; the names are {_PARTS}")
        body = "\n".join(_part(name, files))
        kept.append(f"{name} -->\n\n{body}\n\n{_END}{after}")
    return _MARK.join(kept)


_MARK = "<!-- measured: "
_END = "<!-- end -->"
_PARTS = ("state", "plans", "verdicts", "claims", "tuning")


def _part(name: str, files: Files) -> Iterator[str]:
    if name == "state":
        yield from state_lines(files, "zh")
    elif name == "plans":
        yield from plans_lines(files, "zh")
    elif name == "verdicts":
        yield from verdict_lines(files, "zh")
    elif name == "claims":
        yield from claims_lines(files, "zh")
    else:
        yield from tuning_lines(files, "zh")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages; return 0, or 2 if a file cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.origin_page", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("folder", type=Path, nargs="?", default=RESULTS)
    folder = parser.parse_args(arguments).folder
    try:
        print(f"written: {write_page(folder)}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{folder} cannot be rendered: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
