"""From what was noted to findings: which wait belongs to which line, what each costs, in which order they come."""
