"""Six training scripts as people publish them, each as written and with gapless."""
