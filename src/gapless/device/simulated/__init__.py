"""A simulated accelerator: streams, memory, a race checker and a virtual clock on any machine."""
