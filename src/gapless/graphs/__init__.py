"""Captured steps: a whole training step launched as one CUDA graph for each kind of batch."""
