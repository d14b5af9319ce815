"""A driver of training loops, as several frameworks have one."""

from collections import defaultdict


class Engine:
    def __init__(self, process):
        self.process = process
        self.handlers = defaultdict(list)
        self.iteration = 0
        self.output = None

    def on(self, event, *args):
        def register(handler):
            self.handlers[event].append((handler, args))
            return handler

        return register

    def run(self, steps):
        for self.iteration in range(steps):
            self.output = self.process(self, self.iteration)  # harmless: calls the script's step
            self._fire("iteration")
        self._fire("end")

    def _fire(self, event):
        for handler, args in self.handlers[event]:
            handler(self, *args)  # harmless: calls the script's handler
