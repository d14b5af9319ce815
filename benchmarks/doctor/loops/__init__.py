"""Loops as people write them, which the benchmark of the doctor runs as scripts."""
