"""One watched run or capture at a time, whatever thread it is of.

They replace functions of torch, and the memory of captures is torch's own.
"""

from __future__ import annotations

from threading import RLock


AT_WORK = RLock()
