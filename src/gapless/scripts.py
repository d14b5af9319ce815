"""Run a user's script or module as Python itself would."""
