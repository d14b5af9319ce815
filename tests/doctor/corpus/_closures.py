"""Decorators of the cases."""

import functools
import itertools


def every(n):
    """Call a function in every n-th step alone."""

    def decorate(function):
        calls = itertools.count()

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs) if next(calls) % n == 0 else None

        return wrapper

    return decorate


def as_numbers(function):
    """Return numbers in place of tensors."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        values = function(*args, **kwargs)
        return {name: value.item() for name, value in values.items()}  # waits: item, 2/3 a step, static maybe

    return wrapper
