"""What `gapless doctor` says, held against what was measured with a clock."""
