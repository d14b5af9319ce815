"""What the variants are called on the command line. No torch."""

RECORDED_BATCHES = "recorded-batches"
CAPTURED = "captured"

# In the order in which they are measured.
NAMES = (RECORDED_BATCHES, CAPTURED)
