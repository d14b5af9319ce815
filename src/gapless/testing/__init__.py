"""The public test kit: a simulated device, race checks and wait budgets for any loop."""
