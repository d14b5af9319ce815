"""The scripts as written, in plain PyTorch; beside each, in a file of diffs, its variants."""
