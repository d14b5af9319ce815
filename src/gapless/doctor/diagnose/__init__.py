"""From what was noted to findings: which wait belongs to which line, and what each costs."""
