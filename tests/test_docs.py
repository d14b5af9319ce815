"""What the documentation names exists: files, functions, links, commands, flags, rooms."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import gapless
from gapless.cli.main import COMMANDS, command_parser


ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "gapless"
README = ROOT / "README.md"
DESIGN = ROOT / "docs" / "design.md"
FINDINGS = SRC / "doctor" / "advice" / "findings.md"  # `gapless explain` prints it
# Results are of their own day and CHANGELOG.md lists former names.
PAGES = [
    README,
    ROOT / "README.zh.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    FINDINGS,
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "recipes").glob("*.md")),
    *sorted((ROOT / "docs" / "zh").glob("*.md")),
]

RESULTS = sorted((ROOT / "docs" / "results").glob("*.md"))

MOST_WORDS_OF_README = 1_500
MOST_WORDS_OF_DOCS = 45_000

_FENCED = re.compile(r"^```.*?$(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"`([^`\n]+)`")


def pages(*chosen):
    return pytest.mark.parametrize(
        "page", chosen or PAGES, ids=lambda page: str(page.relative_to(ROOT))
    )


def code_of(page):
    """Return the lines of all code in a page, continued lines joined; of a session its commands."""
    text = page.read_text(encoding="utf-8")
    blocks = [block.replace("\\\n", " ") for block in _FENCED.findall(text)]
    lines = _CODE_SPAN.findall(_FENCED.sub("", text))
    for block in blocks:
        commands = re.findall(r"^\$ (.*)", block, re.MULTILINE)
        lines += commands or block.splitlines()
    return lines


def names_of(node):
    """Return the names that a module or a class defines in its own body, with their nodes."""
    found = {}
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            found[child.name] = child
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            found[child.target.id] = child
        elif isinstance(child, ast.Assign):
            found |= {target.id: child for target in child.targets if isinstance(target, ast.Name)}
    return found


def is_defined(file, name):
    """Whether a source file defines a name, such as `Class.method`."""
    node = ast.parse((SRC / file).read_text(encoding="utf-8"))
    for part in name.split("."):
        if not isinstance(node, ast.Module | ast.ClassDef) or part not in names_of(node):
            return False
        node = names_of(node)[part]
    return True


def anchor(heading):
    """Return the anchor that a renderer gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return kept.strip().replace(" ", "-")


@pages()
def test_every_file_and_function_that_a_page_names_exists(page):
    """A path with a colon and a name, in backticks, leads to a definition in that source file."""
    found = re.findall(r"`([\w/]+\.py):([\w.]+)`", page.read_text(encoding="utf-8"))

    missing = [
        f"{file}:{name}"
        for file, name in found
        if not (SRC / file).is_file() or not is_defined(file, name)
    ]

    assert missing == []


def test_the_map_names_many_definitions_and_only_files_that_exist():
    """The map of the house leads to the code; a path in it without a name is a file as well."""
    text = DESIGN.read_text(encoding="utf-8")
    files = re.findall(r"`((?:\w+/)+\w+\.py)`", text)

    assert len(re.findall(r"\.py:\w", text)) > 100
    assert [file for file in files if not (SRC / file).is_file()] == []


def test_every_file_that_a_room_names_stands_in_it():
    """A file in the docstring of a room is a file of that room."""
    missing = [
        f"{room.parent.name}/{name}"
        for room in SRC.rglob("__init__.py")
        for name in re.findall(r"`([a-z]\w*\.py)`", ast.get_docstring(ast.parse(room.read_text())))
        if not (room.parent / name).is_file()
    ]

    assert missing == []


def test_the_map_names_every_reason_for_a_wait():
    """Every reason under which the host waits stands in the table of reasons."""
    sources = [path for path in SRC.rglob("*.py") if "testing" not in path.parts]
    asked = r'(?:reason=|reason: str = |blocking\()"(\w+)"'
    reasons = {
        reason
        for path in sources
        for reason in re.findall(asked, path.read_text(encoding="utf-8"))
    }
    text = DESIGN.read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| reason \|.*?\n\n", text, re.MULTILINE | re.DOTALL)

    assert reasons - set(re.findall(r"`(\w+)`", table)) == set()


