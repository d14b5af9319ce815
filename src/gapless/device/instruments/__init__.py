"""What backends use to measure a GPU and its host: kernels, utilisation, clocks."""
