"""What torch's profiler records of a few steps, as plain data."""
