"""A training run: its settings, its folder, its epochs and its scores."""
