"""Finds the lines of any script that make the host wait, and what each of them costs.

It knows nothing of gapless' own loop: `scripts` runs the user's file, this room watches it, `report`
shows what was found.
"""
