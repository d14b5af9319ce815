"""What the doctor found, as text for a terminal: the verdict first, then what costs most."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

from gapless.report.figures import MISSING, count, counted, known, milliseconds, percent, ranged
from gapless.report.terminal_text import Page, display_width, shown, table_lines


if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.records.finding import Finding, Part, Session, StepTimes, Trial


# From this share on the device has so much to do that waits of the host cost next to nothing.
_BUSY = 0.9

# The code of calls that blocked and whose line nobody knows.
_UNKNOWN = "GAP021"

_BOLD, _DIM = "1", "2"


def session_text(
    session: Session, *, columns: int = 80, limit: int | None = 10, is_coloured: bool = False
) -> str:
    """Return a session as lines of text.

    Args:
        session: what was seen of one run of a script.
        columns: that the lines may take; only paths and code are longer.
        limit: findings that are shown at most; None for all.
        is_coloured: whether the text is for a terminal that shows bold and dim letters.
    """
    page = Page(columns, is_coloured=is_coloured)
    page.say(_first_line(session), style=_BOLD)
    if (first := first_to_change(session)) is not None:
        sentence = first.mend.splitlines()[0].partition(". ")[0].removesuffix(".")
        page.say(f"First, {place_of(first)}: {sentence}.", rest=2)
    page.say("")
    for fact in _facts(session):
        page.say(fact, rest=2)
    if session.steps is not None:
        _say_steps(page, session.steps)
    for one in session.ranks:
        data, own = milliseconds(one.data_ms), milliseconds(one.own_ms)
        step = f"a step takes {milliseconds(one.step_ms)} ms"
        of_nccl = known(one.collective_ms, lambda ms: f", {milliseconds(ms)} in kernels of NCCL")
        page.say(
            f"rank {one.rank}: {step}, {data} of them batches, {own} without its backward pass and waits"
            f"{'' if of_nccl == MISSING else of_nccl}",
            indent=2,
        )
    _say_findings(page, session, limit)
    if session.trials:
        _say_trials(page, session.trials)
    if session.notes:
        page.say("")
        page.say("Notes", style=_BOLD)
        for note in session.notes:
            page.say(f"- {note}", rest=2)
    return page.text()


# The codes of what a verdict is about, by its first word; of all others where it is about waits.
_CODES_OF = {"LAUNCH-BOUND": "GAP017", "LOADER-BOUND": "GAP016"}


def first_to_change(session: Session) -> Finding | None:
    """Return the costliest finding that the verdict is about; None where no mend helps."""
    found = [one for one in session.findings if one.mend]
    word, steps = session.verdict.partition(":")[0], session.steps
    is_of_device = word == "DEVICE-BOUND" and steps is not None and steps.busy_ms is not None
    if not found or is_of_device or _is_busy(session):
        return None

    def is_meant(one: Finding) -> bool:
        if word == "HOST WAITS":
            return one.code not in _CODES_OF.values()
        return one.code == _CODES_OF.get(word, one.code)

    return next(filter(is_meant, found), found[0])


def place_of(finding: Finding) -> str:
    """Return the line of a finding as editors write it, with its function."""
    site = finding.site
    if site is None:
        return "line unknown" if finding.code == _UNKNOWN else "the whole step"
    return str(site) if site.function in ("", "<module>") else f"{site} in {site.function}"


def circumstances(finding: Finding) -> list[str]:
    """Return where beside its line a finding belongs: a thread, a backward pass, a process."""
    parts = []
    if finding.thread != "main":
        parts.append(f"on thread {finding.thread}")
    if finding.forward is not None:
        source = f": {finding.forward.source}" if finding.forward.source else ""
        parts.append(f"in the backward pass of {finding.forward}{source}")
    if finding.rank is not None:
        parts.append(f"in process {finding.rank}")
    return parts


def versions_of(session: Session) -> str:
    """Return what the script ran with, such as `torch 2.13.0`, with commas between."""
    return ", ".join(f"{name} {version}" for name, version in session.versions.items())


# --- the run ---


def _first_line(session: Session) -> str:
    if session.verdict or not session.findings:
        return session.verdict or "Nothing was found that costs time."
    return counted(len(session.findings), "finding")


def _facts(session: Session) -> list[str]:
    command = " ".join(map(shlex.quote, session.command))
    versions = versions_of(session)
    ranks = f", {session.num_ranks} processes" if session.num_ranks > 1 else ""
    facts = [f"{command} on {session.device}{ranks}" if command else f"{session.device}{ranks}"]
    if session.steps is not None:
        of = f"; a step is {session.step}" if session.step else ""
        facts.append(f"{counted(session.steps.num_steps, 'step')} watched{of}")
    return [*facts, versions] if versions else facts


def _say_steps(page: Page, steps: StepTimes) -> None:
    wall = steps.mean_ms
    page.say("")
    page.say(f"A step takes {ranged(steps.wall_ms)} ms{_on_average(steps)}", style=_BOLD)
    whole = (
        None if steps.busy_ms is None or steps.idle_ms is None else steps.busy_ms + steps.idle_ms
    )
    split = {} if steps.parts_ms is None else vars(steps.parts_ms)
    named = [(_PARTS[part], ms, wall) for part, ms in split.items()]
    parts = [
        *named,
        ("the host waits for the loader", None if named else steps.data_ms, wall),
        ("the host waits for the device", steps.wait_ms, wall),
        (f"the host queues work{_launches(steps)}", steps.launch_ms, wall),
        ("the host does something else", _other_ms(steps, wall), wall),
        ("the device has work", steps.busy_ms, whole),
        ("  other than copies", steps.compute_ms, whole),
        ("  in kernels of NCCL", steps.collective_ms or None, whole),
        ("the device has none", steps.idle_ms, whole),
    ]
    rows = [
        (name, f"{milliseconds(value)} ms", percent(value / of) if of else "")
        for name, value, of in parts
        if value is not None
    ]
    # As wide for every script: the times of two reports stand under each other.
    for line in table_lines(rows, least=(0, 11, 6)) if rows else ():
        page.say_as_it_is(line, indent=2)


_PARTS = {
    "data": "data: batches are made and brought over",
    "forward": "forward pass",
    "backward": "backward pass",
    "update": "update of the weights",
    "other": "other code of the loop",
}


def _launches(steps: StepTimes) -> str:
    return "" if steps.num_launches is None else f", {count(steps.num_launches)} launches"


def _on_average(steps: StepTimes) -> str:
    """Return the mean of all steps where a few long ones keep it from the median: parts are means."""
    return f", {milliseconds(steps.mean_ms)} on average" if steps.is_skewed else ""


def _other_ms(steps: StepTimes, wall: float) -> float | None:
    known = [steps.data_ms, steps.wait_ms, steps.launch_ms]
    if None in known:
        return None
    return max(0.0, wall - sum(part for part in known if part is not None))


# --- findings ---


def _say_findings(page: Page, session: Session, limit: int | None) -> None:
    page.say("")
    findings = session.findings
    if not findings:
        page.say("No findings.")
        return
    is_timed = any(one.waited_ms is not None or one.exposed_ms is not None for one in findings)
    page.say(f"Findings, {'costliest' if is_timed else 'surest'} first", style=_BOLD)
    if _is_busy(session) and "will not help" not in session.verdict:
        page.say("The device is busy nearly all the time: removing these will not help.")
    whole, folded = _folded(findings)
    table = _Table(whole)
    for line in table.legend():
        page.say(line, indent=2)
    page.say_as_it_is(table.head, style=_DIM)
    first_with: dict[str, int] = {}
    shown_ones = whole if limit is None else whole[:limit]
    for number, finding in enumerate(shown_ones, start=1):
        if number > 1:
            page.say("")
        if folded and (number == 1 or finding.part != shown_ones[number - 2].part):
            page.say(TITLES[finding.part], style=_BOLD)
        _say_row(page, table.rows[number - 1], finding)
        _say_about(page, finding)
        _say_mend(page, finding, first_with.setdefault(finding.mend, number), number)
    if left := whole[len(shown_ones) :]:
        page.say("")
        page.say(f"... and {counted(len(left), 'more finding')}{_together(left)}.")
    for line in _folded_lines(folded):
        page.say(line, rest=4)


# What stands above the findings of a part of the program.
TITLES: dict[Part, str] = {
    "step": "In the training step",
    "called": "Called from it",
    "evaluation": "Evaluation",
    "saving": "Saving",
    "set-up": "Set-up, and what runs seldom",
}


def _folded(findings: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Return what is shown whole and what is folded: all but training, where something is of it."""
    whole = [one for one in findings if one.part in ("step", "called")]
    return (whole, [one for one in findings if one not in whole]) if whole else ([*findings], [])


