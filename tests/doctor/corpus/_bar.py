"""A progress bar in the style of the best known one."""

import sys


class Bar:
    def __init__(self, iterable):
        self.iterable = iterable
        self.postfix = ""

    def __iter__(self):
        for i, value in enumerate(self.iterable):
            yield value
            sys.stderr.write(f"\r{i} {self.postfix}")

    def set_postfix(self, **values):
        self.postfix = ", ".join(f"{name}={value:.3g}" for name, value in values.items())  # waits: format, static no
