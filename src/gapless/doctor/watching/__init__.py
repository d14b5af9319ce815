"""The watch of a run: what a step is, and what is watched in which window of steps."""
