"""Check what the documents of this project's origin claim against a measured comparison.

    gapless compare --json out.json
    python3 -m benchmarks.origin_claims out.json

Five documents, 000 to 004, described a training system and what each plan would gain, before
anything was measured. `CLAIMS` has every claim under the document that makes it: line, heading and
words of the document, the plan, the figure that decides, and the range in which it has to lie.
Below the range a claim is refuted, and above it as well, which the finding says. Where a document
names one end alone, the range has no other. Times also have to differ by more than the noise.

What a document calls "before" is its own: 004 starts from a loop that reads every loss, 000 to 002
from one that has the losses of 004 already, and 003 from the plan of 000.

This program needs the file alone: neither torch nor gapless.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import origin_figures as figures
from benchmarks.origin_words import (
    CONFIRMED,
    NOT_MEASURABLE,
    REASONS,
    REFUTED,
    Language,
    in_language,
)


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.origin_figures import Figure, Finding, Rows


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document of the origin.

    Attributes:
        number: of it.
        title: its first heading.
        topic: the same in English.
        before: the plan that it starts from.
    """

    number: str
    title: str
    topic: str
    before: str


DOCUMENTS = (
    Document(
        number="000",
        title="方案 2 + 方案 3 实施总结",
        topic="events and an interval, as they were built",
        before="deferred-loss",
    ),
    Document(
        number="001",
        title="CUDA Stream 优化方案执行摘要",
        topic="the summary that recommends a plan",
        before="deferred-loss",
    ),
    Document(
        number="002",
        title="CUDA Stream 优化最佳方案分析",
        topic="the four plans compared",
        before="deferred-loss",
    ),
    Document(
        number="003",
        title="阶段 2：4 个 Stream 深度流水线实施总结",
        topic="four streams, as they were built",
        before="events-interval",
    ),
    Document(
        number="004",
        title="方案 1：延迟 Loss 提取实现总结",
        topic="losses read late, as they were built",
        before="blocking",
    ),
)
_BEFORE = {document.number: document.before for document in DOCUMENTS}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of one document.

    Attributes:
        document: its number.
        lines: of the document where it stands.
        heading: above it.
        quote: its words.
        plan: that it is about.
        text: what it says, in English.
        figure: what is measured.
        low: the least that confirms it.
        high: the most that confirms it.
        than: the plan that it is compared with.
    """

    document: str
    lines: str
    heading: str
    quote: str
    plan: str
    text: str
    figure: Figure
    low: float
    high: float
    than: str


def _of(document: str) -> Any:
    """Return a function that makes claims of a document."""

    def claim(
        lines: str,
        heading: str,
        quote: str,
        plan: str,
        text: str,
        figure: Figure,
        low: float = -math.inf,
        high: float = math.inf,
        than: str = _BEFORE[document],
    ) -> Claim:
        return Claim(
            document=document,
            lines=lines,
            heading=heading,
            quote=quote,
            plan=plan,
            text=text,
            figure=figure,
            low=low,
            high=high,
            than=than,
        )

    return claim


_A, _B, _C, _D, _E = (_of(document.number) for document in DOCUMENTS)

_WAITS = "the host waits 20 to 30 ms a batch"
_CPU = "CPU utilisation is 60 to 70 %"
_CPU_AFTER = "CPU utilisation is 80 to 85 %"
_CPU_MORE = "CPU utilisation rises by 20 to 25 points"
_TENTH = "of N host waits ceil(N/10) are left (-90 %)"
_WAITS_LESS = "the host waits 90 % less"
_WAITS_AFTER = "the host waits 2 to 3 ms a batch"
_GPU = "GPU utilisation is 70 to 80 %"
_TO_FIVE = "an epoch takes 3 to 5 % less time"
_TO_FIFTEEN = "an epoch takes 10 to 15 % less time"
_MEMORY_STAYS = "hardly any memory is added"
_TWO_TO_THREE = "memory becomes 2 to 3 times as much"
_SAME = "training gives the same"
_NO_LEAK = "no memory leaks"
_BEST = "it pays best of the origin's plans"
_OVERLAP = "transfer, forward and backward overlap in part"
_EFFORT = "it takes so many days, lines or points of difficulty"
_STANDARD = "it is what PyTorch, NVIDIA and others recommend"

# fmt: off
CLAIMS: tuple[Claim, ...] = (
    _A("116", "优化前", "同步次数 N 次（每个 batch）", "deferred-loss", "the host waits once every batch", figures.waits_of_batches, 1, 1),
    _A("117, 181", "优化前", "CPU 等待时间 20-30ms/batch", "deferred-loss", _WAITS, figures.waited, 20, 30),
    _A("118, 182", "优化前", "CPU 利用率 60-70%", "deferred-loss", _CPU, figures.host_cpu, 60, 70),
    _A("125, 180", "优化后", "同步次数 N/10 次（每 10 个 batch） 减少 90%", "events-interval", _TENTH, figures.tenth_of_waits, 0),
    _A("126, 181", "优化后", "CPU 等待时间 2-3ms/batch", "events-interval", _WAITS_AFTER, figures.waited, 2, 3),
    _A("126, 181", "优化后", "CPU 等待时间 2-3ms/batch 减少 90%", "events-interval", _WAITS_LESS, figures.waited_less, 0.9),
    _A("127, 182", "优化后", "CPU 利用率 80-85%", "events-interval", _CPU_AFTER, figures.host_cpu, 80, 85),
    _A("127, 182", "优化后", "CPU 利用率 80-85% 提升 20-25%", "events-interval", _CPU_MORE, figures.host_cpu_gained, 20, 25),
    _A("183, 219", "预期结果", "训练时间：提升 3-5%", "events-interval", _TO_FIVE, figures.time_saved, 0.03, 0.05),
    _A("186", "预期结果", "所有 loss 都被正确提取", "events-interval", "every loss is read, and right", figures.same_losses),
    _A("187", "预期结果", "训练结果与优化前一致", "events-interval", _SAME, figures.same_losses),
    _A("188", "预期结果", "无内存泄漏", "events-interval", _NO_LEAK, figures.memory_grown),
    _A("207", "总结", "符合业界标准（PyTorch、NVIDIA 推荐）", "events-interval", _STANDARD, figures.usage),

    _B("7", "核心问题", "GPU 利用率低（70-80%）", "deferred-loss", _GPU, figures.utilisation, 70, 80),
    _B("8", "核心问题", "根本原因：每个 batch 都调用 `synchronize()`，阻塞 CPU", "events-interval", "the wait of every batch is why the GPU idles", figures.idle_removed),
    _B("9", "核心问题", "训练时间浪费 20-30 秒/1000 batch", "events-interval", "the waits waste 20 to 30 s of 1,000 batches", figures.seconds_saved, 20, 30),
    _B("27, 107", "方案对比（一目了然）", "方案 2+3 ⭐⭐⭐⭐⭐ 1-2 天 3-5%", "events-interval", _TO_FIVE, figures.time_saved, 0.03, 0.05),
    _B("28", "方案对比（一目了然）", "方案 2 ⭐⭐⭐⭐⭐ 1 天 3-5%", "events", _TO_FIVE, figures.time_saved, 0.03, 0.05),
    _B("29", "方案对比（一目了然）", "方案 3 ⭐⭐⭐⭐⭐ 0.5 天 3-5%", "interval", _TO_FIVE, figures.time_saved, 0.03, 0.05),
    _B("30", "方案对比（一目了然）", "方案 1 ⭐⭐⭐⭐ 3-5 天 10-15%", "four-stream", _TO_FIFTEEN, figures.time_saved, 0.10, 0.15),
    _B("31", "方案对比（一目了然）", "方案 4 ⭐⭐⭐⭐⭐ 1-2 周 10-15%", "full", _TO_FIFTEEN, figures.time_saved, 0.10, 0.15),
    _B("27, 119", "方案对比（一目了然）", "🥇 强烈推荐", "events-interval", _BEST, figures.pays_best),
    _B("104", "预期效果", "同步次数 N 次 N/10 次 减少 90%", "events-interval", _TENTH, figures.tenth_of_waits, 0),
    _B("105", "预期效果", "CPU 等待时间 20-30ms/batch", "deferred-loss", _WAITS, figures.waited, 20, 30),
    _B("105", "预期效果", "20-30ms/batch 2-3ms/batch", "events-interval", _WAITS_AFTER, figures.waited, 2, 3),
    _B("105", "预期效果", "2-3ms/batch 减少 90%", "events-interval", _WAITS_LESS, figures.waited_less, 0.9),
    _B("106", "预期效果", "CPU 利用率 60-70%", "deferred-loss", _CPU, figures.host_cpu, 60, 70),
    _B("106", "预期效果", "CPU 利用率 60-70% 80-85%", "events-interval", _CPU_AFTER, figures.host_cpu, 80, 85),
    _B("106", "预期效果", "60-70% 80-85% 提升 20-25%", "events-interval", _CPU_MORE, figures.host_cpu_gained, 20, 25),
    _B("115-117", "完全符合业界标准", "PyTorch 官方推荐：使用 Event 替代 synchronize", "events-interval", _STANDARD, figures.usage),
    _B("121, 124", "性价比最高", "实施时间：1-2 天（最短）", "events-interval", _EFFORT, figures.effort),
    _B("123", "性价比最高", "风险：极低（几乎无风险）", "events-interval", "there is hardly any risk: " + _SAME, figures.same_losses),

    _C("9, 53", "1.1 四个方案概览", "方案 1 增加 Stream 数量（4个） 中等 高（10-15%）", "four-stream", _TO_FIFTEEN, figures.time_saved, 0.10, 0.15),
    _C("10, 112", "1.1 四个方案概览", "方案 2 使用 Event 替代 synchronize 低 中（3-5%）", "events", _TO_FIVE, figures.time_saved, 0.03, 0.05),
    _C("11, 164", "1.1 四个方案概览", "方案 3 减少同步频率 极低 中（3-5%）", "interval", _TO_FIVE, figures.time_saved, 0.03, 0.05),
    _C("12, 206, 309", "1.1 四个方案概览", "方案 4 多 Stream + Event + 异步加载 高 极高（10-15%）", "full", _TO_FIFTEEN, figures.time_saved, 0.10, 0.15),
    _C("52, 294", "2.1.2 优势分析", "GPU 始终有工作，利用率可达 90-95%", "four-stream", "GPU utilisation is 90 to 95 %", figures.utilisation, 90, 95),
    _C("60", "2.1.3 劣势分析", "内存增加 2-3 倍", "four-stream", _TWO_TO_THREE, figures.memory_times, 2, 3),
    _C("104", "2.2.2 优势分析", "非阻塞 CPU 可以在等待时做其他工作", "events", "the host waits less, since it can do other work meanwhile", figures.waited_less, 0.1),
    _C("113", "2.2.3 劣势分析", "单独使用效果有限", "events", "on its own it gains little (less than 3 %)", figures.little_saved),
    _C("128", "2.2.5 综合评分", "几乎无内存开销", "events", _MEMORY_STAYS, figures.memory_times, 0.95, 1.05),
    _C("155", "2.3.2 优势分析", "同步次数减少 90%", "interval", _TENTH, figures.tenth_of_waits, 0),
    _C("179", "2.3.5 综合评分", "几乎无内存开销", "interval", _MEMORY_STAYS, figures.memory_times, 0.95, 1.05),
    _C("206", "2.4.2 优势分析", "性能最优", "full", "it is the fastest of the origin's plans", figures.pays_best),
    _C("216, 233", "2.4.3 劣势分析", "内存增加 2-3 倍", "full", _TWO_TO_THREE, figures.memory_times, 2, 3),
    _C("241-265", "三、综合对比分析", "加权总分", "interval", _EFFORT, figures.effort),
    _C("278, 428", "阶段 1：快速优化（方案 3 + 方案 2）", "同步次数：减少 90%", "events-interval", _TENTH, figures.tenth_of_waits, 0),
    _C("279, 429", "阶段 1：快速优化（方案 3 + 方案 2）", "CPU 等待时间：减少 90%", "events-interval", _WAITS_LESS, figures.waited_less, 0.9),
    _C("280, 431", "阶段 1：快速优化（方案 3 + 方案 2）", "训练时间：提升 3-5%", "events-interval", _TO_FIVE, figures.time_saved, 0.03, 0.05),
    _C("295, 593", "阶段 2：深度优化（方案 1）", "训练时间：再提升 5-10%", "four-stream", "an epoch takes 5 to 10 % less time than in stage 1", figures.time_saved, 0.05, 0.10, "events-interval"),
    _C("319, 323", "4.1 推荐方案：方案 3 + 方案 2（组合方案）", "性价比最高", "events-interval", _BEST, figures.pays_best),
    _C("429, 451", "4.3 预期效果", "CPU 等待时间 20-30ms/batch", "deferred-loss", _WAITS, figures.waited, 20, 30),
    _C("429", "4.3 预期效果", "20-30ms/batch 2-3ms/batch", "events-interval", _WAITS_AFTER, figures.waited, 2, 3),
    _C("430, 450", "4.3 预期效果", "CPU 利用率 60-70%", "deferred-loss", _CPU, figures.host_cpu, 60, 70),
    _C("430", "4.3 预期效果", "CPU 利用率 60-70% 80-85%", "events-interval", _CPU_AFTER, figures.host_cpu, 80, 85),
    _C("430", "4.3 预期效果", "60-70% 80-85% 提升 20-25%", "events-interval", _CPU_MORE, figures.host_cpu_gained, 20, 25),
    _C("439", "4.4 风险分析", "如果数据加载快，提升可能有限，但仍有收益", "events-interval", "where data comes fast there is a gain all the same", figures.time_saved, 0),
    _C("449", "5.1 问题识别流程", "GPU 利用率低（70-80%）", "deferred-loss", _GPU, figures.utilisation, 70, 80),
    _C("454", "5.1 问题识别流程", "每个 batch 都同步", "events-interval", "the wait of every batch is why the GPU idles", figures.idle_removed),
    _C("455", "5.1 问题识别流程", "Stream 数量不足", "four-stream", "too few streams are why the GPU idles", figures.idle_removed, than="events-interval"),

    _D("108", "优化前（2 个 Stream）", "GPU 利用率 75-85%", "events-interval", "with two streams GPU utilisation is 75 to 85 %", figures.utilisation, 75, 85),
    _D("117, 248", "优化后（4 个 Stream）", "GPU 利用率 85-95%", "four-stream", "with four streams GPU utilisation is 85 to 95 %", figures.utilisation, 85, 95),
    _D("117, 248", "优化后（4 个 Stream）", "GPU 利用率 85-95% 提升 10-15%", "four-stream", "GPU utilisation rises by 10 to 15 points", figures.utilisation_gained, 10, 15),
    _D("118, 250", "优化后（4 个 Stream）", "Stream 并行度 高 提升", "four-stream", "streams run side by side more than before", figures.overlap_gained, figures.LEAST_OVERLAP),
    _D("195", "优化后（4 个 Stream）", "优势：传输、前向、反向可以部分重叠", "four-stream", _OVERLAP, figures.overlap_gained, figures.LEAST_OVERLAP),
    _D("249", "预期结果", "训练时间：再提升 3-5%", "four-stream", "an epoch takes 3 to 5 % less time than in stage 1", figures.time_saved, 0.03, 0.05),
    _D("249", "预期结果", "结合阶段 1，总提升 6-10%", "four-stream", "an epoch takes 6 to 10 % less time, both stages together", figures.time_saved, 0.06, 0.10, "deferred-loss"),
    _D("253", "预期结果", "所有 Stream 都被正确使用", "four-stream", "forward and backward run on streams of their own", figures.streams_used, 2),
    _D("255", "预期结果", "训练结果与优化前一致", "four-stream", _SAME, figures.same_losses),
    _D("256", "预期结果", "无内存泄漏", "four-stream", _NO_LEAK, figures.memory_grown),

    _E("12", "2.1 核心思路", "每个 batch 都调用 `loss.item<float>()` 强制 CPU-GPU 同步", "blocking", "a loss is read every batch", figures.reads_of_losses, 1, 1),
    _E("139", "4.1 同步操作减少", "每次同步：~0.1-0.5ms", "blocking", "a read of the loss blocks the host 0.1 to 0.5 ms", figures.cost_of_a_read, 0.1, 0.5),
    _E("140", "4.1 同步操作减少", "总开销：100-500ms", "blocking", "the reads of 1,000 batches take 100 to 500 ms", figures.cost_of_reads, 100, 500),
    _E("146, 151", "4.1 同步操作减少", "减少：90% 的同步操作", "deferred-loss", "of N reads of the loss ceil(N/10) are left (-90 %)", figures.tenth_of_reads, 0),
    _E("147", "4.1 同步操作减少", "每次同步：~0.1-0.5ms（批量提取可能稍慢，但总次数少）", "deferred-loss", "a bulk read blocks the host 0.1 to 0.5 ms", figures.cost_of_a_read, 0.1, 0.5),
    _E("148", "4.1 同步操作减少", "总开销：10-50ms", "deferred-loss", "the reads of 1,000 batches take 10 to 50 ms", figures.cost_of_reads, 10, 50),
    _E("156", "4.2 性能提升", "同步开销：减少 90%", "deferred-loss", "the reads take 90 % less time", figures.reads_cost_less, 0.9),
    _E("157, 282", "4.2 性能提升", "GPU 利用率：提升 5-10%", "deferred-loss", "GPU utilisation rises by 5 to 10 points", figures.utilisation_gained, 5, 10),
    _E("158, 283", "4.2 性能提升", "总时间：预计提升 2-5%", "deferred-loss", "an epoch takes 2 to 5 % less time", figures.time_saved, 0.02, 0.05),
    _E("162", "4.2 性能提升", "优化前：每个 epoch ~120s", "blocking", "an epoch of 1,000 batches takes about 120 s", figures.epoch_seconds, 110, 130),
    _E("163", "4.2 性能提升", "优化后：每个 epoch ~115-118s", "deferred-loss", "an epoch of 1,000 batches takes 115 to 118 s", figures.epoch_seconds, 115, 118),
    _E("163", "4.2 性能提升", "优化后：每个 epoch ~115-118s（提升 2-4%）", "deferred-loss", "an epoch takes 2 to 4 % less time", figures.time_saved, 0.02, 0.04),
    _E("170, 298", "4.3 内存影响", "内存开销：可忽略", "deferred-loss", _MEMORY_STAYS, figures.memory_times, 0.95, 1.05),
    _E("205, 224", "5.2 显示值处理", "不影响最终统计（所有值都会提取）", "deferred-loss", "every loss is read, and right", figures.same_losses),
    _E("249-250", "7.1 提取间隔", "可以增加到 20-30", "deferred-loss", "the interval should be 20 to 30 below 20 sentences a batch, 5 to 10 above 50", figures.tuning),
    _E("288", "8.3 验证准确性", "优化前后的平均 loss 应该相同（或非常接近）", "deferred-loss", _SAME, figures.same_losses),
)
# fmt: on

# Of a figure and of an end of a range, so that 1 - 95 / 100 is five percent.
_ROUNDING = 1e-9


# --- verdicts ---


@dataclass(frozen=True, kw_only=True)
class Result:
    """A claim, and whether what was measured confirms it.

    Attributes:
        claim: of the origin.
        finding: what was measured.
        verdict: confirmed, refuted, or not measurable here.
        side: where a refuted figure lies, such as "more than claimed"; empty if that says nothing.
    """

    claim: Claim
    finding: Finding
    verdict: str
    side: str = ""

    def measured(self, language: Language = "en") -> str:
        """Return the figures in a language; empty if there are none."""
        comma = "，" if language == "zh" else ", "
        text = comma.join(part for part in (self.finding.text, self.side) if part)
        return in_language(text, language)

    def reason(self, language: Language = "en") -> str:
        """Return in a sentence why it is so."""
        return REASONS[language][self.finding.reason]


def check_claims(comparison: Mapping[str, Any]) -> list[Result]:
    """Return every claim with its verdict.

    Args:
        comparison: the file of `gapless compare --json`, or of `benchmarks.origin`.
    """
    found = comparison["rows"]
    rows = {row["plan"]: {**row, "cores": comparison.get("cores")} for row in found}
    is_accelerator = bool(comparison["is_accelerator"])
    tuned = figures.advised_intervals(comparison.get("tuning") or ())
    return [
        _judge(
            claim, tuned if claim.figure is figures.tuning else _found(claim, rows, is_accelerator)
        )
        for claim in CLAIMS
    ]


def _found(claim: Claim, rows: Rows, is_accelerator: bool) -> Finding:
    if claim.figure in (figures.effort, figures.usage):
        return claim.figure({}, {}, rows)
    if claim.plan not in rows or claim.than not in rows:
        return figures.unknown("absent")
    if claim.figure not in figures.TOLD_OF_A_CPU and not is_accelerator:
        return figures.unknown("cpu")
    return claim.figure(rows[claim.plan], rows[claim.than], rows)


def _judge(claim: Claim, finding: Finding) -> Result:
    value, verdict, side = finding.value, CONFIRMED, ""
    if value is None:
        verdict = NOT_MEASURABLE
    elif isinstance(value, bool):
        verdict = CONFIRMED if value else REFUTED
    elif value > claim.high + _ROUNDING:
        verdict, side = REFUTED, "more than claimed"
    elif value < claim.low - _ROUNDING:
        verdict, side = REFUTED, "less than claimed"
    return Result(claim=claim, finding=finding, verdict=verdict, side=side)


def counts(results: Sequence[Result]) -> dict[str, int]:
    """Return how many claims have each verdict."""
    found = [result.verdict for result in results]
    return {verdict: found.count(verdict) for verdict in (CONFIRMED, REFUTED, NOT_MEASURABLE)}


def claims_text(results: Sequence[Result]) -> str:
    """Return the claims under their documents, each with its verdict, figures and reason."""
    return "\n".join(_lines(results))


def _lines(results: Sequence[Result]) -> Iterator[str]:
    yield "The origin's claims, and what was measured"
    for document in DOCUMENTS:
        yield f"{document.number} {document.title}"
        for result in results:
            if result.claim.document == document.number:
                yield f"  {result.verdict}: {result.claim.plan}: {result.claim.text}"
                yield f"    {' '.join(part for part in (result.measured(), result.reason()) if part)}"
    yield ", ".join(f"{count} {verdict}" for verdict, count in counts(results).items())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print which claims hold; return 0, or 2 if the file is no comparison."""
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.origin_claims", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("file", type=Path, help="written by gapless compare --json")
    file = parser.parse_args(arguments).file
    try:
        results = check_claims(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(
            f"{file} is no comparison that can be checked: {type(error).__name__}: {error}; "
            "write one with gapless compare --json",
            file=sys.stderr,
        )
        return 2
    print(claims_text(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
