"""Programs of other people, as they are: run by Python, and by `gapless run`.

    PYTHONPATH=src python3 -m benchmarks.programs_of_others FOLDER --json programs.jsonl
    PYTHONPATH=src python3 -m benchmarks.programs_of_others FOLDER --only mnist vae --processes 4
    PYTHONPATH=src python3 -m benchmarks.programs_of_others FOLDER --seconds 75 --processes 3

`programs_of_others.json` names each program: its repository, the commit, the folder that it is run in, its words, and
words by which it goes on for long. `FOLDER` holds the repositories as owner/name, checked out at these commits; a program
whose repository is not there, or that fails as written, is said to be left out. What their packages are is theirs to say.

Each runs in a copy of its repository, with data drawn by a seed: pictures in the form of MNIST, words and characters
of this project's own pages, a graph of papers. A line says whether output, exit code and files are the same, but for times
and what `MASKED` lists, whether the program repeats its own output where they are not, and the seconds of both, which are
of whole processes, one run each.

With `--seconds` both run for so long, and end then: side by side, or with `--alone` one after the other, as processes that
share a GPU wait for their slices of its time. Seen from outside, by the times at which backward passes
end (`step_marks/sitecustomize.py`, in both): the steps of the first minute, the rate in the second half of the steps that
both have done, and how much later `gapless run` has come to a step than a tenth more than as written and five seconds
allow, at the worst step: below zero if it never has.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from array import array
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import numpy as np


HERE = Path(__file__).resolve().parent
PROGRAMS = json.loads(HERE.joinpath("programs_of_others.json").read_text(encoding="utf-8"))

# Times in what programs print, and times and processes in the names of their logs.
MASKED = re.compile(
    r"\d+\.\d+ ?(ms|s|sec)\b|ms/batch +[\d.]+|time:? +[\d.]+ ?(ms|s)?|took [\d.]+ms|SPS: \d+|"
    r"mfu [\d.-]+%|\d{9,}|tfevents[\w.-]+"
)

# Of what `gapless run` reports of each object.
PARTS = (
    *("name", "num_graphs", "num_replays", "num_eager", "audits", "waiting"),
    *("saved_seconds", "watching_seconds", "capturing_seconds", "auditing_seconds"),
    *("beside_seconds", "refusals", "note"),
)

# For a rate in their second half.
LEAST_STEPS = 10

_NUM_TRAIN, _NUM_TEST = 12_800, 2_000


def draw_pictures(folder):
    """Write random pictures and labels as torchvision looks for those of MNIST."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name, num in (("train", _NUM_TRAIN), ("t10k", _NUM_TEST)):
        for kind, shape in (("images-idx3", (num, 28, 28)), ("labels-idx1", (num,))):
            head = [0x0800 + len(shape), *shape]
            most = 256 if len(shape) > 1 else 10
            data = draw.integers(0, most, size=shape, dtype=np.uint8)
            content = np.array(head, dtype=">i4").tobytes() + data.tobytes()
            raw.joinpath(f"{name}-{kind}-ubyte").write_bytes(content)


