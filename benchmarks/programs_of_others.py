"""Programs of other people, as they are: run by Python, and by `gapless run`.

    PYTHONPATH=src python3 -m benchmarks.programs_of_others FOLDER --json programs.jsonl
    PYTHONPATH=src python3 -m benchmarks.programs_of_others FOLDER --only mnist vae --processes 4

`programs_of_others.json` names each program: its repository, the commit, the folder that it is run in, and
its words. `FOLDER` holds the repositories as owner/name, checked out at these commits; a program whose
repository is not there, or that fails as written, is said to be left out. What their packages are is theirs to say.

Each runs in a copy of its repository, with data drawn by a seed: pictures in the form of MNIST, and words and characters
of this project's own pages. A line says whether output, exit code and files are the same, but for times and what `MASKED`
lists, whether the program repeats its own output where they are not, and the seconds of both. Seconds are of whole
processes, imports and captures included, one run each.
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
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np


HERE = Path(__file__).resolve().parent
PROGRAMS = json.loads(HERE.joinpath("programs_of_others.json").read_text(encoding="utf-8"))

# Times in what programs print.
MASKED = re.compile(
    r"\d+\.\d+ ?(ms|s|sec)\b|ms/batch +[\d.]+|time:? +[\d.]+ ?(ms|s)?|took [\d.]+ms|SPS: \d+|"
    r"mfu [\d.-]+%|\d{9,}"
)

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


def one_run(name, way, options):
    """Run a program in a copy of its repository; return what came of it."""
    repository, _, inside, words = PROGRAMS[name]
    with tempfile.TemporaryDirectory() as temporary:
        # Some look for their data two folders up.
        root = Path(temporary) / "a" / "b" / "repository"
        shutil.copytree(options.folder / repository, root)
        folder = root / inside
        for place in {folder / "data", folder / ".." / "data", folder / ".." / ".." / "data"}:
            place.mkdir(exist_ok=True)
            draw_pictures(place)
        folder.joinpath("results").mkdir(exist_ok=True)
        write_text(root, folder)
        before = {path for path in root.rglob("*") if path.is_file()}
        command = [sys.executable, "-m", "gapless", "run"] if way == "run" else [sys.executable]
        own = [str(HERE.parent / "src"), str(root), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(own), "PYTHONHASHSEED": "0"}
        began = perf_counter()
        done = subprocess.run(
            [*command, *words.split()],
            check=False,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=options.seconds,
        )
        seconds = round(perf_counter() - began, 1)
        files = {
            MASKED.sub("#", str(path.relative_to(root))): sum_of(path)
            for path in sorted(root.rglob("*"))
            if path.is_file() and path not in before and "__pycache__" not in path.parts
        }
    return {
        "program": name,
        "way": way,
        "seconds": seconds,
        "code": done.returncode,
        "output": [MASKED.sub("#", line) for line in done.stdout.splitlines()],
        "errors": done.stderr.splitlines(),
        "files": files,
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
    """Run a program both ways, and once more as written if they differ; return lines on that."""
    repository, commit, inside, _ = PROGRAMS[name]
    head = f"{name:22}"
    if not options.folder.joinpath(repository, inside).is_dir():
        return [{}], f"{head} left out: {repository} at {commit} is not in {options.folder}"
    try:
        plain = one_run(name, "python", options)
        if plain["code"]:
            return [plain], f"{head} left out, fails as written: {(plain['errors'] or ['?'])[-1]}"
        run = one_run(name, "run", options)
        parts = ("code", "output", "files")
        other = [part for part in parts if plain[part] != run[part]]
        again = one_run(name, "python", options) if other else plain
    except subprocess.TimeoutExpired:
        return [{}], f"{head} left out: not done in {options.seconds:.0f} s"
    own = [part for part in other if plain[part] != again[part]]
    verdict = "the same" if not other else f"other {', '.join(other)}"
    if own:
        verdict += f"; as written, too: {', '.join(own)}"
    speed = plain["seconds"] / run["seconds"]
    said = [line for line in run["errors"] if line not in plain["errors"]]
    text = f"{head} {plain['seconds']:6.1f} s, {run['seconds']:6.1f} s, {speed:5.2f}x, {verdict}"
    return [plain, run, again], "\n    ".join([text, *said[-8:]])


def main():
    """Run all programs that were asked for, and print a line on each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the repositories")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=PROGRAMS, metavar="PROGRAM")
    parser.add_argument("--seconds", type=float, default=300.0, help="that a run may take")
    parser.add_argument("--processes", type=int, default=1, help="programs side by side")
    parser.add_argument("--json", type=Path, help="append a line for each program to this file")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    with ThreadPoolExecutor(options.processes) as pool:
        for runs, text in pool.map(partial(compare, options=options), options.only):
            print(text, flush=True)
            if options.json is not None:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(runs) + "\n")


if __name__ == "__main__":
    main()
