"""Damage every file of a run folder in every way, and see that nothing damaged is ever used.

    cd tests && PYTHONPATH=.:../src python -m faults.run_damage --count 1000 --jobs 2

A run is stopped on its way. Each case copies it, damages one file, and lets `gapless checkpoint
verify`, `gapless translate` and `gapless train --resume` have it. Each of them either does what it
does without the damage, to the last bit, or refuses in one line; a damage to a state that would have
been used is named. Prints what went wrong and a table of the outcomes; exits with 1 if one did.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from checkpoint.damage import Damage, damages_of, files_in
from faults.injected import SLOW
from faults.processes import Launcher
from faults.runs import checkpoints, differences, newest_step, train_options, write_data


TEXT = "red blue dog"

# No manifest covers what is only for people to look at, nor the lock.
UNCOVERED = re.compile(r"tensorboard/|summary\.json|errors\.log|lock$|\.tmp")


@dataclass(frozen=True)
class Whole:
    """A run that was stopped, one that was not, and what the first translates to."""

    run: Path
    reference: Path
    translations: dict[str, str]


def make_whole(launcher, folder):
    """Train, stop on the way, and train without a stop."""
    data = write_data(folder / "data")
    launcher.run(*train_options(data, folder / "reference"), folder=folder).check_done()
    run = folder / "run"
    process = launcher.start(*train_options(data, run), folder=folder, before=SLOW)
    process.until(lambda: newest_step(run) >= 60, what="update 60 was saved")
    process.send(signal.SIGTERM)
    process.end()
    whole = Whole(run, folder / "reference", {})
    weights = sorted(
        path.name
        for path in (run / "checkpoints").iterdir()
        if path.name.startswith(("best", "final", "epoch-"))
    )
    for name in weights:
        ended = translate(launcher, run, name, folder)
        ended.check_done()
        whole.translations[name] = ended.out
    return whole


def translate(launcher, run, name, folder):
    return launcher.run(
        *("translate", run, "--device", "cpu", "--checkpoint", name, TEXT), folder=folder
    )


def cases_of(whole, count):
    """Return so many cases, evenly from all files and kinds of damage."""
    flips = 3
    cases = list(damages_of(whole.run, flips=flips))
    while len(cases) < count:
        flips *= 2
        cases = list(damages_of(whole.run, flips=flips))
    return [cases[n * len(cases) // count] for n in range(count)]


def judge(launcher, whole, damage: Damage, folder):
    """Do one damage; return the outcome of the resume in words, and what is wrong."""
    run = folder / "run"
    shutil.copytree(whole.run, run, symlinks=True)
    damage.apply(run)
    wrong = []
    try:
        wrong += judge_verify(launcher, whole, damage, run, folder)
        wrong += judge_translate(launcher, whole, damage, run, folder)
        outcome, found = judge_resume(launcher, whole, damage, run, folder)
        wrong += found
    except BaseException as stuck:  # pytest's failure is no Exception
        if isinstance(stuck, KeyboardInterrupt):
            raise
        outcome, wrong = "stuck", [*wrong, str(stuck)[:300]]
    shutil.rmtree(folder)
    return outcome, [f"{damage}: {text}" for text in wrong]


def files_of(damage):
    """Return the files that a damage is done to, one or two."""
    return damage.name.partition(": ")[0].split(" and ")


def said_badly(ended):
    """Return what is wrong with the way in which a command that failed says so."""
    if "Traceback" in ended.out + ended.err:
        return [f"a traceback: {ended.err[-300:]}"]
    if ended.code not in (1, 2):
        return [f"exit code {ended.code}: {ended.err[-200:]}"]
    if len(ended.errors) != 1:
        return [f"no single line of error: {ended.err[-300:]}"]
    return []


def judge_verify(launcher, whole, damage, run, folder):
    ended = launcher.run("checkpoint", "verify", run, folder=folder)
    both = ended.out + ended.err
    if "Traceback" in both:
        return [f"verify: a traceback: {ended.err[-300:]}"]
    grown = "after its end" in damage.name and damage.file == "metrics.jsonl"
    files = files_of(damage)
    if ended.code == 0 and not grown and not any(UNCOVERED.search(file) for file in files):
        return ["verify: all is whole, it says"]
    if ended.code not in (0, 1, 2):
        return [f"verify: exit code {ended.code}"]
    return []


def judge_translate(launcher, whole, damage, run, folder):
    name = next((name for name in whole.translations if f"/{name}/" in f"/{damage.file}"), None)
    if name is None:
        name = min(whole.translations)
    ended = translate(launcher, run, name, folder)
    if ended.code:
        return [f"translate: {text}" for text in said_badly(ended)]
    if ended.out != whole.translations[name]:
        return ["translate: another translation"]
    if f"/{name}/" in f"/{damage.file}":
        return [f"translate: the damage to {name} was not noticed"]
    return []


def judge_resume(launcher, whole, damage, run, folder):
    newest = checkpoints(whole.run)[-1]
    ended = launcher.run("train", "--resume", run, folder=folder)
    if ended.code:
        found = [f"resume: {text}" for text in said_badly(ended)]
        if all(file.startswith("checkpoints/step-") for file in files_of(damage)):
            found.append("resume: refused, though another state is whole")
        return "resume refused", found
    if "Traceback" in ended.err:
        return "resumed", [f"resume: a traceback: {ended.err[-300:]}"]
    found = [f"resume: silently differs in {text}" for text in differences(run, whole.reference)]
    if "metrics.jsonl" in damage.name and "metrics.jsonl" in ended.out + ended.err:
        found = [text for text in found if "its history" not in text]
    if f"/{newest}/" in f"/{damage.file}":
        if newest not in ended.err + ended.out:
            found.append(f"resume: the damage to {newest} was not named")
        return "fell back", found
    return "resumed as if whole", found


def run_cases(launchers, folder, count, *, report=print):
    """Judge so many cases; return outcomes with their numbers, and all that was wrong."""
    whole = make_whole(launchers[0], folder)
    cases = cases_of(whole, count)
    report(f"{len(cases)} cases in {len(files_in(whole.run))} files of {newest_step(whole.run)}")

    def share(job):
        found = []
        for number in range(job, len(cases), len(launchers)):
            own = folder / f"case-{number}"
            own.mkdir()
            found.append(judge(launchers[job], whole, cases[number], own))
            for text in found[-1][1]:
                report(text, flush=True)
            if len(found) % 100 == 0:
                report(f"{len(found)} cases done", flush=True)
        return found

    with ThreadPoolExecutor(len(launchers)) as pool:
        judged = [one for part in pool.map(share, range(len(launchers))) for one in part]
    return Counter(outcome for outcome, _ in judged), [t for _, texts in judged for t in texts]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1, help="cases at once")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="run-damage-"))
    launchers = [Launcher() for _ in range(options.jobs)]
    outcomes, wrong = run_cases(launchers, folder, options.count)
    for launcher in launchers:
        launcher.close()
    shutil.rmtree(folder)
    for outcome, number in sorted(outcomes.items()):
        print(f"{number:6}  {outcome}")
    print(f"{len(wrong):6}  things that went wrong in {sum(outcomes.values())} cases")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
