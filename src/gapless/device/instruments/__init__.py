"""What is measured on a GPU and its host apart from the work itself: kernels, utilisation, clocks."""
