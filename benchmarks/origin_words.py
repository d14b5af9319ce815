"""What a page about the origin says, in English and in Chinese: reasons, verdicts, columns.

Needs neither torch nor gapless.
"""

from __future__ import annotations

from typing import Literal, TypeAlias


Language: TypeAlias = Literal["en", "zh"]

REASONS: dict[Language, dict[str, str]] = {
    "en": {
        "counted": "Waits are counted, not timed: the plan waits where its settings say.",
        "waits_launch": "Launching a step takes the host longer than its kernels take: when the host asks, "
        "the device is all but done.",
        "waits_device": "The device is the slower one: under every plan the host waits for it somewhere.",
        "waits_longer": "The device is the slower one, so fewer waits are longer ones.",
        "time_slower": "Its streams, events and transfers cost the host more than the waits that it saves.",
        "time_launch": "Launches bound the step: its waits take a fraction of a millisecond, and no more can be saved.",
        "time_device": "Kernels bound the step: no plan that runs the same kernels can save more than the "
        "rest.",
        "busy_launch": "Between kernels the device waits for launches, not for a host that waits.",
        "busy_device": "Kernels follow one another.",
        "idle_gone": "Without it most of the time is gone in which no kernel runs.",
        "idle_stays": "What stays idle without it lies between the kernels of a step.",
        "spins": "One thread launches without a break, and spins while it waits: both are processor time.",
        "sleeps": "The thread that launches sleeps in some of its waits, for the device or the loader.",
        "read_after_wait": "The host has waited for the batch before it reads: a read only fetches a number.",
        "held_once": "Weights, optimizer state and activations are held once under every plan.",
        "rounds_alike": "Memory of tensors after the timed rounds, less that before them.",
        "autograd_streams": "Autograd runs each backward operation on the stream of its forward operation, "
        "and the next forward pass needs the updated weights.",
        "compared": "Every loss and, after every step, every tensor was compared with a plain loop.",
        "other_device": "The origin does not name its GPU.",
        "only_time": "Every plan is one setting here, so only its speed counts.",
        "timed": "No trace of kernels says why.",
        "effort": "It is about the origin's own work on its code.",
        "usage": "What others do or recommend is not found out by a run.",
        "tuning": "See the intervals below.",
        "cpu": "A CPU works in the host's own order: nothing to wait for, no device to keep busy.",
        "absent": "The plan was not compared.",
        "no_waits_before": "There was no wait before.",
        "no_reads": "No loss was read by itself.",
        "no_others": "No other plan of the origin was compared.",
        "no_utilisation": "There is no figure of the device's use here.",
        "no_memory": "There is no memory of the device's own here.",
        "short_rounds": "The rounds are too short to tell processor time.",
        "not_compared": "Bits were not compared.",
    },
    "zh": {
        "counted": "这里数的是次数，不是时间：方案在设定的地方等待。",
        "waits_launch": "主机发射一步比设备执行它更久：主机去等的时候，设备几乎已经做完了。",
        "waits_device": "设备是较慢的一方：无论哪个方案，主机总要在某处等它。",
        "waits_longer": "设备是较慢的一方，所以等得少了，每次就更久。",
        "time_slower": "它的 stream、event 和传输给主机增加的负担，比省下的等待还多。",
        "time_launch": "瓶颈在发射，等待只占零点几毫秒：去掉等待最多也只能省下这么多。",
        "time_device": "瓶颈在 kernel：只要跑的 kernel 相同，最多只能省下其余的时间。",
        "busy_launch": "kernel 之间设备等的是发射，不是在等主机结束等待。",
        "busy_device": "kernel 一个接一个。",
        "idle_gone": "没有它，没有 kernel 在跑的时间就少了大半。",
        "idle_stays": "没有它也仍然空闲的时间，在一步的 kernel 之间。",
        "spins": "只有一个线程在不停地发射，等待时它也在自旋：两者都算作 CPU 时间。",
        "sleeps": "发射的线程在有些等待（等设备或等加载进程）时睡眠。",
        "read_after_wait": "读取之前主机已经等过这个 batch，读取只是取回一个数。",
        "held_once": "无论哪个方案，权重、优化器状态和激活值都只存一份。",
        "rounds_alike": "计时轮次结束后张量占用的内存，减去开始前的。",
        "autograd_streams": "autograd 让每个反向算子跑在其前向算子的 stream 上，而下一个前向要用更新后的权重。",
        "compared": "每个 loss 以及每一步之后的每个张量，都与朴素循环逐位比对过。",
        "other_device": "原文没有写明它的 GPU。",
        "only_time": "在这里每个方案都只是一个选项，所以只看速度。",
        "timed": "没有 kernel 记录，说不出原因。",
        "effort": "这说的是原项目自己改代码的工作量。",
        "usage": "别人怎么做、怎么推荐，跑一次实验看不出来。",
        "tuning": "见下面的间隔实测。",
        "cpu": "CPU 按主机自己的顺序执行：没有要等的设备，也没有要喂饱的设备。",
        "absent": "没有测这个方案。",
        "no_waits_before": "优化前就没有等待。",
        "no_reads": "没有单独读取 loss。",
        "no_others": "没有测原文的其他方案。",
        "no_utilisation": "这里没有设备利用率的数据。",
        "no_memory": "这里没有设备自己的内存。",
        "short_rounds": "轮次太短，量不出 CPU 时间。",
        "not_compared": "没有逐位比对。",
    },
}

CONFIRMED = "confirmed"
REFUTED = "refuted"
NOT_MEASURABLE = "not measurable here"

VERDICTS: dict[Language, dict[str, str]] = {
    "en": {name: name for name in (CONFIRMED, REFUTED, NOT_MEASURABLE)},
    "zh": {CONFIRMED: "属实", REFUTED: "不成立", NOT_MEASURABLE: "此处无法测量"},
}

# Of the texts of findings, which are numbers but for these.
_PHRASES = {
    "within the spread of the rounds": "在各轮的波动之内",
    "bit-identical": "逐位相同",
    "different bits": "不同",
    "more than claimed": "比原文多",
    "less than claimed": "比原文少",
    "% of one core": "%（单核）",
    " cores": " 个核",
    "% of ": "%／",
}


def in_language(text: str, language: Language) -> str:
    """Return the text of a finding in a language."""
    if language == "zh":
        for phrase, said in _PHRASES.items():
            text = text.replace(phrase, said)
    return text