def _folded_lines(findings: Sequence[Finding]) -> list[str]:
    """Return a line for each part: its findings by file, each with its code."""
    lines = [] if not findings else [""]
    for part in dict.fromkeys(one.part for one in findings):
        by_file: dict[str, list[str]] = {}
        for one in findings:
            if one.part == part:
                path, line = (one.site.path, f"{one.site.line} ") if one.site else ("?", "")
                by_file.setdefault(path, []).append(f"{line}{_code(one)}")
        places = "; ".join(f"{path}: {', '.join(its)}" for path, its in by_file.items())
        lines.append(f"{TITLES[part]}: {places}")
    return lines


def _is_busy(session: Session) -> bool:
    share = None if session.steps is None else session.steps.busy_share
    return share is not None and share >= _BUSY


def _together(findings: Sequence[Finding]) -> str:
    """Return what findings that are not shown cost."""
    known = [one.exposed_ms for one in findings if one.exposed_ms is not None]
    return f", with {milliseconds(sum(known))} ms of idle time together" if known else ""


class _Table:
    """Figures of findings in columns; a column in which nothing is known is left out.

    Attributes:
        head: the names of the columns.
        rows: the figures of each finding, with its code.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        cells = [_figures(finding) for finding in findings]
        self._names = [name for name in cells[0] if any(row[name] != MISSING for row in cells)]
        self._certainties = {finding.certainty for finding in findings}
        numbered = [
            (str(number), *(row[name] for name in self._names))
            for number, row in enumerate(cells, start=1)
        ]
        self.head, *lines = table_lines([("", *self._names), *numbered], num_left=0)
        self.rows = [
            f"{line}  {_code(finding)}" for line, finding in zip(lines, findings, strict=True)
        ]

    def legend(self) -> list[str]:
        """Return what the columns mean."""
        meanings = {
            "waited ms": "waited: the host stood still for that long in a step.",
            "idle ms": "idle: the device had no work because of it; no mend can gain more.",
            "gain ms": "gain: predicted if this alone is mended.",
        }
        said = [" ".join(text for name, text in meanings.items() if name in self._names)]
        if self._certainties - {"seen"}:
            said.append("What was not timed would wait on a GPU, as the syntax shows.")
        if "maybe" in self._certainties:
            said.append("maybe: the syntax does not show whether the value is on the GPU.")
        return [line for line in said if line]


def _code(finding: Finding) -> str:
    return f"{finding.code} maybe" if finding.certainty == "maybe" else finding.code


def _figures(finding: Finding) -> dict[str, str]:
    return {
        "waited ms": milliseconds(finding.waited_ms),
        "idle ms": milliseconds(finding.exposed_ms),
        "gain ms": milliseconds(finding.gain_ms),
        "of a step": known(finding.share, _at_most),
        "count": known(finding.per_step, count),
    }


def _at_most(share: float) -> str:
    text = percent(share)
    return text if text.startswith(("<", "0 ")) else f"<= {text}"


def _say_row(page: Page, row: str, finding: Finding) -> None:
    """Say the figures, and the line beside them where there is room."""
    place = place_of(finding)
    if display_width(f"{row}  {shown(place)}") <= page.columns:
        page.say_as_it_is(f"{row}  {place}")
        return
    page.say_as_it_is(row)
    page.say_as_it_is(place, indent=4)


def _say_about(page: Page, finding: Finding) -> None:
    if finding.site is not None and finding.site.source:
        page.say_cut(finding.site.source, indent=8, style=_DIM)
    if where := _where(finding):
        page.say(where, indent=4)
    page.say(finding.cause, indent=4)


def _where(finding: Finding) -> str:
    """Return what else is known of the place as a sentence; empty if nothing."""
    text = ", ".join(circumstances(finding))
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _say_mend(page: Page, finding: Finding, first: int, number: int) -> None:
    """Say what to write instead; the second time, where it stands."""
    if not finding.mend:
        return
    if first != number:
        page.say(f"Instead: as for {first}.", indent=4)
        return
    sentence, *code = finding.mend.splitlines()
    page.say(f"Instead: {sentence}", indent=4)
    for line in code:
        page.say_as_it_is(line, indent=8)


# --- trials ---


def _say_trials(page: Page, trials: Sequence[Trial]) -> None:
    page.say("")
    page.say("Measured: steps a second, in turns with the script as written", style=_BOLD)
    for trial in trials:
        page.say(f"{trial.name}: {_outcome(trial)}", indent=2, rest=2)
        for line in (trial.change, *trial.details):
            page.say(line, indent=4)


def _outcome(trial: Trial) -> str:
    now, before = trial.steps_per_second, trial.baseline
    if now is None or before is None or trial.gain is None:
        return f"not measured: {trial.refusal}" if trial.refusal else "not measured"
    figures = f"{ranged(now)} instead of {ranged(before)}"
    if now.overlaps(before):
        return f"{figures}: no clear difference"
    return f"{figures}: {abs(trial.gain - 1.0) * 100.0:.1f} % {'faster' if trial.gain > 1 else 'slower'}"


# --- a look at source files ---


def static_text(findings: Sequence[Finding], *, num_files: int) -> str:
    """Return findings as lines of text, then how many there are.

    The training step comes first; what is no training is folded. A mend is shown with the first finding
    that has it.

    Args:
        findings: of the syntax, by part of the program.
        num_files: that were looked at.
    """
    lines: list[str] = []
    said: set[str] = set()
    whole, folded = _folded(findings)
    if files := by_file(findings):
        lines.append("Findings by file, those in the training step first:")
        lines += [
            f"  {path}: {training} in training, {num} in all" for path, training, num in files
        ]
        lines.append("")
    title = ""
    for one in whole:
        if folded and title != TITLES[one.part]:
            title = TITLES[one.part]
            lines.append(f"{title}:")
        mark = " maybe:" if one.certainty == "maybe" else ""
        lines.append(f"{one.site or '?'}: {one.code}{mark} {one.cause}")
        if one.mend not in said:
            said.add(one.mend)
            lines += [f"    {line}" for line in one.mend.splitlines()]
    return "\n".join([*lines, *_folded_lines(folded), _total(findings, num_files)]) + "\n"


# From so many findings on a summary by file comes first.
_MANY = 40


def by_file(findings: Sequence[Finding]) -> list[tuple[str, int, int]]:
    """Return each file, how many of its findings are of training, and how many there are; nothing if these are few."""
    paths = Counter(one.site.path for one in findings if one.site)
    of_training = Counter(
        one.site.path for one in findings if one.site and one.part in ("step", "called")
    )
    found = [(path, of_training[path], number) for path, number in paths.items()]
    found.sort(key=lambda one: (-one[1], -one[2], one[0]))
    return found if len(findings) > _MANY else []


def _total(findings: Sequence[Finding], num_files: int) -> str:
    num_maybe = Counter(one.certainty for one in findings)["maybe"]
    maybe = f", {num_maybe} of them maybe," if num_maybe else ""
    return f"{counted(len(findings), 'finding')}{maybe} in {counted(num_files, 'file')}"
