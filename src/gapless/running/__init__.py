"""`gapless run`: a script that nobody edited, whose modules and optimizers are captured where they stand."""
