"""Records in, strings out: text for people, JSON for tools. Measures nothing and imports no torch."""
