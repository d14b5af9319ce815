"""Records in, strings out. Collects nothing, knows no torch."""
