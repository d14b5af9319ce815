"""Trainings whose batches change their shape, with and without gapless, judged from outside."""
