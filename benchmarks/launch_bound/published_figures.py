"""What others published of their own programs: beside our rows, and in no mean."""

from __future__ import annotations


# Script: figure, and where it stands. Other models, other sizes, other machines.
FIGURES = {
    "ppo": (
        "LeanRL over CleanRL: 6.8x (Atari), 2.7x (continuous)",
        "pytorch-labs/LeanRL 13f83c8, README.md, H100",
    ),
    "act": (
        "LeRobot's ACT, compiled with graphs, one all-reduce, fused AdamW: 28.0 -> 13.0 ms (2.15x)",
        "huggingface/lerobot#4607, eight B200",
    ),
    "sac": ("LeanRL over CleanRL: 5.7x", "pytorch-labs/LeanRL 13f83c8, README.md, H100"),
}
