"""One run as written or capture at a time, whatever thread it is of.

Watched runs replace functions of torch, the memory of captures is torch's own, and all of them use
one stream, on which nothing else may be queued during a capture.
"""

from __future__ import annotations

from threading import RLock


ONE_AT_A_TIME = RLock()
