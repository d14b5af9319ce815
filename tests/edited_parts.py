"""An object with a number that a loop edits, and a helper that sums several."""

from __future__ import annotations


class Part:
    """Has a weight, as an attribute and by methods."""

    def __init__(self, weight=1.0):
        self.weight = weight

    def value(self):
        return self.weight

    def of(self, x):
        return x.sum() * self.weight


def total(parts):
    """Return the sum of the weights."""
    weight = 0.0
    for part in parts:
        weight += part.weight
    return weight
