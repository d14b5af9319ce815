"""Training loops as people publish them, each in seven variants, measured side by side."""
