"""A Transformer translation trainer that stands on the gapless loop."""
