"""Models that several benchmarks train."""
