"""The user's own workload: found in a file, and what its errors mean."""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gapless.cli.output import STANDARD_OUTPUT
from gapless.compare.workload import require_float32
from gapless.compare.workload_file import load_workload
from gapless.errors import UserError


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.compare.workload import WorkloadFunction


def users_workload(spec: str, *, precision: str) -> WorkloadFunction:
    """Return the function that `FILE:FUNCTION` names.

    Raises:
        UserError: there is none, or a precision was asked for that only its step can use.
    """
    require_float32(precision)
    return load_workload(spec)


@contextmanager
def users_errors() -> Iterator[None]:
    """Turn errors that a workload raises while it runs into what the command says of them.

    An exit would be taken for a verdict, so it becomes an error. An OSError is printed with its
    traceback: anywhere else the command takes one for a full disk of its own. A broken pipe is of
    the command's own output, which has lost its reader, as one about standard output is.

    Raises:
        UserError: the workload called `sys.exit`.
        SystemExit: an OSError has been printed; the exit code is 1.
    """
    try:
        yield
    except SystemExit as error:
        raise UserError(
            f"the workload called sys.exit({error.code!r}) before the comparison was done, "
            "expected it to return; take the call out"
        ) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename == STANDARD_OUTPUT:
            raise
        traceback.print_exception(error)
        raise SystemExit(1) from error
    except RuntimeError as error:
        if "use_deterministic_algorithms" in str(error):
            error.add_note(
                "gapless switched deterministic algorithms on, to compare bits; with a "
                "--tolerance, such as 1e-5, it allows others."
            )
        raise
