"""Where kernels in Triton can be built."""

from __future__ import annotations

from importlib.machinery import ModuleSpec

import pytest

from gapless.device import kernels


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return a function that sets what there is; by default all that Triton needs."""

    def has(*, origin="triton/__init__.py", compilers=("gcc",), headers=True, cc=None):
        monkeypatch.setattr(
            kernels, "find_spec", lambda name: ModuleSpec(name, None, origin=origin)
        )
        monkeypatch.setattr(kernels.shutil, "which", lambda name: name in compilers)
        monkeypatch.setattr(kernels.sysconfig, "get_path", lambda *about: str(tmp_path))
        monkeypatch.delenv("CC", raising=False)
        if cc is not None:
            monkeypatch.setenv("CC", cc)
        if headers:
            (tmp_path / "Python.h").touch()

    return has


@pytest.mark.parametrize(
    "there", [{}, {"compilers": ("clang",)}, {"compilers": ("icx",), "cc": "icx"}]
)
def test_kernels_are_built_where_all_is_there(machine, there):
    """With the compiler that CC names, or else gcc or clang."""
    machine(**there)

    assert kernels._has_triton()


@pytest.mark.parametrize(
    "there",
    [{"origin": None}, {"compilers": ()}, {"headers": False}, {"cc": "ccache gcc"}],
    ids=["a folder of that name", "no compiler", "no headers", "CC names no program"],
)
def test_kernels_are_not_built_where_something_is_missing(machine, there):
    """Triton would fail in the first step of a run."""
    machine(**there)

    assert not kernels._has_triton()
