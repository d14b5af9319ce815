"""What the variants are called on the command line. No torch."""

LATE_READS = "late-reads"
RECORDED_BATCHES = "recorded-batches"
CAPTURED = "captured"

# In the order in which they are measured.
NAMES = (LATE_READS, RECORDED_BATCHES, CAPTURED)
