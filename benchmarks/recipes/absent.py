"""Let a package be imported whose own imports are not installed, where its networks do not need them.

An empty module stands for each absent one; what is asked of it is an empty class. What a package computes with one is
wrong or fails: the programs here use networks and optimizers alone.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from types import ModuleType


class _Kind(type):
    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _empty(name, cls.__module__)
        setattr(cls, name, found)
        return found


def _empty(name: str, module: str) -> type:
    def take(self, *args, **kwargs):
        pass

    return _Kind(name, (), {"__module__": module, "__init__": take})


class _Absent(ModuleType):
    __version__ = "0"

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _empty(name, self.__name__)
        setattr(self, name, found)
        return found


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Absent(spec.name)

    def exec_module(self, module):
        pass


def stand_in_for(*names: str) -> list[str]:
    """Let absent top-level packages be imported as empty ones; return which are absent."""
    absent = [
        name for name in names if name not in sys.modules and not importlib.util.find_spec(name)
    ]
    if absent:
        sys.meta_path.append(_Finder(set(absent)))
    return absent


def without_its_init(name: str) -> None:
    """Let a package's modules be imported one by one, where its `__init__` imports what is absent."""
    parent, _, last = name.rpartition(".")
    package = ModuleType(name)
    package.__path__ = [f"{folder}/{last}" for folder in importlib.import_module(parent).__path__]
    sys.modules[name] = package
