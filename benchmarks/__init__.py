"""Benchmarks of gapless; not shipped."""
