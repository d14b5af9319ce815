"""One GPU beside several: speeds, efficiency, and the communication that a step waits for."""