@pages(*PAGES, ROOT / "CHANGELOG.md", *RESULTS)
def test_every_relative_link_leads_somewhere(page):
    """A link to a file of the repository finds the file, and its anchor a heading."""
    targets = re.findall(r"\]\((?!https?://)([^)\s]+)\)", page.read_text(encoding="utf-8"))
    broken = []
    for target in targets:
        path, _, place = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            broken.append(target)
        elif place:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            broken += [] if place in map(anchor, headings) else [target]

    assert broken == []


@pages()
def test_every_command_and_flag_that_a_page_shows_exists(page):
    """`gapless COMMAND` is a command, and the flags behind it are flags of that command."""
    unknown = []
    for line in code_of(page):
        found = re.match(r"\s*gapless ([a-z]\w*)(.*)", line)
        if found is None:
            continue
        command, rest = found.groups()
        if command not in COMMANDS:
            unknown.append(line)
            continue
        parser = command_parser(command)
        known = {flag for action in parser.actions() for flag in action.option_strings}
        ours, _ = parser.split(rest.partition("#")[0].split())
        flags = re.findall(r"(?<![\w-])--[a-z][\w-]*", " ".join(ours))
        unknown += [f"gapless {command} {flag}" for flag in flags if flag not in known]

    assert unknown == []


@pages(README, DESIGN, ROOT / "docs" / "compare.md")
def test_every_flag_that_stands_alone_is_one_of_some_command(page):
    """A flag in backticks, without its command, belongs to a command."""
    known = {
        flag
        for command in COMMANDS
        for action in command_parser(command).actions()
        for flag in action.option_strings
    }
    spans = _CODE_SPAN.findall(_FENCED.sub("", page.read_text(encoding="utf-8")))
    alone = {
        flag
        for span in spans
        if span.startswith("--")
        for flag in re.findall(r"--[a-z][\w-]*", span)
    }

    assert alone - known == set()


FRAMEWORKS = ("accelerate", "lightning", "transformers")


@pages()
def test_every_name_of_the_package_that_a_page_shows_exists(page):
    """`gapless.name` in code is public, or a module and what it defines."""
    shown = {name for line in code_of(page) for name in re.findall(r"\bgapless((?:\.\w+)+)", line)}

    assert [name for name in sorted(shown) if not is_there(name.split(".")[1:])] == []


def is_there(parts):
    """Whether `gapless.a.b` leads to an object or to a module."""
    found = gapless
    for number, part in enumerate(parts):
        if not hasattr(found, part):
            try:
                import_module(".".join(["gapless", *parts[: number + 1]]))
            except ModuleNotFoundError as missing:
                # A framework need not be installed for its integration to be there.
                return parts[0] == "integrations" and missing.name in FRAMEWORKS
        found = getattr(found, part)
    return True


@pages()
def test_every_make_target_that_a_page_shows_exists(page):
    """`make TARGET` in code is a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    shown = {name for line in code_of(page) for name in re.findall(r"^\s*make ([\w-]+)", line)}

    assert shown - targets == set()


def test_the_rooms_of_the_map_are_those_of_the_source():
    """The map's table lists every file and folder of the package, once."""
    there = {
        path.name.removesuffix(".py")
        for path in SRC.iterdir()
        if not path.name.startswith("_") and (path.is_dir() or path.suffix == ".py")
    }
    text = DESIGN.read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| room \|.*?\n\n", text, re.MULTILINE | re.DOTALL)
    listed = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    names = [name for item in listed for name in re.findall(r"\w+(?=/|\.py)", item)]

    assert sorted(names) == sorted(there)


def test_the_documentation_stays_short():
    """README is read in one sitting, and `docs` holds one current page a subject."""
    read = [
        page.read_text(encoding="utf-8") for page in [FINDINGS, *(ROOT / "docs").rglob("*.md")]
    ]

    assert len(README.read_text(encoding="utf-8").split()) <= MOST_WORDS_OF_README
    assert sum(len(text.split()) for text in read) <= MOST_WORDS_OF_DOCS


def test_the_loop_of_the_readme_runs(tmp_path):
    """The first block of Python is a whole script: copied as it is, it trains, here on a CPU, and
    prints what the block behind it shows, but for the digits."""
    text = README.read_text(encoding="utf-8")
    ((script, shown),) = re.findall(
        r"^```python$(.*?)^```$.*?^```$(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )
    (tmp_path / "loop.py").write_text(script, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "loop.py"],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )

    printed, promised = (re.sub(r"\d\.\d+", "0.0", part.strip()) for part in (done.stdout, shown))
    assert printed == promised
