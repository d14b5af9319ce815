"""Recorded steps played again: what a wait costs, and what is gained without it."""