def write_text(root, folder):
    """Write what programs of words and of characters read."""
    pages = sorted(HERE.parent.joinpath("docs").glob("*.md"))
    text = re.sub(r"[^\w\s.]", " ", " ".join(page.read_text(encoding="utf-8") for page in pages))
    lines = [" ".join(line.split()) for line in text.split(".") if len(line.split()) > 4]
    words = folder / "data" / "wikitext-2"
    if words.is_dir():
        for name, times in (("train", 4), ("valid", 1), ("test", 1)):
            words.joinpath(f"{name}.txt").write_text("\n".join(lines * times), encoding="utf-8")
    folder.joinpath("input.txt").write_text("\n".join(lines), encoding="utf-8")
    chars = root / "data" / "chars"
    chars.mkdir(parents=True, exist_ok=True)
    letters = sorted(set(text))
    numbers = {letter: number for number, letter in enumerate(letters)}
    ids = np.array([numbers[letter] for letter in text], dtype=np.uint16)
    ids[: len(ids) * 9 // 10].tofile(chars / "train.bin")
    ids[len(ids) * 9 // 10 :].tofile(chars / "val.bin")
    meta = {"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": numbers}
    chars.joinpath("meta.pkl").write_bytes(pickle.dumps(meta))


def draw_papers(folder):
    """Write a random graph of papers in the form of Cora."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    num = 1_800
    words = (draw.random((num, 200)) < 0.1).astype(int)
    words[:, 0] = 1
    papers = [f"{n} {' '.join(map(str, words[n]))} topic{n % 7}" for n in range(num)]
    folder.joinpath("cora.content").write_text("\n".join(papers), encoding="utf-8")
    cites = [f"{n} {other}" for n, other in enumerate(draw.integers(0, num, num))]
    folder.joinpath("cora.cites").write_text("\n".join(cites), encoding="utf-8")


@contextmanager
def placed(name, repositories):
    """Copy a program's repository with data for it; yield its root, and the folder that it is run in."""
    repository, _, inside, *_ = PROGRAMS[name]
    with tempfile.TemporaryDirectory() as temporary:
        # Some look for their data two folders up.
        root = Path(temporary) / "a" / "b" / "repository"
        shutil.copytree(repositories / repository, root)
        folder = root / inside
        above = folder / ".." / ".." / "data"
        for place in {folder / "data", folder / ".." / "data", above, above / "mnist"}:
            place.mkdir(exist_ok=True, parents=True)
            draw_pictures(place)
        draw_papers(folder / "cora")
        folder.joinpath("results").mkdir(exist_ok=True)
        write_text(root, folder)
        yield root, folder


def one_run(name, way, options):
    """Run a program in a copy of its repository; return what came of it."""
    _, _, _, words, more = PROGRAMS[name]
    with (
        placed(name, options.folder) as (root, folder),
        tempfile.TemporaryDirectory() as temporary,
    ):
        before = {path for path in root.rglob("*") if path.is_file()}
        report = Path(temporary) / "report.json"
        ours = ["-m", "gapless", "run", "--report", str(report)]
        command = [sys.executable, *(ours if way == "run" else ())]
        own = [str(HERE.parent / "src"), str(root), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        marks = Path(temporary) / "marks"
        if options.seconds is not None:
            words = f"{words} {more}"
            own.insert(0, str(HERE / "step_marks"))
            environment |= {"STEP_MARKS": str(marks), "STEP_MARKS_SECONDS": str(options.seconds)}
        environment["PYTHONPATH"] = os.pathsep.join(own)
        began = perf_counter()
        done = subprocess.run(
            [*command, *words.split()],
            check=False,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=options.timeout,
        )
        seconds = round(perf_counter() - began, 1)
        files = {
            MASKED.sub("#", str(path.relative_to(root))): sum_of(path)
            for path in sorted(root.rglob("*"))
            if path.is_file() and path not in before and "__pycache__" not in path.parts
        }
        times = array("d", marks.read_bytes() if marks.exists() else b"")
        objects = json.loads(report.read_text())["objects"] if report.exists() else []
    return {
        "program": name,
        "way": way,
        "times": times,
        "seconds": seconds,
        "code": done.returncode,
        "output": [MASKED.sub("#", line) for line in done.stdout.splitlines()],
        "errors": done.stderr.splitlines(),
        "files": files,
        "objects": [{part: one[part] for part in PARTS} for one in objects],
    }


def sum_of(path):
    """Return what is compared of a file: its bytes, or of an archive of torch what it holds."""
    # Those of events and logs have times in them.
    if "events" in path.name or path.suffix in (".log", ".json"):
        return ""
    if not zipfile.is_zipfile(path):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    sums = hashlib.sha256()
    with zipfile.ZipFile(path) as archive:
        # Each begins with the name of the archive.
        for name in sorted(archive.namelist()):
            if name.endswith("data.pkl") or "/data/" in name:
                sums.update(archive.read(name))
    return sums.hexdigest()


def compare(name, options):
    """Run a program both ways; return a row, and lines on it."""
    repository, commit, inside, *_ = PROGRAMS[name]
    head = f"{name:22}"
    if not options.folder.joinpath(repository, inside).is_dir():
        return {}, f"{head} left out: {repository} at {commit} is not in {options.folder}"
    try:
        row, text = (compare_ends if options.seconds is None else compare_rates)(name, options)
    except subprocess.TimeoutExpired:
        row, text = {}, f"left out: not done in {options.timeout:.0f} s"
    return {"program": name, "at": f"{repository}@{commit}", **row}, f"{head} {text}"


def failed(plain):
    """Return a row and a line on a program that fails as written."""
    return {"code": plain["code"]}, f"left out, fails as written: {(plain['errors'] or ['?'])[-1]}"


def said_by(run, plain):
    """Return what `gapless run` has said, which is more than the program says as written."""
    return [line for line in run["errors"] if line not in plain["errors"]][-8:]


def compare_rates(name, options):
    """Run a program both ways for so many seconds; return a row, and lines on it."""
    with ThreadPoolExecutor(1 if options.alone else 2) as pool:
        plain, run = pool.map(lambda way: one_run(name, way, options), ("python", "run"))
    if plain["code"] or not plain["times"]:
        return failed(plain)
    said = said_by(run, plain)
    row = {"code": run["code"], "said": said, "objects": run["objects"]}
    num = min(len(plain["times"]), len(run["times"]))
    if num < LEAST_STEPS or run["code"]:
        return row, "\n    ".join([f"exit code {run['code']}, {num} steps", *said])
    row |= rates(plain["times"], run["times"])
    text = (
        f"first minute {row['first_minute']:5.2f}x, second half {row['second_half']:5.2f}x of "
        f"{row['steps']:6} steps ({row['as_written_a_second']:.1f} a second as written), "
        f"{row['over_s']:+6.1f} s beyond what is allowed at step {row['over_at']}"
    )
    return row, "\n    ".join([text, *said])


def rates(plain, run):
    """Return what times of steps as written and by `gapless run` show."""
    num = min(len(plain), len(run))
    half, last = num // 2, num - 1
    minute = min(60.0, plain[-1], run[-1])
    over = [b - (1.1 * a + 5.0) for a, b in zip(plain, run, strict=False)]
    worst = max(range(num), key=over.__getitem__)
    counts = [sum(time <= minute for time in times) for times in (plain, run)]
    return {
        "steps": num,
        "first_minute": round(counts[1] / max(counts[0], 1), 3),
        "second_half": round((plain[last] - plain[half]) / (run[last] - run[half]), 3),
        "as_written_a_second": round((last - half) / (plain[last] - plain[half]), 2),
        "over_s": round(over[worst], 2),
        "over_at": worst,
        # At steps of equal distance.
        "marks": [
            [step, round(plain[step], 2), round(run[step], 2)]
            for step in range(0, num, max(num // 20, 1))
        ],
    }


def compare_ends(name, options):
    """Run a program both ways, and once more as written if they differ; return a row, and lines on it."""
    plain = one_run(name, "python", options)
    if plain["code"]:
        return failed(plain)
    run = one_run(name, "run", options)
    parts = ("code", "output", "files")
    other = [part for part in parts if plain[part] != run[part]]
    again = one_run(name, "python", options) if other else plain
    own = [part for part in other if plain[part] != again[part]]
    verdict = "the same" if not other else f"other {', '.join(other)}"
    if own:
        verdict += f"; as written, too: {', '.join(own)}"
    speed = plain["seconds"] / run["seconds"]
    said = said_by(run, plain)
    text = f"{plain['seconds']:6.1f} s, {run['seconds']:6.1f} s, {speed:5.2f}x, {verdict}"
    row = {"code": run["code"], "seconds": [plain["seconds"], run["seconds"]], "verdict": verdict}
    if other:
        row["runs"] = [
            {part: one[part] for part in (*other, "errors")} for one in (plain, run, again)
        ]
    return {**row, "said": said}, "\n    ".join([text, *said])


def main():
    """Run all programs that were asked for, and print a line on each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the repositories")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=PROGRAMS, metavar="PROGRAM")
    parser.add_argument("--seconds", type=float, help="run both at once for so long, for rates")
    parser.add_argument("--alone", action="store_true", help="and one after the other instead")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds that a run may take")
    parser.add_argument("--processes", type=int, default=1, help="programs side by side")
    parser.add_argument("--json", type=Path, help="append a line for each program to this file")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    with ThreadPoolExecutor(options.processes) as pool:
        running = [pool.submit(compare, name, options) for name in options.only]
        for done in as_completed(running):
            row, text = done.result()
            print(text, flush=True)
            if options.json is not None and row:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
