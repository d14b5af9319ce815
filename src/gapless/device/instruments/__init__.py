"""What can be read off a device and its host: kernels, utilisation, memory, clocks."""
