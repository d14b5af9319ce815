"""Device utilisation as NVIDIA's driver reports it, independent of our own clocks.

NVML's utilisation is the share of its last sample window, a sixth of a second to one second long,
in which at least one kernel ran: the figure that nvidia-smi shows. It does not say how much of the
device a kernel filled.

The driver's library is called directly, so nothing has to be installed.

Source: NVML API Reference Guide, nvmlDeviceGetUtilizationRates and nvmlUtilization_t.
"""

from __future__ import annotations

import ctypes
import threading
from time import perf_counter
from typing import TYPE_CHECKING, Self

from gapless.errors import DeviceError


if TYPE_CHECKING:
    from collections.abc import Callable


WINDOW_SECONDS = 1.0

_LIBRARY = "libnvidia-ml.so.1"


class _Utilisation(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]  # type: ignore[mutable-override]  # as ctypes asks


class Nvml:
    """The driver's figures of one GPU.

    Args:
        uuid: of the GPU, such as "GPU-8a56...".

    Raises:
        DeviceError: the driver's library is missing, or does not report on this GPU.
    """

    def __init__(self, uuid: str) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise DeviceError(f"the driver's library cannot be loaded: {error}") from error
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        self._call("nvmlInit_v2")
        self._handle = ctypes.c_void_p()
        try:
            self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._handle))
            self.utilisation()
        except DeviceError:
            self.close()
            raise

    def utilisation(self) -> float:
        """Return the share of the last window in which a kernel ran, in percent.

        Raises:
            DeviceError: the driver does not report it, as for one part of a divided GPU.

        Sync: Does not block the host on the device.
        """
        found = _Utilisation()
        self._call("nvmlDeviceGetUtilizationRates", self._handle, ctypes.byref(found))
        return float(found.gpu)

    def close(self) -> None:
        """Release the driver's library."""
        self._library.nvmlShutdown()

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            reason = self._library.nvmlErrorString(code).decode()
            raise DeviceError(f"NVML's {name} failed: {reason}")


class Sampler:
    """Read a figure periodically in a thread, while a `with` body runs.

    Args:
        read: returns the figure; it must not depend on the thread of the body.
        period_seconds: between two readings.
        skip_seconds: at the start, without readings: the figure still covers what ran before.

    Attributes:
        values: the readings.
    """

    def __init__(
        self,
        read: Callable[[], float],
        *,
        period_seconds: float = 0.05,
        skip_seconds: float = WINDOW_SECONDS,
    ) -> None:
        self._read = read
        self._period = period_seconds
        self._skip = skip_seconds
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gapless-sampler", daemon=True)
        self.values: list[float] = []

    @property
    def mean(self) -> float | None:
        """Mean of the readings; None without any."""
        return sum(self.values) / len(self.values) if self.values else None

    def _run(self) -> None:
        started = perf_counter()
        while not self._is_over.wait(self._period):
            if perf_counter() - started < self._skip:
                continue
            try:
                self.values.append(self._read())
            except DeviceError:
                # The readings so far remain valid.
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()
