"""Which files a program has run that are the user's own."""

from __future__ import annotations

import site
import sys
import sysconfig
from pathlib import Path


_NAMES = frozenset({"site-packages", "dist-packages"})


def files_of_the_script() -> list[Path]:
    """Return the Python files of all modules that are no installed ones, that of `__main__` first."""
    installed = _installed_folders()
    found: dict[Path, None] = {}
    modules = list(sys.modules.items())
    for _, module in sorted(modules, key=lambda item: item[0] != "__main__"):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py"):
            path = Path(file)
            # Libraries also lie on a path that Python's own settings do not name.
            is_installed = not _NAMES.isdisjoint(path.parts)
            is_installed = is_installed or any(folder in path.parents for folder in installed)
            if not is_installed and path.is_file():
                found[path] = None
    return list(found)


def _installed_folders() -> set[Path]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {Path(sysconfig.get_path(name)) for name in names}
    folders.update(map(Path, site.getsitepackages()))
    folders.add(Path(site.getusersitepackages()))
    folders.add(Path(__file__).parents[1])
    return folders | {folder.resolve() for folder in folders}
