"""A tracker of experiments gets what a run logs: Weights & Biases."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


def check_tracker(name: str | None) -> None:
    """Check that the package of a tracker is there; None: there is no tracker.

    Raises:
        UserError: it is not.
    """
    if name is not None:
        _module(name)


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"`track={name}` needs {error.name}, which cannot be found; run pip install "
            f'"gapless[{name}]"'
        ) from error


class Tracker:
    """Sends figures of a run to a tracker; one that fails is told and left out.

    Args:
        name: of the tracker's package.
        run_dir: of the run, whose name its own gets.
        settings: of the run.

    Raises:
        UserError: the package cannot be found.
    """

    def __init__(self, name: str, run_dir: Path, settings: Mapping[str, Any]) -> None:
        module = _module(name)
        self._run: Any = None
        with self._left_out_if_it_fails():
            self._run = module.init(
                project="gapless", name=run_dir.name, dir=str(run_dir), config=dict(settings)
            )

    def log(self, kind: str, step: int, figures: Mapping[str, float | None]) -> None:
        """Send figures, named as in the TensorBoard events."""
        if self._run is None:
            return
        found = {f"{kind}/{name}": value for name, value in figures.items() if value is not None}
        with self._left_out_if_it_fails():
            self._run.log({**found, f"{kind}/step": step})

    def close(self) -> None:
        """Say that no figures follow."""
        if self._run is not None:
            with self._left_out_if_it_fails():
                self._run.finish()
            self._run = None

    @contextmanager
    def _left_out_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._run = None
            warnings.warn(f"the tracker failed and gets nothing more: {error}", stacklevel=4)
