"""Which share of the cases about captures is run on the simulated device."""

from __future__ import annotations

import os


# `make check` runs one case in three, `make hazards` all of them.
ONE_IN = 1 if os.environ.get("GAPLESS_ALL_HAZARDS") == "1" else 3
