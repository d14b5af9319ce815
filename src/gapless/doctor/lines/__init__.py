"""The passes that find lines: which call of the script makes the host wait, and why."""
